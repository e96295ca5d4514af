"""What a heap of processes refuses: other worlds, damaged files, wrong names and arguments, too little room."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL
from nanokv.errors import HeapUnavailable, InvalidArgument, NanoKVError, SegmentCorrupt
from nanokv.heap.shm import inspect, list_worlds
from nanokv.heap.world_file import HEADER, path_of
from tests.support.heap_ranks import PAGE, plan
from tests.support.rank_processes import Start
from tests.support.shm_ranks import attach, leave_stale
from tests.support.until import until


def inspect_alive(name: str) -> list[bool]:
    """Which ranks live; none while no rank has written its segment."""
    try:
        return inspect(name).alive
    except NanoKVError:
        return []


# --- what does not fit ---
def test_a_rank_with_other_options_is_refused_and_the_waiting_rank_learns_it_at_once(name: str, start: Start) -> None:
    waiting = start(0, 2, alike={"checksum": False})
    until(lambda: list_worlds() == [name] and inspect_alive(name) == [True, False])
    with pytest.raises(HeapUnavailable) as mine:
        attach(name, 1, 2, geometry=plan(2, pages=32), water=(70, 90), alike={"checksum": True})
    text = (
        f"world {name!r} has heap_bytes=65536, water=[80, 90], checksum=False; "
        "rank 1 asks for heap_bytes=131072, water=[70, 90], checksum=True: all ranks must ask for the same"
    )
    assert str(mine.value) == text
    with pytest.raises(HeapUnavailable, match=re.escape(text)):
        waiting.arrive()  # long before its timeout, PATIENCE
    assert list_worlds() == []
    again = start(0, 2)
    attach(name, 1, 2).close()
    again.arrive()


def test_a_refused_rank_does_not_disturb_a_world_that_is_complete(name: str, start: Start) -> None:
    first, second = start(0, 2), start(1, 2)
    first.arrive(), second.arrive()
    second.kill()
    with pytest.raises(HeapUnavailable, match=r"has evict=True; rank 1 asks for evict=False"):
        attach(name, 1, 2, may_evict=False)
    heap = attach(name, 1, 2)
    assert first.ask("alive", 1, heap.incarnation)
    heap.close()


def test_a_world_whose_ranks_have_died_may_go_on_with_other_options(name: str, start: Start) -> None:
    leave_stale(name, start)
    heap = attach(name, 0, 1, on_stale="recover", water=(10, 20), alike={"checksum": True})
    with pytest.raises(HeapUnavailable, match=r"has water=\[10, 20\], checksum=True; rank 0 asks for water=\[80, 90\]"):
        attach(name, 0, 1)
    heap.close()


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"geometry": plan(1, pages=17)}, "has heap_bytes=65536; rank 0 asks for heap_bytes=69632"),
        ({"geometry": plan(2)}, "has world_size=1; rank 0 asks for world_size=2"),
        ({"mode": "host"}, "has alloc='device'; rank 0 asks for alloc='host'"),
    ],
)
@pytest.mark.parametrize("living", [True, False])
def test_another_world_under_the_name(
    name: str, start: Start, wishes: dict[str, Any], message: str, living: bool
) -> None:
    first = start(0, 1)
    first.arrive()
    if not living:
        first.kill()
    with pytest.raises(HeapUnavailable, match=message):
        attach(name, 0, 1, on_stale="recover", **wishes)
    assert inspect(name).alive == [living]


@pytest.mark.parametrize(
    ("record", "field", "message"),
    [
        (HEADER, "magic", "magic is"),
        (HEADER, "version", "version is"),
        (HEADER, "segments_base", "segments_base"),
        (HEADER, "segment_bytes", "its header says"),
        (HEAP_CTL, "magic", "magic is"),
        (HEAP_CTL, "layout_hash", "layout version"),
        (HEAP_CTL, "world_id", "world_id is"),
        (HEAP_CTL, "hdr_base", "hdr_base is"),
        (HEAP_CTL, "rank", "rank is"),
    ],
)
def test_a_damaged_file_is_refused(name: str, start: Start, record: Any, field: str, message: str) -> None:
    leave_stale(name, start)
    raw = np.memmap(path_of(name), np.uint8, mode="r+")
    at = 0 if record is HEADER else int(raw[: HEADER.size].view(HEADER.dtype)["segments_base"][0])
    raw[at : at + record.size].view(record.dtype)[field] += 1
    with pytest.raises(SegmentCorrupt, match=message):
        attach(name, 0, 1, on_stale="recover")
    assert list_worlds() == [name]


def test_a_file_that_was_cut_is_refused(name: str, start: Start) -> None:
    leave_stale(name, start)
    os.truncate(path_of(name), path_of(name).stat().st_size - PAGE)
    for look in (lambda: attach(name, 0, 1, on_stale="recover"), lambda: inspect(name)):
        with pytest.raises(SegmentCorrupt, match="its header says"):
            look()
    attach(name, 0, 1, on_stale="replace").close()
    assert list_worlds() == []


def test_more_than_there_is_room_for(name: str, folder: Path) -> None:
    room = os.statvfs(folder)
    pages = 10 * room.f_bavail * room.f_frsize // (1 << 20)
    geometry = Geometry.plan(pages << 20, 1 << 20, 1, max_objects=8)
    with pytest.raises(HeapUnavailable, match=rf"needs \d+ bytes, \d+ are free in {folder}"):
        attach(name, 0, 1, geometry=geometry)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("wrong", ["", "a/b", "a\0b", "x" * 249, "\ud800", 3])
def test_names_that_cannot_be(wrong: Any, folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="name of a world"):
        attach(wrong, 0, 1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("right", ["x" * 248, "a b", ".", "名"])
def test_names_that_can(right: str) -> None:
    heap = attach(right, 0, 1)
    assert list_worlds() == [right]
    heap.close()


@pytest.mark.parametrize(
    ("rank", "wishes", "message"),
    [
        (2, {}, "rank must be 0 to 1, not 2"),
        (-1, {}, "rank must be"),
        (0, {"mode": "v3"}, "mode must be one of .* not 'v3'"),
        (0, {"on_stale": "remove"}, "on_stale must be one of .* not 'remove'"),
    ],
)
def test_arguments_that_cannot_be(name: str, rank: int, wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        attach(name, rank, 2, **wishes)
    assert list_worlds() == []


def test_what_is_no_file_or_no_folder(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_of(name).mkdir()
    with pytest.raises(HeapUnavailable, match="cannot be opened"):
        attach(name, 0, 1)
    path_of(name).rmdir()
    path_of(name).symlink_to(folder / "elsewhere")
    with pytest.raises(HeapUnavailable, match="cannot be opened"):
        attach(name, 0, 1)
    assert not (folder / "elsewhere").exists()
    monkeypatch.setenv("NANOKV_SHM_DIR", f"{folder}/none")
    with pytest.raises(HeapUnavailable, match="is no directory"):
        attach(name, 0, 1)
    with pytest.raises(HeapUnavailable, match=r"NANOKV_SHM_DIR is .*No such file or directory"):
        list_worlds()

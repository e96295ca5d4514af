"""What a heap of processes refuses: other worlds, damaged files, wrong names and arguments, too little room."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL
from nanokv.errors import HeapUnavailable, InvalidArgument, SegmentCorrupt
from nanokv.heap.shm import inspect, list_worlds
from nanokv.heap.world_file import HEADER, path_of
from tests.support.heap_ranks import PAGE, plan
from tests.support.rank_processes import Start
from tests.support.shm_ranks import attach, leave_stale


# --- what does not fit ---
@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"geometry": plan(1, pages=17)}, "n_pages is 16, not 17"),
        ({"geometry": plan(2)}, "world_size is 1, not 2"),
        ({"mode": "host"}, "mode is 'device', not 'host'"),
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
    assert list_worlds() == []

"""The table of layouts: a row per identity that has put objects into a segment, which any number of hosts may write."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanokv import Identity, KVLayout, NanoKVCache
from nanokv.allocation.stored_layouts import check_of, layout_in, row_of
from nanokv.device.segment.layout import LAYOUT as ROW
from nanokv.device.segment.layout import RANK_LAYOUTS
from nanokv.errors import InvalidArgument, OutOfMemory, ReuseViolation
from nanokv.fsck import _view, check_cache, check_segments
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.keys.identity import digest_of
from tests.api.test_identity import LAYOUT, Whose, join, world_of
from tests.api.test_identity import MINE as OPAQUE
from tests.support.rank_processes import new_folder

ONE = torch.ones(3)
PLAIN = replace(LAYOUT, form="")
MINE = OPAQUE.with_layout(PLAIN)
PUTS: dict[str, Callable[[NanoKVCache, int], Any]] = {
    "put": lambda cache, rank: cache.put("k", ONE, preferred_segment=rank),
    "put a large one": lambda cache, rank: cache.put("k", torch.ones(3, 2).T, preferred_segment=rank),
    "put_many": lambda cache, rank: cache.put_many(["k"], [ONE], preferred_segment=rank),
    "put_async": lambda cache, rank: cache.put_async("k", ONE, preferred_segment=rank).wait(),
    "open_for_write": lambda cache, rank: cache.open_for_write("k", 9, preferred_segment=rank),
    "paged": lambda cache, rank: cache.paged_kv([torch.ones(2, 2, 16, 2, 8, dtype=torch.bfloat16)] * 2, kv_dim=1).put(
        ["k"], [0], preferred_segment=rank
    ),
}
LAYOUTS = [
    PLAIN,
    replace(PLAIN, tp_rank=1),
    KVLayout(layers=1, kv_heads=1, head_size=576, block_size=64, dtype="float8_e4m3fn", order="LND", first_layer=7),
    KVLayout(layers=80, kv_heads=8, head_size=128, block_size=16, dtype="float16", order="2NLHD", form="packé"),
]


@pytest.mark.parametrize("alloc", ["device", "host"])
@pytest.mark.parametrize("name", PUTS)
def test_the_first_put_into_a_segment_writes_the_row(name: str, alloc: str) -> None:
    one, other = world_of(("", MINE), ("", MINE.with_layout(replace(PLAIN, tp_rank=1))), alloc=alloc)
    with one, other:
        assert one.layouts() == other.layouts() == []
        PUTS[name](one, 1)
        assert [(row.rank, row.tag, row.layout) for row in other.layouts()] == [(1, digest_of(MINE).tag, PLAIN)]
        at = one.engine.geometry.offsets["layouts_base"]
        table = one.engine.heap.segment(1)[at : at + len(one.engine.machine.layouts(1)) * ROW.size]
        before = table.clone()
        one.put("another", ONE, preferred_segment=1)
        assert torch.equal(table, before)
        assert one.layouts(0) == []
        other.put("k", ONE, preferred_segment=1)
        assert [row.layout for row in one.layouts(1)] == [PLAIN, replace(PLAIN, tp_rank=1)]
        assert not check_cache([one, other]).findings
        with pytest.raises(InvalidArgument, match="rank must be"):
            one.layouts(2)


def test_whose_layouts_are_mine() -> None:
    mine = MINE.with_layout(replace(PLAIN, tp_rank=1))
    others: list[Whose] = [("n", MINE), ("", replace(MINE, tenant="bob")), ("", replace(MINE, model="x"))]
    world = world_of(("", MINE), ("", mine), *others, ("", MINE.with_layout(None)), ("n", None))
    for cache in world:
        cache.put("k", ONE, preferred_segment=0)
    rows = world[0].layouts()
    assert [row.is_mine for row in rows] == [True, True, False, False, False]
    assert [row.is_mine for row in world[5].layouts()] == [True, True, False, False, False]
    assert not any(row.is_mine for row in world[6].layouts())
    for cache in world:
        cache.close()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.order + layout.form)
def test_a_row_holds_a_whole_layout(layout: KVLayout) -> None:
    (row,) = row_of(MINE.with_layout(layout), "n")
    assert layout_in(row) == layout
    assert (int(row["identity"]), int(row["identity_low"])) == digest_of(MINE.with_layout(layout), "n").halves
    for at in range(ROW.offsets["check"] + 8):
        raw = bytearray(row.tobytes())
        raw[at] ^= 1
        assert layout_in(np.frombuffer(bytes(raw), ROW.dtype)[0]) is None, at


def test_hosts_of_one_identity_race_for_one_row() -> None:
    world = world_of(*[("", MINE)] * 4, *[("", MINE.with_layout(replace(PLAIN, tp_rank=1)))] * 4)
    with ThreadPoolExecutor(len(world)) as pool:
        list(pool.map(lambda cache: cache.put(f"k{cache.rank}", ONE, preferred_segment=0), world))
    assert sorted(row.layout.tp_rank for row in world[0].layouts()) == [0, 1]
    for cache in world:
        cache.close()


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_a_full_table_is_an_error_and_nothing_is_put(alloc: str) -> None:
    world = world_of(*[("", None)] * 2, ("", MINE), alloc=alloc)
    rows = len(world) * RANK_LAYOUTS
    for i in range(rows):
        row = row_of(Identity(f"m{i}", layout=PLAIN))
        assert world[0].engine.machine.write_layout(0, row) == world[1].engine.machine.write_layout(0, row) == 0
    for name in ("put", "put a large one", "put_async", "open_for_write", "paged"):
        with pytest.raises(OutOfMemory, match="the table of layouts in the segment of rank 0 is full"):
            PUTS[name](world[2], 0)
        assert not world[2].exists("k"), name
    (error,) = world[2].put_many(["k"], [ONE], preferred_segment=0)
    assert isinstance(error, OutOfMemory)
    world[2].put("k", ONE, preferred_segment=1)
    assert len(world[0].layouts(0)) == rows
    for cache in world:
        cache.flush()
    assert not check_cache(world).breaches
    for cache in world:
        cache.close()


def test_identities_of_one_tag_do_not_meet() -> None:
    one, other = world_of(("", MINE), ("", None))
    row = row_of(MINE)
    row["identity"] ^= np.uint64(1)
    row["check"] = check_of(row)
    with one, other:
        assert other.engine.machine.write_layout(0, row) == 0
        with pytest.raises(ReuseViolation, match=r"another identity has the same identity [0-9a-f]{8} in segment 0"):
            one.put("k", ONE, preferred_segment=0)
        assert not one.exists("k")


DYING = """
import os, signal, sys
import numpy as np
from nanokv.allocation.stored_layouts import row_of
from tests.api.test_identity import join
from tests.api.test_layouts import MINE
world = join("dead", ("", MINE))
row = row_of(MINE)
words = row.view(np.int64)
words[int(sys.argv[1]) :] = 0
world[0].engine.machine.write_layout(1, row)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with new_folder(monkeypatch) as made:
        yield made


def test_a_row_of_a_host_that_died_is_completed(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", DYING, "6"], env=environment, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    report = InspectedWorld("dead").check()
    assert not report.breaches and [each.what for each in report.leftovers if "layouts" in each.what]
    world = join("dead", ("", MINE), on_stale="recover")
    assert world[0].layouts() == []
    world[0].put("k", ONE, preferred_segment=1)
    assert [row.layout for row in world[0].layouts()] == [PLAIN]
    for cache in world:
        cache.close()


def test_fsck_finds_wrong_rows() -> None:
    (cache,) = world_of(("", MINE))
    with cache:
        cache.put("k", ONE)
        cache.flush()
        view = _view(cache.engine.heap, 0)
        good = view.layouts.copy()

        def found() -> list[str]:
            return [each.what for each in check_segments([view], mode="device").breaches]

        assert found() == []
        view.layouts[0]["tp_size"] = 1
        assert found() == ["rows of the table of layouts are wrong"]
        view.layouts[:] = good
        view.layouts[3] = good[0]
        assert found() == ["rows of the table of layouts have one tag"]
        view.layouts[:] = good
        view.layouts[0]["check"] = 0
        assert found() == ["a host ended while it wrote rows of the table of layouts"]
        view.layouts[:] = good


def test_a_cache_without_layout_writes_no_row() -> None:
    for whose in (("", None), ("n", None), ("", MINE.with_layout(None))):
        (cache,) = world_of(whose)
        with cache:
            cache.put("k", ONE)
            assert cache.layouts() == [] and not cache.engine.machine.layouts(0)["identity"].any()

"""Pages used, free and in quarantine, and fragmentation, in `stats`. The numbers were computed by hand.

v2 rounds an object up to an extent of 1, 2, 4, 8, 16, 32 or 64 pages and takes them in the order of puts. v1 takes as
many pages as the object has, from the smallest run of free pages that is long enough.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nanokv.errors import OutOfMemory, WriteLost
from nanokv.fsck.inspect_world import Inspected
from nanokv.statistics import HeapSnapshot
from tests.conftest import MakeWorld, World
from tests.support import fsck_fixture
from tests.support.rank_processes import until

PAGE = 4096
PAGES = 64
SIZES = (0.5, 1, 3, 5, 7, 12)  #: pages of objects; v2: extents of 1, 1, 4, 8, 8, 16; v1: 1, 1, 3, 5, 7, 12
STORED = 28.5  #: pages


class Expected(NamedTuple):
    """What `stats` says, sizes in pages."""

    used: int
    free: int
    quarantined: int
    largest: int
    internal: float
    external: float


def expect(world: World, v2: Expected, v1: Expected) -> None:
    """Compare what rank 1 says of its segment."""
    found: Any = world[1].stats()
    expected = v2 if found["alloc"] == "device" else v1
    names = ("used_pages", "free_pages", "quarantined_pages")
    assert tuple(found[name] for name in names) == expected[:3]
    assert (found["heap_used"], found["largest_free_extent"]) == (expected.used * PAGE, expected.largest * PAGE)
    fragmentation = (found["internal_fragmentation"], found["external_fragmentation"])
    assert fragmentation == pytest.approx(expected[4:], abs=1e-12)


def expect_both(world: World, *expected: float) -> None:
    """`expect` the same of v2 and v1."""
    expect(world, Expected(*expected), Expected(*expected))  # type: ignore[arg-type]


def put(world: World, key: str, pages: float) -> None:
    world[0].put(key, torch.zeros(int(pages * PAGE), dtype=torch.uint8), preferred_segment=1)


def put_sizes(world: World) -> None:
    for size in SIZES:
        put(world, str(size), size)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=False, write_timeout=0.5)


def test_an_empty_heap_has_no_fragmentation(world: World) -> None:
    expect_both(world, 0, 64, 0, 64, 0.0, 0.0)


def test_objects_of_odd_sizes(world: World) -> None:
    """v2: 26 pages were never used, an extent of 16 fits there. v1: the last 35 pages are one run."""
    put_sizes(world)
    expect(
        world,
        v2=Expected(38, 26, 0, 16, 1 - STORED / 38, 1 - 16 / 26),
        v1=Expected(29, 35, 0, 35, 1 - STORED / 29, 0.0),
    )


def test_removals_leave_holes(world: World) -> None:
    """v2: extents of 4 and 8 pages are free, and 26 pages. v1: runs of 3, 7 and 35 pages."""
    put_sizes(world)
    for size in (3, 7):
        world[0].remove(str(size))
    expect(
        world,
        v2=Expected(26, 38, 0, 16, 1 - 18.5 / 26, 1 - 16 / 38),
        v1=Expected(19, 45, 0, 35, 1 - 18.5 / 19, 1 - 35 / 45),
    )
    put(world, "10", 10)
    expect(
        world,
        v2=Expected(42, 22, 0, 8, 1 - 28.5 / 42, 1 - 8 / 22),
        v1=Expected(29, 35, 0, 25, 1 - 28.5 / 29, 1 - 25 / 35),
    )


def test_every_second_page_is_free(world: World) -> None:
    for i in range(PAGES):
        put(world, str(i), 1)
    for i in range(0, PAGES, 2):
        world[0].remove(str(i))
    expect_both(world, 32, 32, 0, 1, 0.0, 1 - 1 / 32)


def test_a_full_heap(world: World) -> None:
    for i in range(PAGES):
        put(world, str(i), 0.5)
    with pytest.raises(OutOfMemory):
        put(world, "one too many", 1)
    expect_both(world, 64, 0, 0, 0, 0.5, 0.0)


def test_objects_without_bytes_hold_nothing(world: World) -> None:
    put(world, "none", 0)
    expect_both(world, 0, 64, 0, 64, 0.0, 0.0)


def test_pages_in_quarantine_are_not_free(world: World) -> None:
    """A plan of 5 pages is given up. Its kernel may still write: its pages are used, and those of no object."""
    put(world, "3", 3)
    world[0].open_for_write("plan", 5 * PAGE, preferred_segment=1)
    until(lambda: world[1].stats()["quarantined"] == 1)
    expect(
        world,
        v2=Expected(12, 52, 8, 32, 1 / 4, 1 - 32 / 52),
        v1=Expected(8, 56, 5, 56, 0.0, 0.0),
    )
    with pytest.raises(WriteLost):
        world[0].commit("plan")
    until(lambda: world[1].stats()["quarantined"] == 0)
    expect(
        world,
        v2=Expected(4, 60, 0, 32, 1 / 4, 1 - 32 / 60),
        v1=Expected(3, 61, 0, 61, 0.0, 0.0),
    )


def test_no_extent_is_larger_than_the_largest_class(make_world: MakeWorld) -> None:
    """An empty heap of four extents of the largest class is not fragmented. v1 knows no classes."""
    world = make_world(heap_bytes=4 * PAGES * PAGE, page_bytes=PAGE, size_classes=(1, PAGES))
    expect(world, v2=Expected(0, 256, 0, 64, 0.0, 0.0), v1=Expected(0, 256, 0, 256, 0.0, 0.0))


def test_the_command_line_sees_the_same(shm_name: str, new_world: MakeWorld) -> None:
    for alloc in ("device", "host"):
        world = new_world(heap="shm", alloc=alloc, name=f"{shm_name}-{alloc}", heap_bytes=PAGES * PAGE, page_bytes=PAGE)
        put_sizes(world)
        world[0].remove("7")
        outside, mine = Inspected(f"{shm_name}-{alloc}").stats()["ranks"][1], world[1].stats()
        names = ("free_pages", "largest_free_extent", "internal_fragmentation", "external_fragmentation")
        assert [outside[name] for name in names] == [dict(mine)[name] for name in names]


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_a_corrupt_segment_can_be_counted(alloc: str) -> None:
    """No record is believed to be in the arena: the counts may be wrong, and stay below the number of pages."""
    world = fsck_fixture.World()
    view, random = world.views[0], np.random.default_rng(7)
    for _ in range(50):
        for region in (view.headers, view.page_links):
            raw = region.view(np.uint8)
            raw[:] = random.integers(0, 256, raw.shape, np.uint8)
        view.ctl["bump_ptr"] = random.integers(0, 2**64 - 1, dtype=np.uint64)
        found = HeapSnapshot.of(
            world.geometry, view.ctl.copy()[0], view.headers.copy(), view.activity, view.page_links.copy(), alloc
        )
        assert 0 <= found.largest_free_extent // fsck_fixture.PAGE <= found.free_pages <= world.geometry.n_pages

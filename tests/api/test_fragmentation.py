"""Pages used, free and in quarantine, and fragmentation, in `stats`. The numbers were computed by hand.

v2 rounds an object up to an extent of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56 or 64 pages and takes them in
the order of puts. v1 takes as many pages as the object has, from the smallest run of free pages that is long enough.
"""

import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nanokv import NanoKVCache
from nanokv.errors import OutOfMemory, WriteLost
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.statistics import HeapSnapshot
from tests.support import fsck_fixture
from tests.support.until import until
from tests.support.worlds import MakeWorld, World

PAGE = 4096
PAGES = 64
SIZES = (0.5, 1, 3, 5, 7, 12)  #: pages; in v1 and in v2 they take 1, 1, 3, 5, 7 and 12
STORED = 28.5  #: pages
CLASSES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)


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


def put_at(cache: NanoKVCache, key: str, pages: float) -> None:
    cache.put(key, torch.zeros(int(pages * PAGE), dtype=torch.uint8))


def put_sizes(world: World) -> None:
    for size in SIZES:
        put(world, str(size), size)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=False, write_timeout=0.5)


def test_an_empty_heap_has_no_fragmentation(world: World) -> None:
    expect_both(world, 0, 64, 0, 64, 0.0, 0.0)


def test_objects_of_odd_sizes(world: World) -> None:
    """35 pages were never used. v2: an extent of 32 fits there. v1: they are one run."""
    put_sizes(world)
    expect(
        world,
        v2=Expected(29, 35, 0, 32, 1 - STORED / 29, 1 - 32 / 35),
        v1=Expected(29, 35, 0, 35, 1 - STORED / 29, 0.0),
    )


def test_removals_leave_holes(world: World) -> None:
    """3, 7 and 35 pages are free; no hole holds 9 pages, for which v2 takes 10."""
    put_sizes(world)
    for size in (3, 7):
        world[0].remove(str(size))
    expect(
        world,
        v2=Expected(19, 45, 0, 32, 1 - 18.5 / 19, 1 - 32 / 45),
        v1=Expected(19, 45, 0, 35, 1 - 18.5 / 19, 1 - 35 / 45),
    )
    put(world, "9", 9)
    expect(
        world,
        v2=Expected(29, 35, 0, 24, 1 - 27.5 / 29, 1 - 24 / 35),
        v1=Expected(28, 36, 0, 26, 1 - 27.5 / 28, 1 - 26 / 36),
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
        v2=Expected(8, 56, 5, 56, 0.0, 0.0),
        v1=Expected(8, 56, 5, 56, 0.0, 0.0),
    )
    with pytest.raises(WriteLost):
        world[0].commit("plan")
    until(lambda: world[1].stats()["quarantined"] == 0)
    expect(
        world,
        v2=Expected(3, 61, 0, 56, 0.0, 1 - 56 / 61),
        v1=Expected(3, 61, 0, 61, 0.0, 0.0),
    )


def test_no_extent_is_larger_than_the_largest_class(make_world: MakeWorld) -> None:
    """An empty heap of four extents of the largest class is not fragmented. v1 knows no classes."""
    world = make_world(heap_bytes=4 * PAGES * PAGE, page_bytes=PAGE, size_classes=(1, PAGES))
    expect(world, v2=Expected(0, 256, 0, 64, 0.0, 0.0), v1=Expected(0, 256, 0, 256, 0.0, 0.0))


def test_the_numbers_against_every_object_and_every_list(make_world: MakeWorld) -> None:
    """Random puts and removals, counted from outside: by the sizes asked for, and a walk through the lists."""
    world = make_world(n=1, heap_bytes=200 * PAGE, page_bytes=PAGE, evict=False, alloc="device")
    cache, dice = world[0], np.random.default_rng(11)
    held: dict[str, int] = {}  # key -> bytes
    for step in range(600):
        if held and dice.random() < 0.5:
            cache.remove(key := str(dice.choice(list(held))))
            del held[key]
        else:
            held[str(step)] = nbytes = int(dice.integers(1, 30 * PAGE))
            try:
                cache.put(str(step), torch.zeros(nbytes, dtype=torch.uint8))
            except OutOfMemory:
                del held[str(step)]
        if step % 20 < 19:
            continue
        for tries_left in range(200, -1, -1):  # the owner's host may just hold an extent that it joins to others
            try:
                check_numbers(cache, held)
                break
            except AssertionError:
                if not tries_left:
                    raise
                time.sleep(0.01)


def check_numbers(cache: NanoKVCache, held: dict[str, int]) -> None:
    """`stats` of a heap of 200 pages says what the sizes of its objects and a walk through its lists say."""
    used = sum(min(pages for pages in CLASSES if pages * PAGE >= nbytes) for nbytes in held.values())
    marks = cache.engine.machine.page_marks(0)  # of a walk through the lists; `stats` looks at the links of the pages
    unused = (cache.engine.geometry.offsets["heap_limit"] - int(cache.engine.machine.control(0)[0]["bump_ptr"])) // PAGE
    free = [CLASSES[mark - 1] for mark in marks[marks > 0]]
    assert used + sum(free) + unused == 200
    largest = max([*free, *(pages for pages in CLASSES if pages <= unused)], default=0)
    found: Any = cache.stats()
    assert (found["used_pages"], found["free_pages"]) == (used, 200 - used)
    assert found["largest_free_extent"] == largest * PAGE
    internal = 1 - sum(held.values()) / (used * PAGE) if used else 0.0
    external = 1 - largest / min(200 - used, 128) if used < 200 else 0.0
    assert found["internal_fragmentation"] == pytest.approx(internal, abs=1e-12)
    assert found["external_fragmentation"] == pytest.approx(external, abs=1e-12)


def test_odd_sizes_fill_a_heap(make_world: MakeWorld) -> None:
    """A uniform mix fills seven eighths of the bytes and more: just full, and while objects are evicted for others."""
    world = make_world(n=1, heap_bytes=1024 * PAGE, page_bytes=PAGE, alloc="device")
    cache, dice = world[0], np.random.default_rng(3)
    for turn in range(12):
        for number in range(200):
            put_at(cache, f"{turn} {number}", float(dice.choice(SIZES)))
        found = cache.stats()
        assert found["internal_fragmentation"] < 0.12
        if found["evicted"]:
            assert found["bytes_stored"] > 0.85 * found["heap_total"]
    assert found["evicted"] > 1000


def test_the_command_line_sees_the_same(shm_name: str, new_world: MakeWorld) -> None:
    for alloc in ("device", "host"):
        world = new_world(heap="shm", alloc=alloc, name=f"{shm_name}-{alloc}", heap_bytes=PAGES * PAGE, page_bytes=PAGE)
        put_sizes(world)
        world[0].remove("7")
        outside, mine = InspectedWorld(f"{shm_name}-{alloc}").stats()["ranks"][1], world[1].stats()
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

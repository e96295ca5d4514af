"""Joining before a producer is refused: sweeps by hand on a local world, no thread, no sleep."""

from collections.abc import Iterator

import numpy as np
import pytest

from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import MARK_SHIFT, SIZE_CLASSES
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.host_poller.poller import Poller
from nanokv.host_poller.sweeper import LATELY
from nanokv.space.free_pages import FreePages, run_lengths
from tests.poller.test_sweeper import PAGE, Rank
from tests.support.faults import Calls

PAGES = 128
SMALL = PAGES // 2  #: as many pages as objects of one page are put and removed
LARGE = 8  #: pages


@pytest.fixture
def rank() -> Iterator[Rank]:
    geometry = Geometry.plan(PAGES * PAGE, PAGE, 1, size_classes=(1, 2, 4, 8, 16))
    heap = LocalWorld(WorldSpec(geometry, mode="device", may_evict=True, water=(85, 95))).heap(0)
    yield Rank(heap)
    heap.close()


def put(rank: Rank, keys: range, pages: int) -> None:
    assert [rank.put(0, key, pages * PAGE) for key in keys] == [Status.OK] * len(keys)


def remove(rank: Rank, keys: range) -> None:
    assert [rank.machine.remove((key, key * 7919)) for key in keys] == [Status.OK] * len(keys)


def free(rank: Rank) -> FreePages:
    view = rank.views[0]
    return FreePages.of(view.geometry, view.page_links, int(view.ctl["bump_ptr"][0]))


def joined(poller: Poller) -> tuple[int, int]:
    """How often free extents were joined, and how often before a producer was refused."""
    poller.drain(0.0)
    poller.sweep(0.0)
    return poller.sweeper.counts.joined, poller.sweeper.counts.joined_ahead


def test_small_extents_are_joined_before_large_puts_come(rank: Rank) -> None:
    """Small objects filled half the heap and went; a large one lives. Without joining 7 more fit, with it 15."""
    poller = rank.poller()
    put(rank, range(SMALL), 1)
    put(rank, range(1000, 1001), LARGE)
    remove(rank, range(SMALL))
    assert free(rank).in_extents_of(LARGE) == PAGES - SMALL - LARGE
    assert joined(poller) == (1, 1)
    assert free(rank).in_extents_of(LARGE) == PAGES - LARGE
    put(rank, range(1001, 1016), LARGE)
    assert (rank.views[0].ctl["refused"][0], rank.views[0].ctl["evicted"][0]) == (0, 0)


def test_what_is_joined_is_not_joined_again(rank: Rank) -> None:
    poller = rank.poller()
    put(rank, range(SMALL), 1)
    put(rank, range(1000, 1001), LARGE)
    remove(rank, range(SMALL))
    assert [joined(poller) for _ in range(3)] == [(1, 1)] * 3
    put(rank, range(10), 1)
    remove(rank, range(10))
    assert free(rank).in_extents_of(LARGE) == PAGES - LARGE - 16, "an extent of 16 pages was split"
    assert joined(poller) == (1, 1), "it is not worth it for two large objects"


def test_one_page_too_few_is_not_worth_it(rank: Rank) -> None:
    """The pages never used hold 7 large objects. 63 free neighbours would hold 7 more, 64 hold 8."""
    poller = rank.poller()
    put(rank, range(SMALL), 1)
    put(rank, range(1000, 1001), LARGE)
    remove(rank, range(1, SMALL))
    assert joined(poller) == (0, 0)
    remove(rank, range(1))
    assert joined(poller) == (1, 1)


def test_pages_that_lie_apart_are_left_alone(rank: Rank) -> None:
    poller = rank.poller()
    put(rank, range(PAGES - LARGE), 1)
    put(rank, range(1000, 1001), LARGE)
    remove(rank, range(0, PAGES - LARGE, 2))
    assert joined(poller) == (0, 0)


def test_a_full_heap_is_not_looked_at(rank: Rank, calls: Calls) -> None:
    """Fewer pages are free than one large object has."""
    poller = rank.poller()
    put(rank, range(1000, 1015), LARGE)
    put(rank, range(LARGE), 1)
    remove(rank, range(LARGE - 1))
    asked = calls.noted(rank.machine, "page_links")
    assert joined(poller) == (0, 0) and not asked
    remove(rank, range(LARGE - 1, LARGE))
    assert joined(poller) == (1, 1) and asked, "the last page made the difference"


def test_small_objects_alone_need_no_joining(rank: Rank, calls: Calls) -> None:
    poller = rank.poller()
    put(rank, range(PAGES), 1)
    remove(rank, range(1, PAGES))
    asked = calls.noted(rank.machine, "page_links")
    assert joined(poller) == (0, 0) and not asked


def test_a_size_that_was_wanted_in_vain_counts_for_a_while(rank: Rank) -> None:
    """No large object lives: a producer was refused one, and its hint says so."""
    poller = rank.poller()
    put(rank, range(PAGES), 1)
    for _ in range(2):
        poller.sweeper.join_for(3)
    assert joined(poller) == (0, 0), "no page is free"
    for _ in range(LATELY - 2):
        joined(poller)
    remove(rank, range(LARGE))
    assert joined(poller) == (1, 1)
    assert free(rank).largest == LARGE
    put(rank, range(LARGE), 1)
    remove(rank, range(LARGE))
    assert joined(poller) == (1, 1), "it is forgotten"


def test_links_that_lead_out_of_the_arena_are_not_believed(rank: Rank) -> None:
    """The last page says that an extent of 16 pages begins there, others name classes that do not exist."""
    poller = rank.poller()
    put(rank, range(SMALL), 1)
    put(rank, range(1000, 1001), LARGE)
    remove(rank, range(SMALL))
    links = rank.views[0].page_links
    links[PAGES - 1] = 5 << MARK_SHIFT.value
    links[PAGES - 2] = 63 << MARK_SHIFT.value
    links[PAGES - 3] = SIZE_CLASSES << MARK_SHIFT.value
    rank.views[0].ctl["bump_ptr"] = 2**64 - 1
    assert free(rank).total == SMALL and free(rank).unused == 0
    assert joined(poller) == (1, 1)
    assert free(rank).in_extents_of(LARGE) == SMALL


def test_free_pages_against_a_walk_over_every_page() -> None:
    geometry = Geometry.plan(64 * PAGE, PAGE, 1, size_classes=(1, 3, 12))
    base = geometry.offsets["heap_base"]
    random = np.random.default_rng(3)
    for _ in range(200):
        links, unused, held = np.zeros(64, np.uint64), int(random.integers(0, 30)), random.random()
        states, sizes, at = [], [], 0
        while at < 64 - unused:
            size_class = int(random.integers(0, 3))
            size = geometry.class_pages[size_class]
            if at + size > 64 - unused:
                continue
            is_free = random.random() > held
            links[at] = (size_class + (1 if is_free else 1 + SIZE_CLASSES)) << MARK_SHIFT.value
            states += [is_free] * size
            sizes += [size] * is_free
            at += size
        found = FreePages.of(geometry, links, base + (64 - unused) * PAGE)
        text = "".join(".#"[state] for state in states) + "#" * unused
        runs = [len(run) for run in text.split(".") if run]
        assert found.runs.tolist() == runs and found.total == sum(runs) and found.unused == unused
        assert found.largest == max([*sizes, *(n for n in (1, 3, 12) if n <= unused)], default=0)
        for size in (1, 3, 12):
            assert found.in_extents_of(size) == sum(n // size * size for n in sizes) + unused // size * size
            assert found.joined_to(size) == sum(run // size * size for run in runs)


def test_runs_of_neighbours() -> None:
    mask = np.array([1, 0, 1, 1, 0, 0, 1, 1, 1], np.bool_)
    assert run_lengths(mask).tolist() == [1, 2, 3]
    assert run_lengths(np.zeros(4, np.bool_)).tolist() == []

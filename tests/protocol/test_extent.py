"""Extents, natively compiled: no page has two owners, freed pages are allocated again, larger extents are split."""

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64, load64, select, store64, word
from nanokv.device.protocol.extent import bump, bump_rest, class_of, class_within, give, is_held, pages_marked, take
from nanokv.device.protocol.shards import home_for
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import SIZE_CLASSES, WORD_BYTES, unpack
from nanokv.device.segment.world_table import World, class_pages
from tests.support.plain_world import PAGE, PlainWorld, address, aligned_words, in_threads, native, yielding

PAGES = 16
CLASSES = 5  #: 1, 2, 4, 8 and 16 pages
POWERS = (1, 2, 4, 8, 16)
HELD = 6
ROUNDS = 20_000


@triton.jit
def mark(marks: tl.int64, page: tl.int64, pages: tl.int64, old: tl.int64, new: tl.int64) -> Any:
    """Note an owner for each page of an extent. Returns the number of pages that had another owner."""
    wrong = word(0)
    i = word(0)
    while i < pages:
        if cas64(marks + (page + i) * WORD_BYTES, old, new, "acq_rel") != old:
            wrong += 1
        i += 1
    return wrong


@triton.jit
def churn(
    world: World,
    seg: tl.int64,
    marks: tl.int64,
    held: tl.int64,
    slots: tl.int64,
    classes: tl.int64,
    seed: tl.int64,
    rounds: tl.int64,
) -> Any:
    """Take and give extents of random classes, `slots` held at a time (page + 1 and class, at `held`), then give all.

    Returns (taken, refused, pages that had another owner).
    """
    taken = word(0)
    refused = word(0)
    wrong = word(0)
    random = seed + 0
    i = word(0)
    while i < rounds + slots:
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        at = held + select(i < rounds, (random >> 8) % slots, i - rounds) * 2 * WORD_BYTES
        page = load64(at, "relaxed") - 1
        size_class = load64(at + WORD_BYTES, "relaxed")
        if page >= 0:
            wrong += mark(marks, page, class_pages(world, size_class), seed, word(0))
            give(world, seg, page, size_class)
            store64(at, word(0), "relaxed")
        elif i < rounds:
            size_class = (random >> 16) % classes
            page = take(world, seg, size_class, random >> 20, word(0))
            if page >= 0:
                taken += 1
                wrong += mark(marks, page, class_pages(world, size_class), word(0), seed)
                store64(at, page + 1, "relaxed")
                store64(at + WORD_BYTES, size_class, "relaxed")
            else:
                refused += 1
        i += 1
    return taken, refused, wrong


@triton.jit
def bump_all(world: World, seg: tl.int64, size_class: tl.int64, out: tl.int64, rounds: tl.int64) -> Any:
    """Bump until nothing is left, noting each extent. Returns the number of extents."""
    got = word(0)
    i = word(0)
    while i < rounds:
        page = bump(world, seg, size_class)
        if page >= 0:
            store64(out + got * WORD_BYTES, page, "relaxed")
            got += 1
        i += 1
    return got


class Arena:
    """One segment of 16 pages, in extents of 1, 2, 4, 8 and 16 pages."""

    def __init__(self, pages: int = PAGES, size_classes: tuple[int, ...] | None = POWERS, **wishes: Any) -> None:
        self.plain = PlainWorld(Geometry.plan(pages * PAGE, PAGE, 1, size_classes=size_classes, **wishes))
        self.geometry = self.plain.geometry
        self.view = self.plain.views[0]
        self.at = self.plain.worlds[0], self.plain.bases[0]

    def take(self, size_class: int) -> int:
        return int(native(take)(*self.at, size_class, 0, 0))

    def give(self, page: int, size_class: int) -> None:
        native(give)(*self.at, page, size_class)

    def bumped(self) -> int:
        return (int(self.view.ctl["bump_ptr"][0]) - self.geometry.offsets["heap_base"]) // PAGE

    def free(self) -> list[tuple[int, int]]:
        """(first page, pages) of every free extent, in the order of pages."""
        found: list[tuple[int, int]] = []
        for k, size in enumerate(self.geometry.class_pages):
            for head in self.view.ctl[f"free_head{k}"][0].tolist():
                node = int(unpack("LIST", "node", head))
                while node and len(found) <= self.geometry.n_pages:
                    found.append((node - 1, size))
                    node = int(unpack("LINK", "next", self.view.page_links[node - 1].astype(np.int64)))
        return sorted(found)

    def places(self) -> list[int]:
        """The pages of all free extents and beyond the bump pointer, in order."""
        pages = [page + i for page, size in self.free() for i in range(size)]
        return sorted(pages + list(range(self.bumped(), self.geometry.n_pages)))


def test_smoke() -> None:
    arena = Arena()
    assert [arena.take(0), arena.take(1), arena.take(0)] == [0, 1, 3]
    arena.give(1, 1)
    assert arena.free() == [(1, 2)]
    assert arena.take(1) == 1
    assert arena.bumped() == 4


def test_capacity() -> None:
    arena = Arena()
    assert sorted(arena.take(0) for _ in range(PAGES)) == list(range(PAGES))
    assert [arena.take(k) for k in range(CLASSES)] == [-1] * CLASSES
    assert arena.view.ctl["bump_ptr"][0] == arena.geometry.offsets["heap_limit"]


def test_len_empty_full() -> None:
    arena = Arena()
    for _ in range(3):
        assert len(arena.places()) == PAGES
        page = arena.take(4)
        assert page == 0 and arena.places() == []
        arena.give(page, 4)
        assert arena.free() == [(0, PAGES)]


@pytest.mark.parametrize("pages, size_class", [(1, 0), (2, 1), (3, 2), (5, 3), (16, 4), (17, -1), (1 << 40, -1)])
def test_class_of(pages: int, size_class: int) -> None:
    assert native(class_of)(Arena().at[0], pages) == size_class


@pytest.mark.parametrize("classes", [(1,), (2, 6), (1, 2, 5, 16), POWERS, None])
def test_the_class_of_every_number_of_pages(classes: tuple[int, ...] | None) -> None:
    arena = Arena(130, classes)
    sizes = [size for size in arena.geometry.class_pages if size]
    for pages in range(140):
        fitting = [k for k, size in enumerate(sizes) if size >= pages]
        within = [k for k, size in enumerate(sizes) if size <= pages]
        assert native(class_of)(arena.at[0], pages) == min(fitting, default=-1)
        assert native(class_within)(arena.at[0], pages) == max(within, default=-1)


def test_the_pages_of_every_mark() -> None:
    """Free and held of each class that there is; every other mark is nothing, or corrupt."""
    for classes in (POWERS, None):
        arena = Arena(130, classes)
        sizes = [size for size in arena.geometry.class_pages if size]
        pages = {k + 1: size for k, size in enumerate(sizes)} | {k + 25: size for k, size in enumerate(sizes)}
        assert [native(pages_marked)(arena.at[0], mark) for mark in range(64)] == [pages.get(m, 0) for m in range(64)]


def test_a_larger_extent_is_split() -> None:
    arena = Arena()
    arena.give(arena.take(4), 4)
    assert arena.take(0) == 0
    assert arena.free() == [(1, 8), (9, 4), (13, 2), (15, 1)]
    assert arena.take(1) == 13, "what fits is taken first"
    assert arena.take(1) == 9
    assert arena.free() == [(1, 8), (11, 2), (15, 1)]


def test_classes_that_are_not_powers_of_two_are_split() -> None:
    arena = Arena(36, size_classes=(1, 3, 12, 36))
    arena.give(arena.take(3), 3)
    assert arena.take(0) == 0
    assert [size for _, size in arena.free()] == [12, 12, 3, 3, 3, 1, 1]
    assert sorted(arena.places()) == list(range(1, 36))


def test_what_is_too_small_after_many_splits_lies_together() -> None:
    """Three of three pages out of eleven leave two, at the end, although no extent was cut where three ends."""
    arena = Arena(11, size_classes=(1, 2, 3, 8, 11))
    arena.give(arena.take(4), 4)
    assert [arena.take(2) for _ in range(3)] == [0, 3, 6]
    assert arena.free() == [(9, 2)]
    arena = Arena(12, size_classes=(1, 2, 3, 4, 5, 8, 12))
    arena.give(arena.take(6), 6)
    assert [arena.take(2) for _ in range(4)] == [0, 3, 6, -1]
    assert arena.free() == [(9, 2), (11, 1)], "three neighbours: a host can join them"


@pytest.mark.parametrize("have", range(SIZE_CLASSES))
def test_every_split_of_the_default_classes(have: int) -> None:
    """The rest is whole, consists of three extents at most, and the largest comes first."""
    for want in range(have):
        arena = Arena(128, None)
        sizes = arena.geometry.class_pages
        arena.give(arena.take(have), have)
        assert arena.take(want) == 0
        free = arena.free()
        assert sorted(arena.places()) == list(range(sizes[want], 128)) and len(free) <= 3
        assert [size for _, size in free] == sorted((size for _, size in free), reverse=True)
        assert free[0][1] == max(size for size in sizes if size <= sizes[have] - sizes[want])


def test_a_split_comes_before_fresh_pages() -> None:
    arena = Arena()
    arena.give(arena.take(2), 2)
    assert arena.take(0) == 0
    assert arena.bumped() == 4


def test_the_rest_is_taken_once() -> None:
    arena = Arena()
    arena.take(2)
    assert native(bump_rest)(*arena.at) == 4
    assert arena.bumped() == PAGES
    assert native(bump_rest)(*arena.at) == -1


@pytest.mark.parametrize("word_of_bump", [0, 1, -PAGE, 1 << 62])
def test_a_corrupt_bump_pointer_gives_nothing(word_of_bump: int) -> None:
    arena = Arena()
    arena.view.ctl["bump_ptr"].view(np.int64)[0] = word_of_bump
    assert arena.take(0) == -1
    assert native(bump_rest)(*arena.at) == -1
    assert arena.view.ctl["bump_ptr"].view(np.int64)[0] == word_of_bump


@pytest.mark.parametrize("machine", [native, yielding])
def test_everybody_bumps_at_once(machine: Any) -> None:
    pages, rounds = 4096, 4096
    arena = Arena(pages, shards=64)
    classes = (0, 1, 2, 0)
    notes = [aligned_words(rounds) for _ in classes]
    calls = [
        partial(machine(bump_all), *arena.at, size_class, address(note), rounds)
        for size_class, note in zip(classes, notes, strict=True)
    ]
    got = in_threads(*calls)
    spans = [
        page + i
        for k, note, count in zip(classes, notes, got, strict=True)
        for page in note[:count].tolist()
        for i in range(1 << k)
    ]
    assert sorted(spans) == list(range(pages)), "each page once, to the very end, and none in a list"
    assert arena.free() == []
    assert pages <= arena.bumped() < pages + len(classes), "each thread adds past the end at most once"


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("machine, threads, rounds", [(native, 4, ROUNDS), (yielding, 2, 2000), (yielding, 4, 2000)])
def test_mpmc(machine: Any, threads: int, rounds: int, shards: int) -> None:
    arena = Arena(shards=shards)
    marks = aligned_words(PAGES)
    held = [aligned_words(2 * HELD) for _ in range(threads)]
    calls = [
        partial(machine(churn), *arena.at, address(marks), address(mine), HELD, CLASSES, seed, rounds)
        for seed, mine in enumerate(held, 1)
    ]
    results = in_threads(*calls)
    assert [wrong for _, _, wrong in results] == [0] * threads
    assert all(taken > rounds // 100 for taken, _, _ in results)
    assert sum(refused for _, refused, _ in results) > 0, "the arena ran full"
    assert not marks.any()
    assert arena.places() == list(range(PAGES)), "each page is back, once"


def test_lists_that_lie_apart_are_all_asked() -> None:
    """A producer takes first what is in its own list, then what is in each other one; a host finds all of it too."""
    pages = 256
    arena = Arena(pages, (1,), shards=4)
    assert [arena.take(0) for _ in range(pages)] == [*range(pages)]
    for page in range(pages):
        arena.give(page, 0)
    assert np.flatnonzero(arena.view.ctl["free_head0"][0] & 0xFFFFFFFF).tolist() == [0, 16, 32, 48]
    assert arena.places() == list(range(pages))
    taken = [int(native(take)(*arena.at, 0, 32, 0)) for _ in range(pages + 1)]
    assert sorted(taken) == [-1, *range(pages)]
    assert taken[-1] == -1
    assert {page & 48 for page in taken[: pages // 4]} == {32}, "its own list first"


def home_on(processor: int, world: int, key_hash: int) -> int:
    """`home_for`, called on a processor."""
    os.sched_setaffinity(0, {processor})  # only of this thread
    return int(native(home_for)(world, key_hash))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no thread to a processor")
def test_a_processor_has_a_list_of_its_own() -> None:
    apart, beside = Arena(256, (1,), shards=4), Arena(255, (1,), shards=4)
    processors = sorted(os.sched_getaffinity(0))
    homes = in_threads(*(partial(home_on, each, apart.at[0], 5) for each in processors))
    assert homes == [16 * each for each in processors]
    assert in_threads(partial(home_on, processors[0], beside.at[0], 5)) == [5], "lists on one line: by the key"


def test_all_classes() -> None:
    """The marks of the largest class use all bits, also the sign."""
    arena = Arena(256, None)
    assert arena.geometry.n_classes == SIZE_CLASSES
    assert [arena.take(23), arena.take(23), arena.take(23)] == [0, 128, -1]
    arena.give(0, 23)
    assert [arena.take(0), arena.take(22), arena.take(10)] == [0, 1, 113]
    assert arena.free() == [(127, 1)]
    assert native(is_held)(*arena.at, 1, 22, 0) and not native(is_held)(*arena.at, 1, 21, 0)

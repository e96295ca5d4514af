"""Wrong words in a segment: each operation ends, with what was stored, a miss or an error, and nothing crashes."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import nanokv
from nanokv.check.machine.corruption import run
from nanokv.check.machine.corruption.case import content, run_case
from nanokv.check.machine.corruption.run import KINDS, run_corruption
from nanokv.check.report import CheckFailure
from nanokv.device.machines.base import free_chains
from nanokv.device.protocol.extent import bump, bump_rest, give, take
from nanokv.device.protocol.header import give_slot, kill, reserve, take_slot
from nanokv.device.protocol.ring import drain
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import MARK_SHIFT, RESERVED, unpack
from nanokv.device.segment.views import SegmentView
from nanokv.errors import NanoKVError, OutOfMemory, SegmentCorrupt
from nanokv.host_poller.poller import Poller
from nanokv.space.coalesce import join_free_extents
from tests.support import corruption_faults
from tests.support.faults import Calls, Limits
from tests.support.plain_world import PAGE, PlainWorld, address, aligned_words, native

PAGES = 16
HIGHEST, LOWEST = 2**63 - 1, -(2**63)


# --- the check itself -------------------------------------------------------------------------
@pytest.mark.timeout(1800)  # what is not compiled yet falls to the first test
@pytest.mark.parametrize(
    ("kind", "cases"),
    [(next(iter(KINDS)), 20), *(pytest.param(kind, 120, marks=pytest.mark.exhaustive) for kind in KINDS)],
)
def test_cases(kind: str, cases: int) -> None:
    (row,) = run_corruption(cases, 11, only=kind)
    assert row.held, row.failures
    assert row.tried == cases


def test_a_crash_is_reported_and_the_next_cases_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_serve", corruption_faults.crash)
    (row,) = run_corruption(2, 5, only="one wrong word")
    assert len(row.failures) == row.tried == 2
    assert "ended with -11 (corrupted a word, do_get; see it again" in row.failures[0]
    assert "run_corruption(1, 5, only='one wrong word', first=1)" in row.failures[1]


def test_a_hang_is_reported(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    monkeypatch.setattr(run, "_serve", corruption_faults.hang)
    limits(run, PATIENCE=2.0)
    (row,) = run_corruption(2, 5, only="one wrong word")
    assert len(row.failures) == 1 and row.tried == 2
    assert "hangs (do_put; see it again: run_corruption(1, 5, only='one wrong word', first=1))" in row.failures[0]


def test_what_a_case_finds_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_serve", corruption_faults.fail)
    (row,) = run_corruption(1, 5, only="one wrong word")
    assert row.failures == [
        "key k3 came back as other bytes (do_get; see it again: run_corruption(1, 5, only='one wrong word', first=0))"
    ]


def test_a_case_sees_wrong_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = nanokv.NanoKVCache.get

    def wrong(cache: nanokv.NanoKVCache, key: str, **options: Any) -> torch.Tensor:
        tensor = right(cache, key, **options)
        return tensor.view(torch.uint8).bitwise_xor(1).view(tensor.dtype)

    monkeypatch.setattr(nanokv.NanoKVCache, "get", wrong)
    with pytest.raises(CheckFailure, match="came back as"):
        for case in range(5):
            run_case(KINDS["one wrong word"], f"wrong/{case}", lambda operation: None)


def test_a_case_sees_an_exception_that_leaks(calls: Calls) -> None:
    calls.fail(nanokv.NanoKVCache, "stats", IndexError("an index of numpy's"))
    with pytest.raises(CheckFailure, match="do_stats: IndexError"):
        for case in range(20):
            run_case(KINDS["one wrong word"], f"leak/{case}", lambda operation: None)


def test_a_case_sees_a_poller_that_fails(calls: Calls) -> None:
    calls.fail(Poller, "step", OverflowError("a word of 64 bits"))
    with pytest.raises(CheckFailure, match="OverflowError"):
        run_case(KINDS["one wrong word"], "poller/1", lambda operation: None)


# --- pages ------------------------------------------------------------------------------------
class Arena:
    """One segment of 16 pages, and its functions natively."""

    def __init__(self) -> None:
        self.plain = PlainWorld(Geometry.plan(PAGES * PAGE, PAGE, 1, size_classes=(1, 2, 4, 8, 16), max_objects=6))
        self.geometry, self.view = self.plain.geometry, self.plain.views[0]
        self.at = self.plain.worlds[0], self.plain.bases[0]

    def take(self, size_class: int) -> int:
        return int(native(take)(*self.at, size_class, 0, 0))

    def give(self, page: int, size_class: int) -> None:
        native(give)(*self.at, page, size_class)

    def lead_to(self, page: int, size_class: int) -> None:
        """Let the head of a free list lead to a page."""
        self.view.ctl[f"free_head{size_class}"][0, 0] = page + 1

    @property
    def corrupt(self) -> int:
        return int(self.view.ctl["corrupt"][0])


@pytest.fixture
def arena() -> Arena:
    return Arena()


def test_a_list_that_leads_to_a_held_page_does_not_hand_it_out(arena: Arena) -> None:
    held = [arena.take(0) for _ in range(PAGES)]
    for page in held:
        arena.lead_to(page, 0)
        assert arena.take(0) == -1
    assert arena.corrupt == PAGES


def test_a_list_that_leads_into_a_free_extent_or_to_another_class_does_not_hand_it_out(arena: Arena) -> None:
    page = arena.take(4)
    arena.give(page, 4)
    arena.lead_to(page + 3, 0)
    arena.view.ctl["free_head4"][0, 0] = 0
    assert arena.take(0) == -1
    arena.lead_to(page, 1)
    assert arena.take(1) == -1
    assert arena.corrupt == 2


def test_a_link_to_itself_gives_its_page_once(arena: Arena) -> None:
    for page in [arena.take(0) for _ in range(PAGES)]:
        arena.give(page, 0)
    first = int(unpack("LIST", "node", arena.view.ctl["free_head0"][0, 0])) - 1
    arena.view.page_links[first] = arena.view.page_links[first] & ~np.uint64(0xFFFFFFFF) | np.uint64(first + 1)
    taken = [page for page in (arena.take(0) for _ in range(PAGES)) if page >= 0]
    assert taken[0] == first
    assert len(set(taken)) == len(taken), "the link of a held page leads to another one, which may be free"


@pytest.mark.parametrize("back", [1, 3, PAGES])
def test_a_bump_pointer_that_went_back_hands_out_nothing_twice(arena: Arena, back: int) -> None:
    used = [arena.take(2) for _ in range(3)]  # twelve pages
    assert used == [0, 4, 8]
    arena.view.ctl["bump_ptr"] -= np.uint64(min(back, 12) * PAGE)
    got = [page for page in (native(bump)(*arena.at, 0) for _ in range(PAGES)) if page >= 0]
    assert set(got) <= {12, 13, 14, 15}
    arena.view.ctl["bump_ptr"] = arena.geometry.offsets["heap_base"]
    assert native(bump_rest)(*arena.at) in (-1, max(got) + 1 if got else 12)


@pytest.mark.parametrize("word", [HIGHEST, HIGHEST - PAGE + 1, LOWEST, -1, 0])
def test_a_bump_pointer_at_the_end_of_all_words(arena: Arena, word: int) -> None:
    arena.view.ctl["bump_ptr"].view(np.int64)[0] = word
    assert [arena.take(k) for k in range(5)] == [-1] * 5
    assert native(bump_rest)(*arena.at) == -1


def test_a_chain_of_links_ends_where_it_cannot_be_right() -> None:
    geometry = Geometry.plan(8 * PAGE, PAGE, 1)
    free = 1 << MARK_SHIFT.value

    def chain(*links: int, size_class: int = 0) -> list[int]:
        words = np.array(links + (0,) * (8 - len(links)), np.uint64)
        return free_chains(geometry, words, {size_class: np.array([0])})[0].tolist()

    assert chain(free | 3, 0, free) == [0, 2]
    assert chain(free | 9) == [0], "out of the arena"
    assert chain(free | 2, free | 1) == [0, 1], "a cycle"
    assert chain(free | 2, 5) == [0], "a page that is not free"
    assert chain(free | 8, *[free] * 7, size_class=3) == [], "of another class"
    assert chain(4 << MARK_SHIFT.value, size_class=3) == [0]
    assert chain(12 << MARK_SHIFT.value, size_class=11) == [], "there is no such class"


# --- header slots -----------------------------------------------------------------------------
def test_a_list_that_leads_to_a_used_slot_does_not_hand_it_out(arena: Arena) -> None:
    slot, epoch = native(take_slot)(*arena.at, 0)
    native(reserve)(*arena.at, slot, epoch, 1, 2, 0)
    arena.view.ctl["hdr_free"][0, 0] = slot + 1
    assert native(take_slot)(*arena.at, 0)[0] == slot + 1, "the next one that was never used"
    arena.view.ctl["hdr_head"] = 0
    assert native(take_slot)(*arena.at, 0)[0] == -1
    assert arena.corrupt == 2


def test_a_slot_that_holds_pages_is_not_handed_out(arena: Arena) -> None:
    slot, epoch = native(take_slot)(*arena.at, 0)
    native(reserve)(*arena.at, slot, epoch, 1, 2, 0)
    header = arena.at[1] + arena.geometry.offsets["hdr_base"] + slot * arena.view.headers.itemsize
    native(kill)(header, RESERVED.value, epoch)
    arena.view.headers["n_pages"][slot] = 1
    native(give_slot)(*arena.at, slot)
    assert native(take_slot)(*arena.at, 0)[0] != slot


# --- the ring ---------------------------------------------------------------------------------
@pytest.mark.parametrize("tail", [0, 5, 1 << 40, HIGHEST, LOWEST, -1])
@pytest.mark.parametrize("head", [0, 5, 1 << 40, HIGHEST, LOWEST, -1])
def test_drain_ends_whatever_the_tickets_say(arena: Arena, head: int, tail: int) -> None:
    arena.view.ctl["ann_head"].view(np.int64)[0] = head
    out = aligned_words(4096)
    taken, looked, hole = native(drain)(arena.at[0], 0, tail, address(out), 4096)
    assert taken == 0
    assert 0 <= hole <= looked == max(head, 0)


# --- objects ----------------------------------------------------------------------------------
@pytest.fixture
def cache() -> Iterator[nanokv.NanoKVCache]:
    """One rank whose poller's thread is stopped: nothing changes by itself."""
    (one,) = nanokv.local_world(1, PAGES * 256, page_bytes=256, max_objects=8, evict=False)
    one.engine.poller.stop()
    yield one
    one.close()


def view_of(cache: nanokv.NanoKVCache) -> SegmentView:
    raw = cache.engine.heap.host_view(cache.rank)
    assert raw is not None
    return SegmentView(raw, cache.engine.geometry)


def slot_of(cache: nanokv.NanoKVCache, key: str) -> int:
    return cache.engine.machine.lookup(cache.digest(key)).place.slot


def test_a_header_that_names_the_pages_of_another_object_is_corrupt_and_frees_nothing(
    cache: nanokv.NanoKVCache,
) -> None:
    mine, theirs = torch.full((300,), 1, dtype=torch.uint8), torch.full((300,), 2, dtype=torch.uint8)
    cache.put("mine", mine)
    cache.put("theirs", theirs)
    headers = view_of(cache).headers
    headers["payload_base"][slot_of(cache, "mine")] = headers["payload_base"][slot_of(cache, "theirs")]
    for read in (cache.get, cache.pin, cache.get_location):
        with pytest.raises(SegmentCorrupt, match="mine"):
            read("mine")
    cache.remove("mine")
    for n in range(3):
        cache.put(f"new{n}", torch.full((300,), 10 + n, dtype=torch.uint8))
    assert torch.equal(cache.get("theirs"), theirs), "its pages were not freed with the other header"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload_base", 8),
        ("payload_base", -256),
        ("payload_base", 1 << 62),
        ("payload_base", 256),
        ("bytes_total", 1),
        ("bytes_total", 513),
        ("bytes_total", HIGHEST),
        ("n_pages", 1),
        ("n_pages", 3),
        ("n_pages", 2**32 - 1),
    ],
)
def test_a_header_of_which_one_word_is_wrong(cache: nanokv.NanoKVCache, field: str, value: int) -> None:
    cache.put("before", torch.full((256,), 9, dtype=torch.uint8))
    cache.put("k", torch.full((400,), 1, dtype=torch.uint8))
    cache.put("after", torch.full((256,), 7, dtype=torch.uint8))
    word = view_of(cache).headers[field][slot_of(cache, "k") : slot_of(cache, "k") + 1]
    word[0] = (int(word[0]) + value if field == "payload_base" and abs(value) < 1 << 20 else value) % 2 ** (
        8 * word.itemsize
    )
    for read in (cache.get, cache.pin):
        with pytest.raises(SegmentCorrupt, match="'k'"):
            read("k")
    with pytest.raises(SegmentCorrupt):
        cache.get("k", dst=torch.empty(400, dtype=torch.uint8))
    cache.stats()
    cache.engine.poller.sweeper.step(1.0)
    cache.remove("k")
    assert set(cache.get("before").tolist()) == {9} and set(cache.get("after").tolist()) == {7}


def test_a_huge_shape_of_nothing_is_refused(cache: nanokv.NanoKVCache) -> None:
    cache.put("empty", torch.empty(0, 3))
    view_of(cache).descriptors["dims"][slot_of(cache, "empty"), :2] = (0, HIGHEST)
    for read in (cache.get, cache.pin):
        with pytest.raises(SegmentCorrupt):
            read("empty")


def test_joining_lists_that_lead_anywhere(cache: nanokv.NanoKVCache) -> None:
    for n in range(6):
        cache.put(f"k{n}", torch.full((256,), n, dtype=torch.uint8))
    cache.put("held", torch.full((512,), 99, dtype=torch.uint8))
    for n in range(6):
        cache.remove(f"k{n}")
    view = view_of(cache)
    held = (
        int(view.headers["payload_base"][slot_of(cache, "held")]) - cache.engine.geometry.offsets["heap_base"]
    ) // 256
    dice = random.Random(1)
    for _ in range(100):
        page = dice.choice([page for page in range(PAGES) if page != held])
        view.page_links[page] = view.page_links[page] & ~np.uint64(0xFFFFFFFF) | np.uint64(dice.getrandbits(32))
        join_free_extents(cache.engine.machine, 0)
        with pytest.raises(OutOfMemory):  # it would need the pages of `held`
            cache.put("large", torch.zeros(PAGES * 256, dtype=torch.uint8))
        assert set(cache.get("held").tolist()) == {99}


def test_the_audit_gives_nothing_back_while_an_object_is_corrupt(cache: nanokv.NanoKVCache) -> None:
    cache.put("k", torch.full((256,), 1, dtype=torch.uint8))
    pages = (view_of(cache).ctl["bump_ptr"][0], view_of(cache).ctl["free_head0"][0, 0])
    view_of(cache).headers["payload_base"][slot_of(cache, "k")] = 1 << 40
    sweeper = cache.engine.poller.sweeper
    sweeper._audit.start()
    for now in range(10):
        sweeper.step(float(now))
    assert sweeper.counts.leaked_pages == 0
    assert (view_of(cache).ctl["bump_ptr"][0], view_of(cache).ctl["free_head0"][0, 0]) == pages


@pytest.mark.parametrize("word", ["mode", "rank", "n_pages", "hdr_base", "class_pages", "world_size", "magic"])
def test_identity_and_geometry_are_not_read_again(cache: nanokv.NanoKVCache, word: str) -> None:
    cache.put("k", torch.arange(100, dtype=torch.uint8))
    view_of(cache).ctl[word] = 2**31 + 5
    assert cache.get("k").tolist() == list(range(100))
    assert cache.stats()["ready"] == 1
    cache.engine.poller.step(1.0)
    cache.put("more", torch.arange(100, dtype=torch.uint8))


@pytest.mark.parametrize(
    "word", ["ann_tail", "ann_head", "hdr_head", "bump_ptr", "joining", "grace_phase", "clock_hand"]
)
@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**63 - 1])
def test_a_poller_that_begins_with_wild_words(word: str, value: int) -> None:
    (one,) = nanokv.local_world(1, PAGES * 256, page_bytes=256)
    one.engine.poller.stop()
    view_of(one).ctl[word] = value
    from nanokv.host_poller.poller import Poller

    poller = Poller(one.engine.machine, one.engine.heap, write_timeout=1.0, reclaims=True)
    for now in range(4):
        poller.step(float(now))
    one.close()


def test_a_pin_of_an_object_that_the_master_still_knows_and_whose_header_is_gone_ends() -> None:
    (one,) = nanokv.local_world(1, PAGES * 256, page_bytes=256, alloc="host")
    one.put("k", torch.arange(9))
    view_of(one).headers["state"][one.engine.allocation.locate(one.digest("k")).place.slot] = 77
    with pytest.raises(NanoKVError):
        one.pin("k")
    one.close()


def test_sizes_that_cannot_be_are_refused_before_anything_is_taken(cache: nanokv.NanoKVCache) -> None:
    for nbytes in (HIGHEST, HIGHEST - 1, 2**62):
        with pytest.raises(NanoKVError):
            cache.open_for_write("k", nbytes)
    assert cache.stats()["unfinished"] == 0


def test_what_is_stored_under_a_key_does_not_change() -> None:
    before = content(5)
    content.cache_clear()
    assert torch.equal(content(5), before)

"""The seam of the protocol: the same functions over a machine of a few lines of plain Python.

A model checker relies on this: it gives every function a vocabulary of its own. Here the words lie in a dict, and the
results are compared with native code.
"""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from nanokv.device.machines.native_code import native_function
from nanokv.device.memory.retarget import retarget
from nanokv.device.memory.triton import GOLDEN, MIX_ONE, MIX_TWO, VOCABULARY
from nanokv.device.protocol import extent, freelist, header, shards
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ACTIVITY, FREE_HEAD, FREE_HEAD_STRIDE, OBJ_HEADER, RESERVED, WORD
from nanokv.device.sim.world import TableAddress
from tests.support.plain_world import PAGE, PlainWorld

TABLE, SEGMENT = 1 << 20, 1 << 30  #: the addresses of the dict machine's world table and segment
GEOMETRY = Geometry.plan(16 * PAGE, PAGE, 1, max_objects=5, shards=2)
RETRIES = GEOMETRY.offsets["activity_base"] + ACTIVITY.offsets["retries"]
LAST_CLASS = 4
WHOLE = (1 << 64) - 1


def signed(value: int) -> int:
    """A value as a signed 64-bit word."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class DictMachine:
    """Words in a dict. Counts the operations on them."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.calls: dict[str, int] = {}
        self.orders: set[str] = set()

    def _note(self, what: str, sem: str) -> None:
        self.calls[what] = self.calls.get(what, 0) + 1
        self.orders.add(sem)

    def vocabulary(self) -> dict[str, Callable[..., Any]]:
        names = {name: getattr(self, name) for name in ("load64", "store64", "cas64", "add64", "xchg64", "copy_bytes")}
        names |= {"look_lines": self.look_lines, "look_rows": self.look_rows, "count_up": self.count_up}
        names |= {"count_below": self.count_below, "near": lambda number, step: number}
        sums = {"mixed": self.mixed, "checksum_bytes": self.checksum_bytes}
        plain = {"word": int, "select": lambda condition, yes, no: yes if condition else no}
        return names | sums | plain | {"table64": self.words.__getitem__, "open_world": lambda table: table}

    def load64(self, address: int, sem: str) -> int:
        self._note("load", sem)
        return self.words[address]

    def count_below(self, address: int, count: int, value: int) -> int:
        return sum(self.words[address + WORD * i] < value for i in range(count))

    def look_lines(self, one: int, two: int, count: int, mask: int, want: int) -> tuple[int, int]:
        seen = [self.load64(line + WORD * i, "relaxed") for line in (one, two) for i in range(count)]
        same = sum(1 << i for i, word in enumerate(seen) if word and word & mask == want)
        return same, sum(1 << i for i, word in enumerate(seen) if not word)

    def look_rows(
        self, address: int, rows: int, columns: int, start: int, after: int, mask: int, high: int, wide: int
    ) -> int:
        assert columns < wide
        for place in range(after + 1, rows * wide):
            row, turned = divmod(place, wide)
            at = address + WORD * (row * wide + ((start + turned) & columns))
            if turned & columns == turned and self.load64(at, "relaxed") & mask:
                return place
        return -1

    def count_up(self, address: int, count: int, shift: int, mask: int, keep: int) -> None:
        for at in range(address, address + WORD * count, WORD):
            old = self.load64(at, "relaxed")
            self.store64(at, ((((old >> shift) + 1) & mask) << shift) | (old & keep), "relaxed")

    def store64(self, address: int, value: int, sem: str) -> None:
        self._note("store", sem)
        assert address in self.words, f"{address - SEGMENT:#x} is no word of the segment"
        self.words[address] = signed(value)

    def cas64(self, address: int, expected: int, new: int, sem: str) -> int:
        self._note("cas", sem)
        old = self.words[address]
        if old == expected:
            self.words[address] = signed(new)
        return old

    def add64(self, address: int, value: int, sem: str) -> int:
        self._note("add", sem)
        old = self.words[address]
        self.words[address] = signed(old + value)
        return old

    def xchg64(self, address: int, value: int, sem: str) -> int:
        self._note("xchg", sem)
        old, self.words[address] = self.words[address], signed(value)
        return old

    def copy_bytes(self, dst: int, src: int, nbytes: int) -> None:
        for at in range(0, nbytes, WORD):
            self.words[dst + at] = self.words[src + at]

    def mixed(self, value: int, place: int) -> int:
        x = (value + (place + 1) * GOLDEN.value) & WHOLE
        x = ((x ^ (x >> 30)) * MIX_ONE.value) & WHOLE
        x = ((x ^ (x >> 27)) * MIX_TWO.value) & WHOLE
        return signed(x ^ (x >> 31))

    def checksum_bytes(self, address: int, nbytes: int, first: int) -> int:
        whole = [self.mixed(self.words[address + at], first + at // WORD) for at in range(0, nbytes, WORD)]
        return signed(sum(whole))


class Both:
    """One segment twice: in a dict, and in memory for native code."""

    def __init__(self) -> None:
        self.native = PlainWorld(GEOMETRY)
        self.machine = DictMachine()
        table = GEOMETRY.world_table(0, 1, [SEGMENT]).tolist()
        self.world = TableAddress(TABLE, table)
        for at, value in enumerate(table):
            self.machine.words[TABLE + at * WORD] = value
        for at, value in enumerate(self.native.memory[0].tolist()):
            self.machine.words[SEGMENT + at * WORD] = value
        self.done: dict[Any, Any] = {}

    def call(self, function: Any, *args: int | Key) -> Any:
        """Call a function that takes (world, seg, ...) on both; returns its answer, which must be the same."""
        plain = retarget(function, self.machine.vocabulary(), done=self.done)
        here = plain(self.world, SEGMENT, *args)
        words = [word for each in args for word in (each if isinstance(each, Key) else [each])]
        there = compiled(function, 2 + len(words))(self.native.worlds[0], self.native.bases[0], *words)
        assert here == there, f"{function.__name__}{args}"
        return here

    def call_list(self, function: Any, head: int, links: int, *args: int) -> Any:
        """Call a function that takes (head, links, ..., retries), given as offsets, on both."""
        plain = retarget(function, self.machine.vocabulary(), done=self.done)
        here = plain(SEGMENT + head, SEGMENT + links, *args, SEGMENT + RETRIES)
        base = self.native.bases[0]
        there = compiled(function, 3 + len(args))(base + head, base + links, *args, base + RETRIES)
        assert here == there, f"{function.__name__}{args}"
        return here

    def call_header(self, function: Any, slot: int, *args: int) -> Any:
        """Call a function that takes (header, ...) on both."""
        at = GEOMETRY.offsets["hdr_base"] + slot * OBJ_HEADER.size
        here = retarget(function, self.machine.vocabulary(), done=self.done)(SEGMENT + at, *args)
        there = compiled(function, 1 + len(args))(self.native.bases[0] + at, *args)
        assert here == there, f"{function.__name__}{args}"
        return here

    def assert_same(self) -> None:
        words = [self.machine.words[SEGMENT + at * WORD] for at in range(len(self.native.memory[0]))]
        assert np.array_equal(np.array(words, np.int64), self.native.memory[0])


@cache
def compiled(function: Any, arguments: int) -> Any:
    return native_function(function)


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.mark.parametrize("seed", range(5))
def test_free_lists_are_the_same(both: Both, seed: int) -> None:
    rng = random.Random(seed)
    head, links = FREE_HEAD.value, GEOMETRY.offsets["links_base"]
    outside = list(range(GEOMETRY.n_pages))
    for _ in range(200):
        if outside and rng.random() < 0.5:
            node = outside.pop(rng.randrange(len(outside)))
            both.call_list(freelist.push, head, links, node)
        else:
            node = both.call_list(freelist.pop, head, links, GEOMETRY.n_pages)
            if node >= 0:
                outside.append(node)
    both.assert_same()


@pytest.mark.parametrize("seed", range(5))
def test_extents_are_the_same(both: Both, seed: int) -> None:
    rng = random.Random(seed)
    held: list[tuple[int, int]] = []
    refused = 0
    for _ in range(200):
        if held and rng.random() < 0.5:
            both.call(extent.give, *held.pop(rng.randrange(len(held))))
        else:
            size_class = rng.randint(0, LAST_CLASS)
            page = both.call(extent.take, size_class, rng.randrange(-3, 4), 0)
            refused += page < 0
            if page >= 0:
                held.append((page, size_class))
    assert refused
    both.assert_same()


def test_header_slots_are_the_same(both: Both) -> None:
    for lap in range(3):
        slots = [both.call(header.take_slot, lap)[0] for _ in range(GEOMETRY.hdr_count + 1)]
        assert sorted(slots) == [-1, *range(GEOMETRY.hdr_count)]
        for slot in slots[:-1]:
            both.call(header.reserve, slot, lap + 1, Key(lap, -lap), 1)
        for slot in slots[:-1]:
            both.call_header(header.kill, slot, RESERVED.value, lap + 1)
            both.call(header.give_slot, slot)
    both.assert_same()


def test_every_access_goes_through_the_vocabulary(both: Both) -> None:
    both.call(extent.take, 2, 0, 0)
    looks = "twenty empty lists, the bump pointer, whether its page was used; then three links are stamped, one is held"
    assert both.machine.calls == {"load": 26, "cas": 1, "store": 4}, looks
    assert both.machine.orders == {"acquire", "relaxed"}


def test_functions_are_rebuilt_once_and_shared() -> None:
    done: dict[Any, Any] = {}
    wrapped: list[str] = []

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped.append(function.__name__)
        return function

    vocabulary = DictMachine().vocabulary()
    retarget(extent.take, vocabulary, wrap, done)
    elsewhere = retarget(extent.take_elsewhere, vocabulary, wrap, done)
    bump = retarget(extent.bump, vocabulary, wrap, done)
    assert elsewhere.__globals__["bump"] is bump
    assert sorted(wrapped) == sorted(set(wrapped))
    lists = {"pop_linked", "pop_nodes", "push_marked"}
    assert {"take", "take_elsewhere", "carve", "give", "stamp", "bump"} | lists <= set(wrapped)
    assert set(vocabulary) == set(VOCABULARY)


def test_constants_become_numbers_and_the_original_is_untouched() -> None:
    both = Both()
    plain = retarget(shards.extent_list, both.machine.vocabulary())
    assert plain(both.world, 0, 2, 3) == FREE_HEAD.value + 2 * FREE_HEAD_STRIDE.value + WORD
    assert plain.__globals__["FREE_HEAD"] == FREE_HEAD.value
    assert shards.extent_list.fn.__globals__["FREE_HEAD"] is FREE_HEAD

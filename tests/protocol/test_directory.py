"""The directory, natively compiled: of many ranks that claim a key at once one wins; a key is found while held."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64, load64, store64, word
from nanokv.device.protocol.claim import claim, erase
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.header import kill, next_epoch, reserve, state_word
from nanokv.device.protocol.status import DUPLICATE, NOT_READY, OK, Status
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import (
    EPOCH_SHIFT,
    H_STATE,
    RESERVED,
    WORD_BYTES,
    unpack,
)
from nanokv.device.segment.world_table import World, header_at
from tests.support.plain_world import PAGE, PlainWorld, address, aligned_words, in_threads, native, yielding

KEYS = 2000
MIX = 30_000
LOCKS = 4


@triton.jit
def claim_all(world: World, owner: tl.int64, first: tl.int64, keys: tl.int64, count: tl.int64, out: tl.int64) -> Any:
    """Claim each key (two words at `keys`) with a slot of its own, and note the answers. Returns the number of OK."""
    wins = word(0)
    i = word(0)
    while i < count:
        at = keys + 2 * i * WORD_BYTES
        key = Key(load64(at, "relaxed"), load64(at + WORD_BYTES, "relaxed"))
        status = claim(world, owner, first + i, word(1), key)
        store64(out + i * WORD_BYTES, status, "relaxed")
        if status == OK:
            wins += 1
        i += 1
    return wins


@triton.jit
def hold_and_let_go(
    world: World,
    seg: tl.int64,
    owner: tl.int64,
    slot: tl.int64,
    keys: tl.int64,
    holders: tl.int64,
    rounds: tl.int64,
) -> Any:
    """Use claims as locks: a thread that claims a key holds it alone until it erases it, and finds it all the while.

    Returns (times held, times that another thread held it too, times that it was not found, impossible answers).
    """
    held = word(0)
    shared = word(0)
    unfound = word(0)
    odd = word(0)
    i = word(0)
    while i < rounds:
        which = (i * 7 + slot) % 4
        at = keys + 2 * which * WORD_BYTES
        key = Key(load64(at, "relaxed"), load64(at + WORD_BYTES, "relaxed"))
        epoch = next_epoch(load64(header_at(world, seg, slot) + H_STATE, "relaxed"))
        reserve(world, seg, slot, epoch, key, word(0))
        status = claim(world, owner, slot, epoch, key)
        if status == OK:
            held += 1
            if cas64(holders + which * WORD_BYTES, 0, 1, "acq_rel") != 0:
                shared += 1
            answer, entry = find(world, key)
            if (answer != NOT_READY) | (((entry >> 24) & 0x3FFFFFF) != slot):
                unfound += 1
            store64(holders + which * WORD_BYTES, word(0), "release")
        elif status != DUPLICATE:
            odd += 1
        if kill(header_at(world, seg, slot), RESERVED, epoch) != state_word(RESERVED, epoch):
            odd += 1
        if status == OK:
            erase(world, owner, slot, epoch, key)
        i += 1
    return held, shared, unfound, odd


class Directory:
    """A world whose header slots are RESERVED, in epoch 1, with the keys that a test gives them."""

    def __init__(self, slots: int, ranks: int = 1) -> None:
        self.plain = PlainWorld(Geometry.plan(PAGE, PAGE, ranks, max_objects=slots))
        self.world = self.plain.worlds[0]
        for view in self.plain.views:
            view.headers["epoch"] = 1

    def mark(self, owner: int, slot: int, key: tuple[int, int]) -> None:
        header = self.plain.views[owner].headers[slot : slot + 1]
        header["key_hash"].view(np.int64)[0] = key[0]
        header["key_check"].view(np.int64)[0] = key[1] ^ 1 << EPOCH_SHIFT.value

    def claim(self, slot: int, key: tuple[int, int], owner: int = 0, epoch: int = 1) -> int:
        self.mark(owner, slot, key)
        return int(native(claim)(self.world, owner, slot, epoch, *key))

    def find(self, key: tuple[int, int]) -> tuple[int, int]:
        """(status, slot)."""
        status, entry = native(find)(self.world, *key)
        return status, int(unpack("ENTRY", "header", entry))

    def erase(self, slot: int, key: tuple[int, int], owner: int = 0, epoch: int = 1) -> None:
        native(erase)(self.world, owner, slot, epoch, *key)

    def entries(self) -> int:
        return sum(int(np.count_nonzero(view.directory)) for view in self.plain.views)


def keys_of(seed: int, count: int) -> Any:
    """int64 [count, 2]: random digests."""
    info = np.iinfo(np.int64)
    return np.random.default_rng(seed).integers(info.min, info.max, (count, 2), np.int64)


def test_smoke() -> None:
    directory = Directory(8)
    assert directory.find((5, -7)) == (Status.MISS, 0)
    assert directory.claim(3, (5, -7)) == Status.OK
    assert directory.find((5, -7)) == (Status.NOT_READY, 3)
    assert directory.claim(4, (5, -7)) == Status.DUPLICATE
    assert directory.claim(4, (5, -8)) == Status.OK
    directory.erase(3, (5, -7))
    assert directory.find((5, -7))[0] == Status.MISS
    assert directory.claim(5, (5, -7)) == Status.OK
    assert directory.entries() == 2


def test_the_keys_of_one_bucket_pair_are_told_apart() -> None:
    directory = Directory(64)
    for slot in range(16):
        assert directory.claim(slot, (0, slot << 12)) == Status.OK, "same buckets, same tag, another key"
    assert directory.find((0, 9 << 12)) == (Status.NOT_READY, 9)
    assert directory.find((0, 99 << 12))[0] == Status.MISS


def test_capacity() -> None:
    directory = Directory(64)
    assert [directory.claim(slot, (0, slot)) for slot in range(17)] == [Status.OK] * 16 + [Status.NO_ENTRY]
    assert directory.entries() == 16
    directory.erase(7, (0, 7))
    assert directory.claim(17, (0, 17)) == Status.OK


def test_len_empty_full() -> None:
    directory = Directory(4096)
    keys = keys_of(3, 4096).tolist()
    assert {directory.claim(slot, (one, two)) for slot, (one, two) in enumerate(keys)} == {Status.OK}, (
        "a directory at half load has room for every key"
    )
    assert directory.entries() == 4096
    for slot, (one, two) in enumerate(keys):
        assert directory.find((one, two)) == (Status.NOT_READY, slot)
        directory.erase(slot, (one, two))
    assert directory.entries() == 0


def test_every_rank_is_home_to_some_keys() -> None:
    directory = Directory(300, ranks=3)
    for slot, (one, two) in enumerate(keys_of(4, 300).tolist()):
        assert directory.claim(slot, (one, two), owner=slot % 3) == Status.OK
        assert directory.find((one, two)) == (Status.NOT_READY, slot)
    counts = [np.count_nonzero(view.directory) for view in directory.plain.views]
    assert min(counts) > 60


def test_an_entry_of_another_epoch_or_owner_is_left_alone() -> None:
    directory = Directory(8, ranks=2)
    assert directory.claim(3, (5, 6), owner=1) == Status.OK
    directory.erase(3, (5, 6), owner=1, epoch=2)
    directory.erase(3, (5, 6), owner=0)
    directory.erase(4, (5, 6), owner=1)
    assert directory.find((5, 6)) == (Status.NOT_READY, 3)


@pytest.mark.parametrize("machine, threads, rounds", [(native, 2, 6), (native, 4, 6), (yielding, 3, 1)])
def test_one_of_many_claims_wins(machine: Any, threads: int, rounds: int) -> None:
    for number in range(rounds):
        directory = Directory(threads * KEYS)
        keys = keys_of(number, KEYS)
        headers = directory.plain.views[0].headers
        headers["key_hash"] = np.tile(keys[:, 0].view(np.uint64), threads)[: len(headers)]
        headers["key_check"] = np.tile((keys[:, 1] ^ 1 << EPOCH_SHIFT.value).view(np.uint64), threads)[: len(headers)]
        answers = [aligned_words(KEYS) for _ in range(threads)]
        calls = [
            partial(machine(claim_all), directory.world, 0, thread * KEYS, address(keys), KEYS, address(out))
            for thread, out in enumerate(answers)
        ]
        wins = in_threads(*calls)
        table = np.stack(answers)
        assert set(np.unique(table)) <= {Status.OK, Status.DUPLICATE}
        assert ((table == Status.OK).sum(axis=0) == 1).all()
        assert sum(wins) == KEYS and directory.entries() == KEYS
        assert (unpack("ENTRY", "phase", directory.plain.views[0].directory) % 2 == 0).all(), "none is TENTATIVE"
        winners = table.argmin(axis=0) * KEYS + np.arange(KEYS)
        assert [directory.find((one, two)) for one, two in keys[:50].tolist()] == [
            (Status.NOT_READY, slot) for slot in winners[:50].tolist()
        ]


@pytest.mark.parametrize("machine, rounds", [(native, MIX), (yielding, MIX // 20)])
@pytest.mark.parametrize("buckets", ["few", "many"])
def test_claims_erasures_and_looks_mixed(machine: Any, rounds: int, buckets: str) -> None:
    directory = Directory(64)
    keys = keys_of(9, LOCKS)
    if buckets == "few":
        keys[:, 0] = 0  # the same two buckets, so that entries of different keys meet
    holders = aligned_words(LOCKS)
    base = directory.plain.bases[0]
    call = machine(hold_and_let_go)
    calls = [
        partial(call, directory.world, base, 0, slot, address(keys), address(holders), rounds) for slot in range(3)
    ]
    results = in_threads(*calls)
    assert [(shared, unfound, odd) for _, shared, unfound, odd in results] == [(0, 0, 0)] * 3
    assert all(held > rounds // 20 for held, *_ in results)
    assert directory.entries() == 0

"""Calls about many keys, of which each would be a call from Python otherwise: a status each, as words at `out`."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, store64, word
from nanokv.device.native.ahead import foresee_key
from nanokv.device.native.calls import get_now, put_now
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import lookup
from nanokv.device.protocol.host_calls import remove_hinted
from nanokv.device.protocol.lease import touch
from nanokv.device.protocol.status import OK
from nanokv.device.segment.host_records import SLEEPS
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World

KEY_BYTES = tl.constexpr(2 * WORD_BYTES.value)
AHEAD = tl.constexpr(8)  #: objects: their keys are seen so early


@triton.jit
def foresee(world: World, key: tl.int64, claims: tl.constexpr) -> None:
    """`foresee_key` of the key at an address."""
    foresee_key(world, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"), claims)


@triton.jit
def find_each(world: World, keys: tl.int64, count: tl.int64, out: tl.int64) -> Any:
    """`find` for `count` keys, two words each."""
    i = word(0)
    while i < count:
        key = keys + i * KEY_BYTES
        if i + AHEAD < count:
            foresee(world, key + AHEAD * KEY_BYTES, False)
        status, _ = find(world, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"))
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def use_each(world: World, keys: tl.int64, count: tl.int64, now: tl.int64, out: tl.int64) -> Any:
    """`lookup` for `count` keys, two words each, and `touch` of what is found."""
    i = word(0)
    while i < count:
        key = keys + i * KEY_BYTES
        if i + AHEAD < count:
            foresee(world, key + AHEAD * KEY_BYTES, False)
        low, check = load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed")
        status, owner, slot, epoch, _, _ = lookup(world, low, check)
        if status == OK:
            touch(world, owner, slot, epoch, now)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def put_each(
    world: World, owners: tl.int64, keys: tl.int64, sources: tl.int64, count: tl.int64, what: tl.int64, out: tl.int64
) -> Any:
    """`put_now` of objects of one size, dtype and shape, until one finds the owner's poller asleep: how many."""
    i = word(0)
    status = word(0)
    while (i < count) & (status < SLEEPS):
        key = keys + i * KEY_BYTES
        if i + AHEAD < count:
            foresee(world, key + AHEAD * KEY_BYTES, True)
        owner, source = load64(owners + i * WORD_BYTES, "relaxed"), load64(sources + i * WORD_BYTES, "relaxed")
        status = put_now(world, owner, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"), source, what)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def get_each(world: World, keys: tl.int64, targets: tl.int64, count: tl.int64, what: tl.int64, out: tl.int64) -> Any:
    """`get_now` to `count` addresses, of objects of one size, dtype and shape."""
    i = word(0)
    while i < count:
        key, target = keys + i * KEY_BYTES, load64(targets + i * WORD_BYTES, "relaxed")
        if i + AHEAD < count:
            foresee(world, key + AHEAD * KEY_BYTES, False)
        status = get_now(world, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"), target, what)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def remove_each(world: World, keys: tl.int64, count: tl.int64, out: tl.int64) -> Any:
    """`remove` for `count` keys, until one finds a poller to be woken: (how many, `remove_hinted` of the last one)."""
    i = word(0)
    owner = word(0)
    sleeps = word(0)
    copies = word(0)
    while (i < count) & ((sleeps | copies) == 0):
        key = keys + i * KEY_BYTES
        low, check = load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed")
        status, owner, sleeps, copies = remove_hinted(world, low, check)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i, owner, sleeps, copies

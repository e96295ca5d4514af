"""Calls about many keys, of which each would be a call from Python otherwise: a status each, as words at `out`."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, store64, word
from nanokv.device.native.ahead import foresee_key
from nanokv.device.native.calls import get_now, put_now
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import lookup
from nanokv.device.protocol.host_calls import host_remove
from nanokv.device.protocol.lease import touch
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.host_records import SLEEPS
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World

KEY_BYTES = tl.constexpr(2 * WORD_BYTES.value)
AHEAD = tl.constexpr(8)  #: objects: their keys are seen so early


@triton.jit
def key_at(at: tl.int64) -> Any:
    """The key at an address: two words."""
    return Key(load64(at, "relaxed"), load64(at + WORD_BYTES, "relaxed"))


@triton.jit
def foresee(world: World, at: tl.int64, claims: tl.constexpr) -> None:
    """`foresee_key` of the key at an address."""
    foresee_key(world, key_at(at), claims)


@triton.jit
def find_each(world: World, keys: tl.int64, count: tl.int64, out: tl.int64) -> Any:
    """`find` for `count` keys, two words each."""
    i = word(0)
    while i < count:
        at = keys + i * KEY_BYTES
        if i + AHEAD < count:
            foresee(world, at + AHEAD * KEY_BYTES, False)
        status, _ = find(world, key_at(at))
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def use_each(world: World, keys: tl.int64, count: tl.int64, now: tl.int64, out: tl.int64) -> Any:
    """`lookup` for `count` keys, two words each, and `touch` of what is found."""
    i = word(0)
    while i < count:
        at = keys + i * KEY_BYTES
        if i + AHEAD < count:
            foresee(world, at + AHEAD * KEY_BYTES, False)
        status, found = lookup(world, key_at(at))
        if status == OK:
            touch(world, found.owner, found.slot, found.epoch, now)
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
        at = keys + i * KEY_BYTES
        if i + AHEAD < count:
            foresee(world, at + AHEAD * KEY_BYTES, True)
        owner, source = load64(owners + i * WORD_BYTES, "relaxed"), load64(sources + i * WORD_BYTES, "relaxed")
        status = put_now(world, owner, key_at(at), source, what)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def get_each(world: World, keys: tl.int64, targets: tl.int64, count: tl.int64, what: tl.int64, out: tl.int64) -> Any:
    """`get_now` to `count` addresses, of objects of one size, dtype and shape."""
    i = word(0)
    while i < count:
        at, target = keys + i * KEY_BYTES, load64(targets + i * WORD_BYTES, "relaxed")
        if i + AHEAD < count:
            foresee(world, at + AHEAD * KEY_BYTES, False)
        status = get_now(world, key_at(at), target, what)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i


@triton.jit
def remove_each(world: World, keys: tl.int64, count: tl.int64, out: tl.int64) -> Any:
    """`remove` for `count` keys, until one finds a poller to be woken: (how many, `host_remove` of the last one)."""
    i = word(0)
    owner = word(0)
    sleeps = word(0)
    copies = word(0)
    while (i < count) & ((sleeps | copies) == 0):
        at = keys + i * KEY_BYTES
        key = key_at(at)
        status, owner, sleeps, copies = host_remove(world, key.hash, key.check)
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i, owner, sleeps, copies

"""Random work on objects, compiled: only the protocol, without a pause, by threads or processes."""

from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl

from nanokv.check.machine.slow import slow_function
from nanokv.device.machines.native_code import native_function
from nanokv.device.memory.triton import select, store64, table64, word
from nanokv.device.protocol.get import lookup, read
from nanokv.device.protocol.header import raw_bytes
from nanokv.device.protocol.pins import pin, unpin
from nanokv.device.protocol.put import put
from nanokv.device.protocol.remove import remove
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World, segment

READ_EVERY = tl.constexpr(16)  # of so many pinned objects one is read: a kill is to hit pinning, not reading


@triton.jit
def fill(words: tl.int64, count: tl.int64, value: tl.int64) -> None:
    """Write a value into each of some words."""
    i = word(0)
    while i < count:
        store64(words + i * WORD_BYTES, value, "relaxed")
        i += 1


@triton.jit
def differing(words: tl.int64, count: tl.int64, key: tl.int64) -> Any:
    """The number of words that differ from the first one, or are not of this key. Nobody may write them meanwhile."""
    first = table64(words)
    wrong = select((first >> 32) == key, word(0), count)
    i = word(0)
    while i < count:
        wrong += select(table64(words + i * WORD_BYTES) == first, word(0), word(1))
        i += 1
    return wrong


@triton.jit
def hammer(world: World, seed: tl.int64, rounds: tl.int64, keys: tl.int64, buffer: tl.int64, room: tl.int64) -> Any:
    """Random puts, reads and removals, `rounds` of them. Returns (puts, reads, removals, wrong words)."""
    puts = word(0)
    reads = word(0)
    removals = word(0)
    wrong = word(0)
    random = seed + 0
    i = word(0)
    while i < rounds:
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        key = (random >> 8) % keys
        choice = (random >> 13) % 8
        if choice < 3:
            words = 1 + (random >> 16) % room
            fill(buffer, words, (key << 32) | (seed << 24) | i)
            owner = random % world.world_size
            status, _ = put(world, owner, Key(key, key), buffer, words * WORD_BYTES, i, raw_bytes())
            puts += select(status == OK, word(1), word(0))
        elif choice < 6:
            status, found = lookup(world, Key(key, key))
            if (status == OK) & (found.nbytes <= room * WORD_BYTES):
                status = read(world, found, Key(key, key), buffer, i)
                if status == OK:
                    reads += 1
                    wrong += differing(buffer, found.nbytes // WORD_BYTES, key)
        else:
            status, owner = remove(world, Key(key, key))
            removals += select(status == OK, word(1), word(0))
        i += 1
    return puts, reads, removals, wrong


@triton.jit
def pin_hammer(world: World, seed: tl.int64, rounds: tl.int64, keys: tl.int64) -> Any:
    """Pin objects of `hammer` and unpin them, `rounds` times, and read some. Returns (pinned, wrong words)."""
    pinned = word(0)
    wrong = word(0)
    random = seed + 0
    i = word(0)
    while i < rounds:
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        key = (random >> 8) % keys
        status, found = lookup(world, Key(key, key))
        if status == OK:
            seg = segment(world, found.owner)
            status, line = pin(world, found.owner, found.slot, found.epoch)
            if status == OK:
                pinned += 1
                if i % READ_EVERY == 0:
                    wrong += differing(seg + found.payload, found.nbytes // WORD_BYTES, key)
                unpin(world, found.owner, found.slot, found.epoch, line)
        i += 1
    return pinned, wrong


class Hammers(NamedTuple):
    """The functions above as Python callables."""

    hammer: Any
    pin_hammer: Any


@cache
def compiled_hammers() -> Hammers:
    """At full speed. Compiled once per machine, loaded once per process."""
    return Hammers(native_function(hammer), native_function(pin_hammer))


@cache
def slow_hammers() -> Hammers:
    """Hammers that linger after each load."""
    return Hammers(slow_function(hammer), slow_function(pin_hammer))

"""Calls about many keys, of which each would be a call from Python otherwise."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, store64, word
from nanokv.device.protocol.directory import find
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World


@triton.jit
def find_each(world: World, keys: tl.int64, count: tl.int64, out: tl.int64) -> Any:
    """`find` for `count` keys, two words each: a status each, as words at `out`."""
    i = word(0)
    while i < count:
        key = keys + 2 * i * WORD_BYTES
        status, _ = find(world, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"))
        store64(out + i * WORD_BYTES, status, "relaxed")
        i += 1
    return i

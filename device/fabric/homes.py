"""Which node of a cluster is the home of a key: the one whose number, mixed with the key, is the largest.

Source: rendezvous hashing, Thaler and Ravishankar (1998). When a node comes or goes, only the keys move that it gets or
had; and whoever knows the same nodes finds the same home.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.lines import peek, poke
from nanokv.device.memory.triton import mixed, word
from nanokv.device.native.many import KEY_BYTES
from nanokv.device.segment.layout import POSITIVE


@triton.jit
def home_node(seeds: tl.int64, count: tl.int64, key_hash: tl.int64) -> Any:
    """The place of a key's home among the seeds of `count` nodes (words at the address `seeds`)."""
    best = word(0)
    most = word(-1)
    i = word(0)
    while i < count:
        weight = mixed(key_hash ^ peek(seeds, i), 0) & POSITIVE
        if weight > most:
            best, most = i, weight
        i += 1
    return best


@triton.jit
def home_nodes(seeds: tl.int64, count: tl.int64, keys: tl.int64, n: tl.int64, out: tl.int64) -> None:
    """`home_node` of `n` keys, two words each, as words at `out`."""
    i = word(0)
    while i < n:
        poke(out, i, home_node(seeds, count, peek(keys + i * KEY_BYTES, word(0))))
        i += 1

"""Which node a get asks first, of a key and a destination as Python's caller wrote them, in one call of native code."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.homes import home_node
from nanokv.device.fabric.locations import node_of
from nanokv.device.memory.triton import word
from nanokv.device.native.keys import digest_of
from nanokv.device.native.objects import is_outside, of
from nanokv.device.native.tensors import described
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.status import MISS, NOT_READY
from nanokv.device.segment.host_records import K_HASHING, K_NONE, K_TABLE, K_TENSOR, NOT_ALIKE

FOR_PYTHON = tl.constexpr(0)  #: Python looks: the object is here, or key or destination are unusual


@triton.jit
def first_asked(
    key: tl.int64,
    dst: tl.int64,
    calls: tl.int64,
    table: tl.int64,
    mask: tl.int64,
    seeds: tl.int64,
    count: tl.int64,
) -> Any:
    """Who is asked first for the object of a key.

    FOR_PYTHON; n > 0: the world of that number in the table of locations; n < 0: the key's home, whose seed is that
    at the place -1 - n.

    Args:
        dst: a tensor, to which its bytes go; or None.
        calls: the address of the CALLS record of this node's cache.
        table, mask: of the locations. seeds, count: of the nodes, as `home_node` takes them.
    """
    world, asked = of(calls, K_TABLE), word(FOR_PYTHON)
    known, digest = digest_of(key, of(calls, K_HASHING))
    if known and dst != of(calls, K_NONE):
        to, nbytes, _ = described(dst, of(calls, K_TENSOR))
        known = to != NOT_ALIKE
        if known:  # to write into a segment would change objects
            known = is_outside(calls, world, to, nbytes)
    if known:
        status, _ = find(world, digest)
        if (status == MISS) | (status == NOT_READY):
            asked = node_of(table, mask, digest.hash, digest.check)
            if asked == 0:
                asked = -1 - home_node(seeds, count, digest.hash)
    return asked

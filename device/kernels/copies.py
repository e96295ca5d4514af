"""Copies of many objects in other segments by one launch, a CTA per object (`device/protocol/replicate.py`)."""

import triton
import triton.language as tl

from nanokv.device.memory.triton import store64, table64
from nanokv.device.protocol.replicate import replicate
from nanokv.device.protocol.request import Q_OWNER, REQUEST_BYTES, key_in
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import open_world


@triton.jit
def replicate_many_kernel(table: tl.int64, requests: tl.int64, statuses: tl.int64, control: tl.int64) -> None:
    """Copy the objects of keys into the segments of the requests' owners. Fills `statuses`, int64 [count].

    `table`: the address of the world table. `control`: the address of two words, the number of requests and the time
    of day in ns.
    """
    world = open_world(table)
    count = table64(control)
    now = table64(control + WORD_BYTES)
    at = tl.program_id(0).to(tl.int64)
    while at < count:
        request = requests + at * REQUEST_BYTES
        status, _ = replicate(world, table64(request + Q_OWNER), key_in(request), now)
        store64(statuses + at * WORD_BYTES, status, "relaxed")
        at += tl.num_programs(0).to(tl.int64)

"""The twin of a ring of objects: memory of the owner's segment for plain copies, as many places, as far apart."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.ring import Plan
from nanokv.bench.suite.worlds import OWNER


@contextmanager
def twin_places(cache: NanoKVCache, plan: Plan) -> Iterator[list[torch.Tensor]]:
    """Views of touched memory in the owner's segment, uint8 [plan.size] each, which must not outlive the block.

    They lie in large objects that are opened for write, and aborted at the end.
    """
    places: list[torch.Tensor] = []
    for lane in range(plan.lanes):
        place = cache.open_for_write(f"lane {lane}", plan.lane_bytes, preferred_segment=OWNER)
        address = cache.remote_ptr(OWNER, place.payload_base)
        raw = torch.frombuffer((ctypes.c_uint8 * plan.lane_bytes).from_address(address), dtype=torch.uint8)
        raw.fill_(0)
        places += [raw[at : at + plan.size] for at in range(0, plan.lane_bytes, plan.stride)]
    del places[plan.slots :]
    yield places
    places.clear()
    for lane in range(plan.lanes):
        cache.abort(f"lane {lane}")

"""Memory of a segment for plain copies, beside objects that lie in the same kind of memory."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nanokv import NanoKVCache


@contextmanager
def places(cache: NanoKVCache, rank: int, count: int, nbytes: int) -> Iterator[list[torch.Tensor]]:
    """`count` views of touched memory in the segment of `rank`, uint8 [nbytes] each, which must not outlive the block.

    They are objects that are opened for write, and aborted at the end.
    """
    found = [_place(cache, rank, f"place {number}", nbytes) for number in range(count)]
    yield found
    found.clear()
    for number in range(count):
        cache.abort(f"place {number}")


def _place(cache: NanoKVCache, rank: int, key: str, nbytes: int) -> torch.Tensor:
    plan = cache.open_for_write(key, nbytes, preferred_segment=rank)
    address = cache.remote_ptr(rank, plan.payload_base)
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8).fill_(0)

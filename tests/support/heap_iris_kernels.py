"""Kernels with iris-style remote access on segments that the iris provider made, in Triton's interpreter.

    TRITON_INTERPRET=1 RANK=0 python -m tests.support.heap_iris_kernels NAME MODULE CONTEXT

is one of two ranks. MODULE has iris' device functions, CONTEXT is a class of `heap_standins`. Rank 0 fills an object of
rank 1 by a plan, and commits it by a compare-and-swap; both add to a word of rank 1. Rank 1 prints the values it reads.
"""

import importlib
import os
import sys
from typing import Any

import torch
import triton
import triton.language as tl

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import PATIENCE
from nanokv.config import make_options
from nanokv.device.segment.layout import EPOCH_SHIFT, H_STATE, READY, WRITING
from nanokv.heap import open_heap
from tests.support import heap_standins
from tests.support.heap_ranks import small_world

iris: Any = importlib.import_module(sys.argv[2])
NBYTES = 100
ADDS = 20


@triton.jit
def fill_and_commit_kernel(payload_ptr: Any, nbytes: Any, state_ptr: Any, epoch: Any, heap_bases: Any) -> None:
    """Rank 0 stores an object of rank 1 and makes it READY."""
    lanes = tl.arange(0, 128)
    iris.store(payload_ptr + lanes, (lanes * 3).to(tl.uint8), 0, 1, heap_bases, mask=lanes < nbytes)
    before = tl.cast(epoch, tl.int64) << EPOCH_SHIFT
    iris.atomic_cas(state_ptr, before | WRITING, before | READY, 0, 1, heap_bases, sem="acq_rel", scope="sys")


@triton.jit
def add_kernel(word_ptr: Any, rank: Any, heap_bases: Any, out_ptr: Any) -> None:
    """A rank adds one to a word of rank 1, and reads it."""
    iris.atomic_add(word_ptr, 1, rank, 1, heap_bases, sem="acq_rel", scope="sys")
    tl.store(out_ptr, iris.load(word_ptr, rank, 1, heap_bases))


def pointer(cache: NanoKVCache, offset: int, dtype: torch.dtype) -> torch.Tensor:
    """The pointer that a kernel takes for an offset of another rank: the offset in this rank's own segment."""
    mine = cache.engine.heap.segment(cache.rank)[offset : offset + dtype.itemsize].view(dtype)
    assert mine.data_ptr() == cache.symmetric_ptr(1, offset)
    return mine


def main() -> None:
    rank, name = int(os.environ["RANK"]), sys.argv[1]
    library = heap_standins.IrisModule(getattr(heap_standins, sys.argv[3]), taken=1024)
    heap = open_heap("iris", small_world(2, name=name), rank, library=library)
    cache = NanoKVCache.on_heap(heap, 0, make_options({}))
    bases = cache.heap_bases_tensor
    if rank == 0:
        place = cache.open_for_write("filled", NBYTES, preferred_segment=1)
        payload = pointer(cache, place.payload_base, torch.uint8)
        state = pointer(cache, place.header_off + H_STATE.value, torch.int64)
        fill_and_commit_kernel[(1,)](payload, NBYTES, state, place.epoch, bases)
        cache.commit("filled")
    cache.engine.heap.barrier(PATIENCE)
    word = pointer(cache, cache.engine.geometry.segment_bytes - 8, torch.int64)  # of the last page, which is free
    out = torch.zeros(1, dtype=torch.int64)
    for _ in range(ADDS):
        add_kernel[(1,)](word, rank, bases, out)
    cache.engine.heap.barrier(PATIENCE)
    if rank == 1:
        total = int(cache.engine.heap.segment(1)[-8:].view(torch.int64)[0])
        print(cache.get("filled").tolist() == [3 * i % 256 for i in range(NBYTES)], total)
    cache.engine.heap.barrier(PATIENCE)
    cache.close()


if __name__ == "__main__":
    main()

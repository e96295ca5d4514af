"""The least that a kernel does to write an object: store a tile into the owner's memory, and publish it.

    python examples/write_in_kernel.py

Without a GPU it runs in Triton's interpreter. `producer_kernel.py` writes objects of many pages, with many CTAs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import os

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it decorates a kernel, so it must be set here

import triton
import triton.language as tl

import nanokv
from nanokv.device import remote


@triton.jit
def prefill_kernel(
    values_ptr, payload, header, epoch, bases, n, src: tl.constexpr, dst: tl.constexpr, BLOCK: tl.constexpr
):
    lanes = tl.arange(0, BLOCK)
    tile = tl.load(values_ptr + lanes, mask=lanes < n) * 2  # in place of the real computation
    payload_ptr = tl.cast(payload, tl.pointer_type(tl.float32))
    remote.store(payload_ptr + lanes, tile, src, dst, bases, mask=lanes < n)  # or iris.store
    remote.kv_commit_ready(header, epoch, src, dst, bases)  # WRITING -> READY, with release


def prefill(cache: nanokv.NanoKVCache, key: str, values: torch.Tensor, decode_rank: int) -> None:
    """Put twice `values` (float32, at most 1,024) from inside a kernel."""
    plan = cache.open_for_write(key, values.nbytes, preferred_segment=decode_rank)
    payload = cache.symmetric_ptr(plan.dst_rank, plan.payload_base)
    header = cache.symmetric_ptr(plan.dst_rank, plan.header_off)
    where = (payload, header, plan.epoch, cache.heap_bases_tensor)
    prefill_kernel[(1,)](values, *where, len(values), cache.rank, plan.dst_rank, BLOCK=1024, num_warps=1)
    cache.commit(key)  # the object is READY already; this tells the owner's index


def main() -> None:
    """Rank 0 prefills, rank 1 owns and decodes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prefiller, decoder = nanokv.local_world(2, 1 << 20, page_bytes=8192, device=device)
    with prefiller, decoder:
        values = torch.arange(1000, dtype=torch.float32, device=device)
        prefill(prefiller, "block:42", values, decoder.rank)
        assert torch.equal(decoder.get("block:42").view(torch.float32), values * 2)
        print("block:42 was written and published by a kernel, and read by rank 1")


if __name__ == "__main__":
    main()

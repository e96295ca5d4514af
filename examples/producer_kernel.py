"""A prefill kernel that writes its results into a decode rank's cache itself, and commits them READY.

The host asks for a WritePlan; the kernel computes tiles, stores them into the owner's pages and commits. Without a GPU
it runs in Triton's interpreter. On machines with ROCm Iris, `iris` may take the place of `remote`.
"""

import os

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it decorates a kernel, so it must be set here

import triton
import triton.language as tl

import nanokv
from nanokv.device import remote
from nanokv.device.segment.layout import H_STATE, READY

TILE = 1024


@triton.jit
def prefill_kernel(
    tokens_ptr: tl.tensor,
    header: tl.int64,
    payload: tl.int64,
    epoch: tl.int64,
    n: tl.int32,
    page_bytes: tl.int64,
    done_ptr: tl.tensor,
    committed_ptr: tl.tensor,
    heap_bases: tl.tensor,
    src_rank: tl.constexpr,
    dst_rank: tl.constexpr,
    by_exchange: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """One CTA per page: compute float32 values and store them into the page; the last CTA to finish commits."""
    page = tl.program_id(0)
    per_page = page_bytes // 4
    page_ptr = tl.cast(payload + page * page_bytes, tl.pointer_type(tl.float32))
    start = page * per_page
    while start < tl.minimum((page + 1) * per_page, n):
        at = start + tl.arange(0, tile)
        inside = (at < n) & (at < (page + 1) * per_page)
        values = tl.load(tokens_ptr + at, mask=inside) * 2.0 + 1.0  # in place of the real computation
        remote.store(page_ptr + (at - page * per_page), values, src_rank, dst_rank, heap_bases, mask=inside)
        start += tile
    tl.debug_barrier()  # the stores of all warps come before this CTA is counted
    if tl.atomic_add(done_ptr, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        if by_exchange:
            # unconditional, so only for plans that cannot have been given up; kv_commit_ready checks that
            state_ptr = tl.cast(header + H_STATE, tl.pointer_type(tl.int32))
            remote.atomic_xchg(state_ptr, READY, src_rank, dst_rank, heap_bases, sem="release", scope="sys")
            tl.store(committed_ptr, 1)
        else:
            tl.store(committed_ptr, remote.kv_commit_ready(header, epoch, src_rank, dst_rank, heap_bases))


def prefill(cache: nanokv.NanoKVCache, key: str, tokens: torch.Tensor, owner: int, *, by_exchange: bool = False) -> int:
    """Compute from `tokens` (float32) straight into the segment of `owner`; 1 if the object was committed."""
    plan = cache.open_for_write(key, tokens.numel() * 4, preferred_segment=owner)
    counts = torch.zeros(2, dtype=torch.int64, device=tokens.device)
    prefill_kernel[(plan.n_pages,)](
        tokens,
        cache.symmetric_ptr(plan.dst_rank, plan.header_off),
        cache.symmetric_ptr(plan.dst_rank, plan.payload_base),
        plan.epoch,
        tokens.numel(),
        plan.page_bytes,
        counts[:1],
        counts[1:],
        cache.heap_bases_tensor,
        src_rank=cache.rank,
        dst_rank=plan.dst_rank,
        by_exchange=by_exchange,
        tile=TILE,
        num_warps=4 if torch.version.hip is None else 1,
    )
    committed = int(counts[1])
    if committed:
        cache.commit(key)  # the kernel has made the object READY; this tells the owner's index
    return committed


def main() -> None:
    """Rank 0 prefills, rank 1 owns and decodes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prefiller, decoder = nanokv.local_world(2, 1 << 20, page_bytes=8192, device=device)
    with prefiller, decoder:
        tokens = torch.arange(5000, dtype=torch.float32, device=device)
        for by_exchange in (False, True):
            key = f"session:42:layer:{int(by_exchange)}"
            committed = prefill(prefiller, key, tokens, decoder.rank, by_exchange=by_exchange)
            meta = decoder.get_location(key)
            values = decoder.get(key).view(torch.float32)
            assert torch.equal(values, tokens * 2 + 1)
            where = f"rank {meta.owner_rank}, alloc={decoder.alloc}"
            print(f"{key}: committed={committed}, {meta.bytes_total} bytes on {where}")


if __name__ == "__main__":
    main()

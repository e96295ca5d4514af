"""Remote memory access for users' kernels, with the signatures of ROCm Iris, for machines that do not have it.

A pointer stands for an offset in a segment. `heap_bases` is an int64 table of every rank's base in this process, and

    remote = heap_bases[to_rank] + (pointer - heap_bases[from_rank])

`pointer` is always an address in the view of the rank that runs the kernel. A kernel written against this module runs
unchanged with `import iris` in its place, and the other way round. The order of the ranks follows Iris: `load` takes
the reader (`to_rank`) before the owner (`from_rank`), all others take the caller (`from_rank`) before the owner.

Undefined: a pointer outside of `from_rank`'s segment, a rank outside of the world, plain loads and stores that race.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.segment.layout import EPOCH_SHIFT, H_STATE, READY, WRITING


@triton.jit
def translate(pointer: tl.tensor, from_rank: tl.int32, to_rank: tl.int32, heap_bases: tl.tensor) -> Any:
    """The same offset in `to_rank`'s segment. Keeps the type and shape of `pointer` (a pointer or a block of them)."""
    delta = tl.load(heap_bases + to_rank) - tl.load(heap_bases + from_rank)
    return tl.cast(tl.cast(pointer, tl.int64) + delta, pointer.dtype)


@triton.jit
def load(
    pointer: tl.tensor,
    to_rank: tl.int32,
    from_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
) -> Any:
    """Load from `from_rank`'s memory; `to_rank` is the rank that runs this kernel, in whose view `pointer` is."""
    return tl.load(translate(pointer, to_rank, from_rank, heap_bases), mask=mask)


@triton.jit
def store(
    pointer: tl.tensor,
    value: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
) -> None:
    """Store to `to_rank`'s memory; `from_rank` is the rank that runs this kernel."""
    tl.store(translate(pointer, from_rank, to_rank, heap_bases), value, mask=mask)


@triton.jit
def atomic_xchg(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
) -> Any:
    """Exchange in `to_rank`'s memory; returns the old value. `sem`, `scope`: as in Triton; words that another GPU or
    the host reads need scope="sys"."""
    return tl.atomic_xchg(translate(pointer, from_rank, to_rank, heap_bases), val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_add(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
) -> Any:
    """Add in `to_rank`'s memory; returns the old value."""
    return tl.atomic_add(translate(pointer, from_rank, to_rank, heap_bases), val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_cas(
    pointer: tl.tensor,
    cmp: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
) -> Any:
    """Compare and swap in `to_rank`'s memory; returns the old value. No mask, as in Triton: guard it with `if`."""
    return tl.atomic_cas(translate(pointer, from_rank, to_rank, heap_bases), cmp, val, sem=sem, scope=scope)


@triton.jit
def kv_commit_ready(
    header_ptr: tl.tensor, epoch: tl.int64, from_rank: tl.int32, to_rank: tl.int32, heap_bases: tl.tensor
) -> Any:
    """Commit an object that a kernel has filled: (WRITING, epoch) -> (READY, epoch) with release, at system scope.

    Args:
        header_ptr: the object's header (`WritePlan.header_off`) in the view of `from_rank`: any pointer, or an int64.
        epoch: `WritePlan.epoch`.
        from_rank: the rank that runs this kernel. to_rank: `WritePlan.dst_rank`.
        heap_bases: int64 table of bases.

    Returns:
        int64: 1; or 0 if the object was given up meanwhile: its bytes are lost, and nothing was changed.

    Call it once per object, after every CTA has stored its part: the barriers in it order the warps of this CTA, not
    other CTAs. On AMD a wave waits only for its own stores: run the storing kernel with one wave per CTA, or commit
    from a kernel launched after it. It stores no checksum: where objects have one (`NanoKVCache(checksum=True)`), let
    the host commit, or call `put.seal_payload` and `put.commit` instead.
    """
    word = tl.cast(tl.cast(header_ptr, tl.int64) + H_STATE, tl.pointer_type(tl.int64))
    before = tl.cast(epoch, tl.int64) << EPOCH_SHIFT
    tl.debug_barrier()
    seen = atomic_cas(
        word, before | WRITING, before | READY, from_rank, to_rank, heap_bases, sem="acq_rel", scope="sys"
    )
    tl.debug_barrier()
    return tl.where(seen == (before | WRITING), 1, 0).to(tl.int64)

"""Remote memory access for users' kernels, with the signatures of ROCm Iris, for machines that do not have it.

A pointer stands for an offset in a segment. `heap_bases` is an int64 (or uint64) table of every rank's base in this
process, and

    remote = heap_bases[to_rank] + (pointer - heap_bases[from_rank])

`pointer` is always an address in the view of the rank that runs the kernel. A kernel written against this module runs
unchanged with `import iris` in its place, and the other way round: the names, their order and their defaults are those
of `iris` of 2026 (tests/machines/iris_signatures.json). Two things of it are missing: the last parameters of `put`,
`atomic_add` and `atomic_cas`, which hand the transfer to a copy engine of AMD, and the object form, `iris.Context`.

The order of the ranks follows Iris: `load` takes the reader (`to_rank`) before the owner (`from_rank`), all others take
the caller (`from_rank`) before the owner. `copy` names the rank that runs the kernel too.

All take:
    mask: where it is false, nothing is read or written. `other`: the value that a masked element reads.
    cache_modifier, volatile: as in `tl.load` and `tl.store`; not both for NVIDIA.
    sem, scope: as in Triton; words that another GPU or the host reads need scope="sys".
    hint: for a block of pointers: the constexpr of `tl.multiple_of` and `tl.max_contiguous`, one int per dimension.

Undefined: a pointer outside of `from_rank`'s segment, a rank outside of the world, plain loads and stores that race.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import drain
from nanokv.device.segment.layout import EPOCH_SHIFT, H_STATE, READY, WRITING


@triton.jit
def translate(
    pointer: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    hint: tl.constexpr = None,
) -> Any:
    """Find the same offset in `to_rank`'s segment. Keeps type and shape of `pointer` (a pointer or a block of them)."""
    delta = tl.load(heap_bases + to_rank).to(tl.int64) - tl.load(heap_bases + from_rank).to(tl.int64)
    remote = tl.cast(tl.cast(pointer, tl.int64) + delta, pointer.dtype)
    if hint is not None:
        remote = tl.max_contiguous(tl.multiple_of(remote, hint), hint)
    return remote


@triton.jit
def load(
    pointer: tl.tensor,
    to_rank: tl.int32,
    from_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    other: tl.tensor = None,
    cache_modifier: tl.constexpr = None,
    volatile: tl.constexpr = False,
    hint: tl.constexpr = None,
) -> Any:
    """Load from `from_rank`'s memory; `to_rank` is the rank that runs this kernel, in whose view `pointer` is."""
    remote = translate(pointer, to_rank, from_rank, heap_bases, hint)
    return tl.load(remote, mask=mask, other=other, cache_modifier=cache_modifier, volatile=volatile)


@triton.jit
def store(
    pointer: tl.tensor,
    value: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    hint: tl.constexpr = None,
    cache_modifier: tl.constexpr = None,
) -> None:
    """Store to `to_rank`'s memory; `from_rank` is the rank that runs this kernel."""
    tl.store(translate(pointer, from_rank, to_rank, heap_bases, hint), value, mask=mask, cache_modifier=cache_modifier)


@triton.jit
def copy(
    src_ptr: tl.tensor,
    dst_ptr: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    cur_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    other: tl.tensor = None,
    load_cache_modifier: tl.constexpr = None,
    store_cache_modifier: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> None:
    """Copy from `from_rank`'s memory to `to_rank`'s; `cur_rank` runs this kernel, and both pointers are in its view."""
    remote = translate(src_ptr, cur_rank, from_rank, heap_bases, hint)
    data = tl.load(remote, mask=mask, other=other, cache_modifier=load_cache_modifier)
    remote = translate(dst_ptr, cur_rank, to_rank, heap_bases, hint)
    tl.store(remote, data, mask=mask, cache_modifier=store_cache_modifier)


@triton.jit
def get(
    from_ptr: tl.tensor,
    to_ptr: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    other: tl.tensor = None,
    load_cache_modifier: tl.constexpr = None,
    store_cache_modifier: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> None:
    """Copy from `to_rank`'s memory at `from_ptr` to this rank's at `to_ptr`, anywhere; `from_rank` runs this kernel.

    The names of the ranks are those of Iris' code and tests; its comment has them the other way round.
    """
    remote = translate(from_ptr, from_rank, to_rank, heap_bases, hint)
    data = tl.load(remote, mask=mask, other=other, cache_modifier=load_cache_modifier)
    tl.store(to_ptr, data, mask=mask, cache_modifier=store_cache_modifier)


@triton.jit
def put(
    from_ptr: tl.tensor,
    to_ptr: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    other: tl.tensor = None,
    load_cache_modifier: tl.constexpr = None,
    store_cache_modifier: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> None:
    """Copy from this rank's memory at `from_ptr`, anywhere, to `to_rank`'s at `to_ptr`; `from_rank` runs this."""
    data = tl.load(from_ptr, mask=mask, other=other, cache_modifier=load_cache_modifier)
    remote = translate(to_ptr, from_rank, to_rank, heap_bases, hint)
    tl.store(remote, data, mask=mask, cache_modifier=store_cache_modifier)


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
    hint: tl.constexpr = None,
) -> Any:
    """Compare and swap in `to_rank`'s memory; returns the old value. No mask, as in Triton: guard it with `if`.

    `cmp` and `val` take the type of the words that `pointer` points to: plain integers may be given.
    """
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    word: tl.constexpr = pointer.dtype.element_ty
    return tl.atomic_cas(remote, tl.cast(cmp, word), tl.cast(val, word), sem=sem, scope=scope)


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
    hint: tl.constexpr = None,
) -> Any:
    """Exchange in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_xchg(remote, val, mask=mask, sem=sem, scope=scope)


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
    hint: tl.constexpr = None,
) -> Any:
    """Add in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_add(remote, val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_and(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> Any:
    """Bitwise and in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_and(remote, val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_or(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> Any:
    """Bitwise or in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_or(remote, val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_xor(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> Any:
    """Bitwise exclusive or in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_xor(remote, val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_min(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> Any:
    """Minimum in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_min(remote, val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_max(
    pointer: tl.tensor,
    val: tl.tensor,
    from_rank: tl.int32,
    to_rank: tl.int32,
    heap_bases: tl.tensor,
    mask: tl.tensor = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
    hint: tl.constexpr = None,
) -> Any:
    """Maximum in `to_rank`'s memory; returns the old value."""
    remote = translate(pointer, from_rank, to_rank, heap_bases, hint)
    return tl.atomic_max(remote, val, mask=mask, sem=sem, scope=scope)


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
    other CTAs. It stores no checksum: where objects have one (`NanoKVCache(checksum=True)`), let
    the host commit, or call `put.seal_payload` and `put.commit` instead.
    """
    word = tl.cast(tl.cast(header_ptr, tl.int64) + H_STATE, tl.pointer_type(tl.int64))
    before = tl.cast(epoch, tl.int64) << EPOCH_SHIFT
    drain()
    tl.debug_barrier()
    seen = atomic_cas(
        word, before | WRITING, before | READY, from_rank, to_rank, heap_bases, sem="acq_rel", scope="sys"
    )
    tl.debug_barrier()
    return tl.where(seen == (before | WRITING), 1, 0).to(tl.int64)

"""Device functions with the signatures and arithmetic of ROCm Iris, for kernels of tests, in place of `import iris`.

remote = bytes at heap_bases[to_rank] + (pointer - heap_bases[from_rank])
"""

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _translate(ptr: Any, from_rank: Any, to_rank: Any, heap_bases: Any) -> Any:
    offset = tl.cast(ptr, tl.uint64) - tl.load(heap_bases + from_rank).to(tl.uint64)
    base = tl.cast(tl.load(heap_bases + to_rank), tl.pointer_type(tl.int8))
    return tl.cast(base + offset, ptr.dtype)


@triton.jit
def load(pointer: Any, to_rank: Any, from_rank: Any, heap_bases: Any, mask: Any = None) -> Any:
    return tl.load(_translate(pointer, to_rank, from_rank, heap_bases), mask=mask)


@triton.jit
def store(pointer: Any, value: Any, from_rank: Any, to_rank: Any, heap_bases: Any, mask: Any = None) -> None:
    tl.store(_translate(pointer, from_rank, to_rank, heap_bases), value, mask=mask)


@triton.jit
def atomic_add(
    pointer: Any,
    val: Any,
    from_rank: Any,
    to_rank: Any,
    heap_bases: Any,
    mask: Any = None,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
) -> Any:
    return tl.atomic_add(_translate(pointer, from_rank, to_rank, heap_bases), val, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_cas(
    pointer: Any,
    cmp: Any,
    val: Any,
    from_rank: Any,
    to_rank: Any,
    heap_bases: Any,
    sem: tl.constexpr = None,
    scope: tl.constexpr = None,
) -> Any:
    return tl.atomic_cas(_translate(pointer, from_rank, to_rank, heap_bases), cmp, val, sem=sem, scope=scope)

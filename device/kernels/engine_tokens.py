"""One token's K and V of one layer, between the engine's tensors, its paged cache, and an object.

The layouts of the cache are vLLM's. `reshape_and_cache_flash` has [blocks, BLOCK, heads, size] (NHD) or heads before
positions (HND), which differ only in strides. `reshape_and_cache` has K as [blocks, heads, size / x, BLOCK, x] and V as
[blocks, heads, size, BLOCK]: of a head, x elements of K and one of V lie side by side. An object has none of that: its
rows are [heads, size], without gaps.
"""

from typing import Any

import triton
import triton.language as tl

CHUNK_BYTES = 4096  #: of K, and as many of V: with one warp, eight 16-byte loads of each thread are in flight

# the tuple `layout` of a kernel
L_HEADS = tl.constexpr(0)
L_HEAD_SIZE = tl.constexpr(1)
L_BLOCK = tl.constexpr(2)  # positions of a block
L_K_INNER = tl.constexpr(3)  # elements of a head of K that lie side by side: the head's size, or x
L_V_INNER = tl.constexpr(4)  # the same of V: the head's size, or 1
L_SCALE = tl.constexpr(5)  # words from the scale of a head to the next one: 0 or 1; -1 if nothing is quantized
L_CHUNK = tl.constexpr(6)  # elements of a token that are moved at once: a power of two


@triton.jit
def in_cache(
    at: tl.tensor, head_stride: tl.int64, outer_stride: tl.int64, size: tl.constexpr, inner: tl.constexpr
) -> Any:
    """The offsets of the elements `at` of a token, [heads, size] flat, from the token's place in the cache."""
    dim = at % size
    if inner < size:  # else Triton would not see that the elements of a head lie side by side
        dim = (dim // inner) * outer_stride + dim % inner
    return (at // size) * head_stride + dim


@triton.jit
def in_object(row: tl.int64, at: tl.tensor, pointer: tl.constexpr, width: tl.constexpr) -> Any:
    """Pointers to the elements `at`, `width` of them, of a row of an object, whose address is a multiple of 16."""
    return tl.max_contiguous(tl.multiple_of(tl.cast(row, pointer) + at, 16), width)


@triton.jit
def converted(
    values: tl.tensor, scale_ptr: tl.tensor, at: tl.tensor, mask: tl.tensor, to: tl.constexpr, layout: tl.constexpr
) -> Any:
    """The elements `at` of a token, as the cache holds them. What does not fit into fp8 saturates, as in vLLM."""
    if layout[L_SCALE] < 0 or values.dtype.is_fp8():
        result = values.to(to)
    else:
        if layout[L_SCALE] == 0:
            scale = tl.load(scale_ptr)
        else:
            scale = tl.load(scale_ptr + at // layout[L_HEAD_SIZE], mask=mask, other=1.0)
        largest: tl.constexpr = largest_of(to)
        scaled = values.to(tl.float32) / scale
        scaled = tl.clamp(scaled, -largest, largest, propagate_nan=tl.PropagateNan.ALL)
        result = scaled.to(to)
    return result


@triton.constexpr_function
def largest_of(kind: Any) -> float:
    """The largest finite number of an fp8 type."""
    return {"fp8e4nv": 448.0, "fp8e5": 57344.0, "fp8e4b8": 240.0}[str(kind)]


@triton.jit
def move_position(
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    k_place: tl.tensor,
    v_place: tl.tensor,
    k_scale_ptr: tl.tensor,
    v_scale_ptr: tl.tensor,
    k_head: tl.int64,
    k_outer: tl.int64,
    v_head: tl.int64,
    v_outer: tl.int64,
    k_object: tl.int64,
    v_object: tl.int64,
    fresh: tl.int1,
    stores: tl.int1,
    publishes: tl.constexpr,
    layout: tl.constexpr,
) -> None:
    """Write a fresh token into the cache, or read an old one from it; and, if `stores`, into the object.

    `key_ptr`, `value_ptr`: of the token; `k_place`, `v_place`: of its place in the cache; `k_object`, `v_object`: the
    addresses of its rows in the object.
    """
    SIZE: tl.constexpr = layout[L_HEAD_SIZE]
    CHUNK: tl.constexpr = layout[L_CHUNK]
    ROW: tl.constexpr = layout[L_HEADS] * SIZE
    kind: tl.constexpr = k_place.dtype.element_ty
    for start in tl.range(0, ROW, CHUNK, num_stages=1):
        at = start + tl.arange(0, CHUNK)
        mask = (at < ROW) | (ROW % CHUNK == 0)
        k_at = k_place + in_cache(at, k_head, k_outer, SIZE, layout[L_K_INNER])
        v_at = v_place + in_cache(at, v_head, v_outer, SIZE, layout[L_V_INNER])
        if fresh:
            k = converted(tl.load(key_ptr + at, mask=mask), k_scale_ptr, at, mask, kind, layout)
            v = converted(tl.load(value_ptr + at, mask=mask), v_scale_ptr, at, mask, kind, layout)
            tl.store(k_at, k, mask=mask)
            tl.store(v_at, v, mask=mask)
        else:
            k = tl.load(k_at, mask=mask)
            v = tl.load(v_at, mask=mask)
        if publishes:
            if stores:
                tl.store(in_object(k_object, at, k_place.dtype, CHUNK), k, mask=mask)
                tl.store(in_object(v_object, at, k_place.dtype, CHUNK), v, mask=mask)

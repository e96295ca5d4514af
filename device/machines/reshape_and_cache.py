"""vLLM's `reshape_and_cache_flash` and `reshape_and_cache`, which also publish the blocks that become full.

Signatures and behaviour of the first eight arguments are those of vLLM 0.32 (`vllm/_custom_ops.py`; its Triton kernel
is in `vllm/v1/attention/ops/triton_reshape_and_cache_flash.py`), with three differences: fp8_e5m2 is e5m2, where vLLM's
Triton kernel stores e4m3; K and V may have different strides; a slot beyond the cache is ignored, as a negative one is.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton

from nanokv.device.kernels.engine_tokens import CHUNK_BYTES
from nanokv.device.kernels.reshape_and_cache import REGISTERS, reshape_and_cache_kernel
from nanokv.device.machines.engine_cache import ALIGNMENT
from nanokv.device.machines.full_blocks import FullBlocks
from nanokv.device.machines.lane import INTERPRETER
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument

#: each `kv_cache_dtype` that quantizes nothing
UNSCALED = ("auto", "float16", "bfloat16", "float32", "half", "float")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
FIRST_WITH_E4M3 = (8, 9)  #: compute capability


class Publish(NamedTuple):
    """What a launch publishes: the layer of `full` that it writes, of how many.

    A step launches its layers in order, from 0; the launch of the last one publishes the objects, which are
    [layers, 2, block_size, heads, head_size] in the cache's dtype.
    """

    full: FullBlocks
    layer: int = 0
    layers: int = 1


class PagedLayer(NamedTuple):
    """K and V of one layer of a paged cache. Strides count elements, from: block, position, head, run of elements."""

    k: torch.Tensor
    v: torch.Tensor
    block_size: int
    k_strides: tuple[int, int, int, int]
    v_strides: tuple[int, int, int, int]
    k_inner: int  #: elements of a head that lie side by side
    v_inner: int


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    *,
    publish: Publish | None = None,
) -> None:
    """Write K and V of some tokens into a paged cache: one launch on the current stream.

    Args:
        key, value: [tokens, heads, head_size], of any stride between tokens; more tokens than slots are padding.
        key_cache, value_cache: [blocks, block_size, heads, head_size], of any strides but that of the last dimension,
            which is 1 (NHD, or HND permuted). For fp8 they may be of dtype uint8.
        slot_mapping: int64 [slots], block * block_size + position of each token; negative: padding. No slot is named
            twice.
        kv_cache_dtype: "auto" (or a float's name): cast to the cache's dtype; "fp8", "fp8_e4m3", "fp8_e5m2": divided
            by the scale and rounded; values out of range saturate. A key of an fp8 dtype is stored as it is.
        k_scale, v_scale: float32, one number, or one per head; used for fp8 only.
        publish: also publish blocks that become full.

    Raises:
        InvalidArgument: tensors that do not fit together, or a dtype that the device does not have.
    """
    heads, size = _checked(key, value, slot_mapping, key_cache, value_cache)
    shape = (*key_cache.shape[:2], heads, size)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dim() != 4 or cache.shape != shape or (size > 1 and cache.stride(3) != 1):
            raise InvalidArgument(
                f"{name} must be [blocks, block_size, {heads}, {size}] with stride 1 in the end, "
                f"not {list(cache.shape)} with strides {cache.stride()}"
            )
    k, v = key_cache.stride(), value_cache.stride()
    strides = (k[0], k[1], k[2], 0), (v[0], v[1], v[2], 0)
    into = PagedLayer(key_cache, value_cache, key_cache.shape[1], *strides, size, size)
    _launch(key, value, into, slot_mapping, kv_cache_dtype, (k_scale, v_scale), publish)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    *,
    publish: Publish | None = None,
) -> None:
    """`reshape_and_cache_flash` for the older layout, whose blocks hold heads before tokens.

    Args:
        key_cache: [blocks, heads, head_size / x, block_size, x].
        value_cache: [blocks, heads, head_size, block_size].

    Raises:
        InvalidArgument: as `reshape_and_cache_flash`.
    """
    heads, size = _checked(key, value, slot_mapping, key_cache, value_cache)
    if key_cache.dim() != 5 or 0 in key_cache.shape:
        raise InvalidArgument(
            f"key_cache must be [blocks, heads, head_size / x, block_size, x], not {list(key_cache.shape)}"
        )
    inner = key_cache.shape[-1]
    blocks, block_size = key_cache.shape[0], key_cache.shape[-2]
    k_shape, v_shape = (blocks, heads, size // inner, block_size, inner), (blocks, heads, size, block_size)
    if key_cache.shape != k_shape or value_cache.shape != v_shape or size % inner or key_cache.stride(4) != 1:
        raise InvalidArgument(
            f"key_cache must be [blocks, {heads}, {size} / x, block_size, x] and value_cache "
            f"[blocks, {heads}, {size}, block_size], not {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    block, head, outer, position, _ = key_cache.stride()
    v_block, v_head, v_outer, v_position = value_cache.stride()
    k_strides, v_strides = (block, position, head, outer), (v_block, v_position, v_head, v_outer)
    into = PagedLayer(key_cache, value_cache, block_size, k_strides, v_strides, inner, 1)
    _launch(key, value, into, slot_mapping, kv_cache_dtype, (k_scale, v_scale), publish)


def stored_dtype(kv_cache_dtype: str, cache: torch.Tensor) -> torch.dtype:
    """The dtype of the elements that are stored into a cache.

    Raises:
        InvalidArgument: an unknown `kv_cache_dtype`, one that the cache does not hold, or one that its device lacks.
    """
    if not isinstance(kv_cache_dtype, str):
        raise InvalidArgument(f"kv_cache_dtype must be a string, not {kv_cache_dtype!r}")
    if kv_cache_dtype in UNSCALED:
        dtype = cache.dtype
        right = dtype in FLOATS
    elif kv_cache_dtype in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        dtype = torch.float8_e5m2 if kv_cache_dtype == "fp8_e5m2" else _e4m3_of(cache.device)
        right = cache.dtype in (dtype, torch.uint8)
    else:
        raise InvalidArgument(
            f"kv_cache_dtype must be fp8, fp8_e4m3, fp8_e5m2 or one of {UNSCALED}: {kv_cache_dtype!r}"
        )
    if not right:
        raise InvalidArgument(f"a cache of {cache.dtype} cannot hold kv_cache_dtype={kv_cache_dtype!r}")
    return dtype


def _e4m3_of(device: torch.device) -> torch.dtype:
    if device.type == "cuda" and torch.version.hip is not None:
        on_mi300 = torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx94")
        return torch.float8_e4m3fnuz if on_mi300 else torch.float8_e4m3fn
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FIRST_WITH_E4M3:
        raise InvalidArgument("this GPU cannot store fp8_e4m3: use fp8_e5m2, or bfloat16")
    return torch.float8_e4m3fn


def _checked(*tensors: torch.Tensor) -> tuple[int, int]:
    """The heads of a token, and their size. `tensors`: key, value, slot_mapping; others need only be tensors."""
    for each in tensors:
        plain_tensor(each)  # a kernel takes its address
    key, value, slot_mapping = tensors[:3]
    for name, given in (("key", key), ("value", value)):
        if given.dim() != 3 or given.shape != key.shape or given.dtype != key.dtype or not _is_dense(given):
            raise InvalidArgument(
                f"{name} must be [tokens, heads, head_size] with tokens that are contiguous, like key, "
                f"not {given.dtype}{list(given.shape)} with strides {given.stride()}"
            )
    if key.dtype not in (*FLOATS, *FP8) or 0 in key.shape[1:]:
        raise InvalidArgument(f"key must be of a float dtype with heads, not {key.dtype}{list(key.shape)}")
    if slot_mapping.dtype != torch.int64 or slot_mapping.dim() != 1 or not slot_mapping.is_contiguous():
        raise InvalidArgument(f"slot_mapping must be int64 [slots], not {slot_mapping.dtype}{list(slot_mapping.shape)}")
    if len(slot_mapping) > len(key):
        raise InvalidArgument(f"{len(slot_mapping)} slots for {len(key)} tokens")
    return key.shape[1], key.shape[2]


def _is_dense(tokens: torch.Tensor) -> bool:
    """Whether the heads of a token lie one after the other."""
    _, heads, size = tokens.shape
    return (size <= 1 or tokens.stride(2) == 1) and (heads <= 1 or tokens.stride(1) == size)


def _scale_step(scales: tuple[torch.Tensor, torch.Tensor], heads: int) -> int:
    """The step from the scale of a head to the next one."""
    for scale in scales:
        plain_tensor(scale)
        if scale.dtype != torch.float32 or scale.numel() not in (1, heads) or not scale.is_contiguous():
            raise InvalidArgument(f"scales must be float32, one or {heads}, not {scale.dtype}{list(scale.shape)}")
    if scales[0].numel() != scales[1].numel():
        raise InvalidArgument(f"{scales[0].numel()} scales of K and {scales[1].numel()} of V")
    return int(scales[0].numel() > 1)


def _launch(
    key: torch.Tensor,
    value: torch.Tensor,
    into: PagedLayer,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    scales: tuple[torch.Tensor, torch.Tensor],
    publish: Publish | None,
) -> None:
    _, heads, size = key.shape
    dtype = stored_dtype(kv_cache_dtype, into.k)
    quantizes = kv_cache_dtype not in UNSCALED
    if into.v.dtype != into.k.dtype or (key.dtype in FP8 and key.dtype != dtype):
        raise InvalidArgument(f"key of {key.dtype}, key_cache of {into.k.dtype} and value_cache of {into.v.dtype}")
    step = _scale_step(scales, heads) if quantizes else -1
    used = scales if quantizes else (key, key)
    if len({each.device for each in (key, value, into.k, into.v, slot_mapping, *used)}) > 1:
        raise InvalidArgument(f"all tensors must be on one device, not {into.k.device} and others")
    tokens, blocks = len(slot_mapping), into.k.shape[0]
    on_gpu = key.is_cuda
    tables: tuple[int, ...] = (0,) * 7
    extra = 0
    if publish is not None:
        tables = _tables(publish, into, heads * size * dtype.itemsize)
        extra = publish.full.extra_ctas(captured=on_gpu and torch.cuda.is_current_stream_capturing())
    if not tokens + extra or not blocks:
        return
    most = CHUNK_BYTES if into.v_inner == size else CHUNK_BYTES // 2  # an address per element takes registers
    chunk = min(triton.next_power_of_2(heads * size), most // max(key.itemsize, dtype.itemsize))
    layout = (heads, size, into.block_size, into.k_inner, into.v_inner, step, chunk)
    flags = (False, False, False)
    if publish is not None:
        flags = (True, publish.layer == 0, publish.layer == publish.layers - 1)
    options: dict[str, Any] = {"maxnreg": REGISTERS} if on_gpu and torch.version.hip is None else {}
    with torch.cuda.device(key.device) if on_gpu else nullcontext(), nullcontext() if on_gpu else INTERPRETER:
        reshape_and_cache_kernel[(tokens + extra,)](
            *(key, value, into.k.view(dtype), into.v.view(dtype), slot_mapping, *used),
            *(tokens, blocks * into.block_size, key.stride(0), value.stride(0), *into.k_strides, *into.v_strides),
            *tables,
            *flags,
            layout,
            num_warps=1,
            **options,
        )


def _tables(publish: Publish, into: PagedLayer, row_bytes: int) -> tuple[int, ...]:
    """The addresses of the tables, and the plane of K."""
    full, layer, layers = publish
    if not 0 <= layer < layers:
        raise InvalidArgument(f"layer {layer} of {layers}")
    if (full.block_size, len(full.object_of)) != (into.block_size, into.k.shape[0]):
        where = f"{len(full.object_of)} blocks of {full.block_size} tokens"
        raise InvalidArgument(f"tables for {where}, and a cache of {into.k.shape[0]} blocks of {into.block_size}")
    if full.object_of.device != into.k.device:
        raise InvalidArgument(f"tables on {full.object_of.device}, and a cache on {into.k.device}")
    if row_bytes % ALIGNMENT:
        raise InvalidArgument(f"the heads of a token must be a multiple of {ALIGNMENT} bytes, not {row_bytes}")
    batch = full.batch
    addresses = (batch.requests, batch.tickets, batch.statuses, batch.control, full.object_of)
    return (full.world, *(each.data_ptr() for each in addresses), 2 * layer)

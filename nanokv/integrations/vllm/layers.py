"""The engine's cache as `PagedKV` takes it, group by group, and the layout of the objects that come of it.

vLLM gives every layer as [blocks, heads, tokens, packed], of any strides, where `packed` holds K and V of a token; a
layer with states as [blocks, 1, 1, bytes]. All groups lie over each other in one buffer: a block of it belongs to one
group at a time.

If all layers are one group of one shape, an object is a block of all of them. On a GPU `packed` is K, then V, and an
object is [layers, K and V, tokens, heads, head_size], which engines of other layouts can read. On a CPU the kernels
arrange the tokens of a head in their own way (K is transposed), and latents are no K and V: then each head of a block
is moved as it is, as if it were one token, and only heads can be told apart.

Else an object is a block of the layers of one group, as it is, and which layers these are is part of its key: their
number depends on the model, its draft model and the stage of the pipeline. Only an engine with the same group, at the
same place of the same tensor-parallel degree, has the key.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xxhash
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import group_kernel_blocks

from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.groups import Group, Reach
from nanokv.keys.kv_layout import KVLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

DIMENSIONS = 4
_STATE_LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT"  #: vLLM's variable: how the states of convolutions lie


@dataclass(frozen=True, slots=True)
class GroupLayers:
    """The layers of one group that have a cache of their own, in the order of the model."""

    group: Group
    names: list[str]
    planes: list[torch.Tensor]  #: as `PagedKV` takes them
    kv_dim: int | None = None  #: of the planes
    mark: bytes = b""  #: behind the hash of a block, in its key

    @property
    def nbytes(self) -> int:
        """Bytes of an object."""
        return sum(plane[0].numel() * plane.element_size() for plane in self.planes)


@dataclass(frozen=True, slots=True)
class Layers:
    """All layers of one worker."""

    groups: list[GroupLayers]  #: without those of which this stage of a pipeline has no layers
    layout: KVLayout | None  #: of the objects, if they are one group of layers of one shape

    @property
    def device(self) -> torch.device:
        return self.groups[0].planes[0].device


def layers_of(
    config: "VllmConfig",
    cache: "KVCacheConfig",
    groups: Sequence[Group],
    kv_caches: dict[str, torch.Tensor],
    rank: int,
) -> Layers:
    """The layers that vLLM registers.

    Args:
        groups: of the model's KV cache.
        rank: of tensor parallelism.

    Raises:
        InvalidArgument: they are not as above.
    """
    each = []
    for group in groups:
        members = set(cache.kv_cache_groups[group.number].layer_names)
        each.append(_distinct({name: tensor for name, tensor in kv_caches.items() if name in members}))
    kinds = {(tensor.shape, tensor.dtype) for own in each for tensor in own.values()}
    is_alike = len(kinds) == 1 and next(iter(kinds))[0][0] == cache.num_blocks
    if len(groups) == 1 and groups[0].reach is not Reach.STATE and is_alike:
        return _of_one_shape(config, groups[0], each[0], rank)
    made = [_as_it_is(config, cache, group, own, rank) for group, own in zip(groups, each, strict=True) if own]
    return Layers(made, None)


def _distinct(kv_caches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The layers without those that share the cache of another one of their group."""
    first: dict[int, str] = {}
    for name, tensor in kv_caches.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: kv_caches[name] for name in first.values()}


# --- one group of layers of one shape ---
def _of_one_shape(config: "VllmConfig", group: Group, own: dict[str, torch.Tensor], rank: int) -> Layers:
    tensors = list(own.values())
    first = tensors[0]
    if first.dim() != DIMENSIONS:
        raise InvalidArgument(f"a layer's cache must have four dimensions, not {list(first.shape)}")
    head_size, packed = config.model_config.get_head_size(), first.shape[3]
    apart = first.device.type != "cpu" and packed == 2 * head_size and not config.model_config.use_mla
    planes = [_halves(tensor, head_size) if apart else _heads(tensor) for tensor in tensors]
    layers = GroupLayers(group, list(own), planes, 1 if apart else None)
    return Layers([layers], _layout(config, planes[0], own, rank, apart=apart))


def _halves(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """[blocks, K and V, tokens, heads, head_size], sharing memory."""
    return tensor.view(*tensor.shape[:3], 2, head_size).permute(0, 3, 2, 1, 4)


def _heads(tensor: torch.Tensor) -> torch.Tensor:
    """[blocks, 1, heads, all tokens of a head], sharing memory."""
    return tensor.view(*tensor.shape[:2], 1, -1).transpose(1, 2)


def _layout(
    config: "VllmConfig", plane: torch.Tensor, layers: dict[str, torch.Tensor], rank: int, *, apart: bool
) -> KVLayout:
    *_, tokens, heads, size = plane.shape
    parallel = config.parallel_config.tensor_parallel_size
    all_heads = config.model_config.get_total_num_kv_heads()
    divided = max(all_heads // parallel, 1) == heads  # latents are not: each rank holds all of them
    return KVLayout(
        layers=len(layers),
        kv_heads=all_heads if divided else heads,
        head_size=size,
        block_size=tokens,
        dtype=str(plane.dtype).removeprefix("torch."),
        order="L2NHD" if apart else "LNHD",
        tp_rank=rank if divided else 0,
        tp_size=parallel if divided else 1,
        first_layer=min(extract_layer_index(name) for name in layers),
    )


# --- a group of any layers ---
def _as_it_is(
    config: "VllmConfig", cache: "KVCacheConfig", group: Group, own: dict[str, torch.Tensor], rank: int
) -> GroupLayers:
    planes = [part for each in own.values() for part in _views(group_kernel_blocks(each, cache.num_blocks))]
    about = {
        "reach": [group.reach.name, group.tokens, group.block_size],
        "layers": [[name, str(tensor.dtype), list(tensor.shape[1:])] for name, tensor in own.items()],
        "rank": [rank, config.parallel_config.tensor_parallel_size],
        "states": os.environ.get(_STATE_LAYOUT, "") if group.reach is Reach.STATE else "",
    }
    return GroupLayers(group, list(own), planes, None, mark_of(about))


def mark_of(about: Mapping[str, object]) -> bytes:
    """What tells the blocks of a group from those of all others, behind their hashes."""
    return xxhash.xxh3_128_digest(json.dumps(about).encode())


def _views(blocks: torch.Tensor) -> list[torch.Tensor]:
    """The blocks of a layer as planes, never a copy: [blocks, 1, 1, bytes] if they have no gaps, else as they are.

    Blocks that kernels take in several parts are a plane for each part.
    """
    inner = blocks[0]
    if inner.is_contiguous():
        return [blocks.as_strided((len(blocks), inner.numel()), (blocks.stride(0), 1)).view(torch.uint8)[:, None, None]]
    return list(blocks.unbind(1)) if blocks.dim() > DIMENSIONS else [blocks]

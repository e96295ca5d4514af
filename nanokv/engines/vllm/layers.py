"""The engine's cache as `PagedKV` takes it, and the layout of the objects that come of it.

vLLM gives every layer as [blocks, heads, tokens, packed], of any strides, where `packed` holds K and V of a token. On a
GPU these are K, then V, and an object is [layers, K and V, tokens, heads, head_size], which engines of other layouts
can read. On a CPU the kernels arrange the tokens of a head in their own way (K is transposed), and latents are no K
and V: then each head of a block is moved as it is, as if it were one token, and only heads can be told apart.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from vllm.model_executor.models.utils import extract_layer_index

from nanokv.errors import InvalidArgument
from nanokv.kv_layout import KVLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DIMENSIONS = 4


class Layers(NamedTuple):
    """The layers of one worker that have a cache of their own, in the order of the model."""

    names: list[str]
    planes: list[torch.Tensor]  #: as `PagedKV` takes them
    kv_dim: int | None  #: of the planes
    layout: KVLayout  #: of the objects

    @property
    def nbytes(self) -> int:
        """Bytes of an object."""
        return sum(plane[0].numel() * plane.element_size() for plane in self.planes)


def layers_of(config: "VllmConfig", kv_caches: dict[str, torch.Tensor], rank: int) -> Layers:
    """The layers that vLLM registers.

    Args:
        rank: of tensor parallelism.

    Raises:
        InvalidArgument: they are not as above.
    """
    own = _distinct(kv_caches)
    tensors = list(own.values())
    first = tensors[0]
    if any(tensor.dim() != DIMENSIONS for tensor in tensors):
        raise InvalidArgument(f"a layer's cache must have four dimensions, not {[list(t.shape) for t in tensors]}")
    head_size, packed = config.model_config.get_head_size(), first.shape[3]
    apart = first.device.type != "cpu" and packed == 2 * head_size and not config.model_config.use_mla
    planes = [_halves(tensor, head_size) if apart else _heads(tensor) for tensor in tensors]
    return Layers(list(own), planes, 1 if apart else None, _layout(config, planes[0], own, rank, apart=apart))


def _halves(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """[blocks, K and V, tokens, heads, head_size], sharing memory."""
    return tensor.view(*tensor.shape[:3], 2, head_size).permute(0, 3, 2, 1, 4)


def _heads(tensor: torch.Tensor) -> torch.Tensor:
    """[blocks, 1, heads, all tokens of a head], sharing memory."""
    return tensor.view(*tensor.shape[:2], 1, -1).transpose(1, 2)


def _distinct(kv_caches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the layers that share the cache of another one."""
    first: dict[int, str] = {}
    for name, tensor in kv_caches.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: kv_caches[name] for name in first.values()}


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

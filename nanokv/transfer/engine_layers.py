"""The layers of an engine's paged KV cache, as planes of blocks, and what an object that holds some of them looks like.

An object holds one block of some layers: [layers, 2, tokens, heads, dim], without gaps, whatever the strides of the
engine's tensors. Layers of several shapes or dtypes (latents and the keys of an indexer, a draft model's layers) lie in
an object one after the other, as bytes.
"""

from collections.abc import Sequence
from itertools import combinations

import torch

from nanokv.arguments import integer, listed, whole_number
from nanokv.device.machines.engine_cache import Pages, check_alike
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import Descriptor
from nanokv.errors import InvalidArgument
from nanokv.keys.kv_layout import KVLayout
from nanokv.transfer.descriptors import descriptor_of
from nanokv.transfer.reshard import layout_of


class EngineLayers:
    """The tensors of an engine, one per layer.

    Attributes:
        planes: K and V of each layer, each [blocks, tokens, heads, dim], sharing memory with the engine's tensors. If
            layers differ, the bytes of each, [blocks, ...] of uint8.
        per_layer: planes of a layer: 2, or 1 if its tensor is not split into K and V.
        are_alike: whether all are of one shape, dtype and strides.
    """

    def __init__(self, layers: Sequence[torch.Tensor], kv_dim: int | None, device: torch.device) -> None:
        """Take the arguments of `NanoKVCache.paged_kv`.

        Raises:
            InvalidArgument: not tensors of `device` that are alike, or no dimension `kv_dim` of K and V; or, without
                `kv_dim`, not of as many blocks each.
        """
        layers, kv_dim = _checked_layers(layers, kv_dim, device)
        self.are_alike = kv_dim is not None or len({(each.shape, each.dtype, each.stride()) for each in layers}) <= 1
        self.planes = _planes(layers, kv_dim) if self.are_alike else _bytes_of(layers)
        self.per_layer = len(self.planes) // len(layers)
        self._all = range(len(layers))
        first = self.planes[0]
        self._blocks = len(first)
        self._plane_bytes = [plane[0].numel() * plane.element_size() for plane in self.planes]
        self._layer_shape = tuple(layers[0].shape[1:] if kv_dim is None else [2, *first.shape[1:]])
        self._shared = _share_memory(self.planes) if self.are_alike else _bytes_meet(self.planes)

    def pages(self) -> Pages | None:
        """The planes for kernels; None if layers differ, or are not made of multiples of 16 bytes."""
        try:
            return Pages(self.planes) if self.are_alike else None
        except ValueError:
            return None

    def layout(self) -> KVLayout | None:
        """The layout of objects that hold all layers; None if layers differ: then all that is known is their bytes."""
        if not self.are_alike:
            return None
        return layout_of(self.planes[0], len(self._all), self._layer_shape, self.per_layer)

    # --- the chosen layers ---
    def first_plane(self, layers: range) -> int:
        return layers.start * self.per_layer

    def chosen(self, layers: range) -> list[torch.Tensor]:
        return self.planes[layers.start * self.per_layer : layers.stop * self.per_layer]

    def descriptor(self, layers: range) -> Descriptor:
        if not self.are_alike:
            return descriptor_of(torch.uint8, torch.Size((self.nbytes(layers),)))[1]
        return descriptor_of(self.planes[0].dtype, torch.Size((len(layers), *self._layer_shape)))[1]

    def nbytes(self, layers: range) -> int:
        """Bytes of an object."""
        return sum(self._plane_bytes[layers.start * self.per_layer : layers.stop * self.per_layer])

    # --- copies by torch ---
    def copy_out(self, layers: range, block: int, payload: torch.Tensor) -> None:
        """The block of these layers, into the bytes of an object."""
        for part, plane in zip(self.parts(layers, payload), self.chosen(layers), strict=True):
            part.copy_(plane[block])

    def copy_in(self, layers: range, block: int, payload: torch.Tensor) -> None:
        """The bytes of an object, into the block of these layers."""
        for part, plane in zip(self.parts(layers, payload), self.chosen(layers), strict=True):
            plane[block].copy_(part)

    def parts(self, layers: range, payload: torch.Tensor) -> Sequence[torch.Tensor]:
        """The bytes of an object, as a tensor for each plane of these layers."""
        first = self.planes[0]
        if self.are_alike:
            return tuple(payload.view(first.dtype).view(-1, *first.shape[1:]))
        chosen = self.chosen(layers)
        parts = torch.split(payload, [plane[0].numel() for plane in chosen])
        return [part.view(plane.shape[1:]) for part, plane in zip(parts, chosen, strict=True)]

    # --- checks ---
    def checked_blocks(self, blocks: Sequence[int], *, filled: bool) -> list[int]:
        """The numbers of blocks; `filled`: each gets an object, so that no two may be one."""
        numbers = [integer("block", block, 0, self._blocks - 1) for block in listed("blocks", blocks)]
        if filled and len(set(numbers)) < len(numbers):
            raise InvalidArgument(f"a block is named twice: {numbers}")
        if filled and self._shared:
            raise InvalidArgument(
                "blocks or layers of these tensors share memory, as of an expanded one: none can be got"
            )
        return numbers

    def checked_range(self, name: str, layers: range | None) -> range:
        chosen = self._all if layers is None else layers
        if (
            not isinstance(chosen, range)
            or not chosen
            or chosen.step != 1
            or not 0 <= chosen.start < chosen.stop <= len(self._all)
        ):
            raise InvalidArgument(f"{name} must be a part of range({len(self._all)}), not {layers!r}")
        return chosen


def _checked_layers(
    layers: Sequence[torch.Tensor], kv_dim: int | None, device: torch.device
) -> tuple[list[torch.Tensor], int | None]:
    layers = listed("layers", layers)
    for layer in layers:
        if not isinstance(layer, torch.Tensor):
            raise InvalidArgument(f"layers must be tensors, not {type(layer).__name__}")
        if layer.device != device:
            raise InvalidArgument(f"layers must be on {device}, as the heap is, not on {layer.device}")
    layers = [plain_tensor(layer) for layer in layers]
    if kv_dim is not None and whole_number(kv_dim) not in (0, 1):
        raise InvalidArgument(f"kv_dim must be 0, 1 or None, not {kv_dim!r}")
    return layers, whole_number(kv_dim)


def _planes(layers: Sequence[torch.Tensor], kv_dim: int | None) -> list[torch.Tensor]:
    planes: list[torch.Tensor] = []
    for layer in layers:
        if kv_dim is not None and (layer.dim() < 2 or layer.shape[kv_dim] != 2):
            raise InvalidArgument(f"dimension {kv_dim} of a layer must be 2, K and V, in {list(layer.shape)}")
        parts = [layer] if kv_dim is None else [layer.select(kv_dim, half) for half in range(2)]
        planes += [part.unsqueeze(-2) if part.dim() == 3 else part for part in parts]  # one head
    try:
        check_alike(planes)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    return planes


def _bytes_of(layers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Layers of several shapes, as the bytes of their blocks: [blocks, ...] of uint8, sharing memory."""
    for layer in layers:
        if layer.dim() < 2 or not layer.numel():
            raise InvalidArgument(f"a layer must be [blocks, ...], none of them 0, not {list(layer.shape)}")
        if layer.stride(-1) != 1:
            raise InvalidArgument(f"the last dimension of a layer must have stride 1, not {layer.stride(-1)}")
    counts = sorted({len(layer) for layer in layers})
    if len(counts) > 1:
        raise InvalidArgument(f"layers must have as many blocks each, not {' and '.join(map(str, counts))}")
    return [layer.view(torch.uint8) for layer in layers]


def _bytes_meet(planes: Sequence[torch.Tensor]) -> bool:
    """Whether two elements of planes of bytes share memory, or cannot be told apart.

    Those cannot of planes that lie between each other's blocks, if these are not as far from each other in both.
    """
    if any(_share_memory([plane]) for plane in planes):
        return True
    spans = [(plane.data_ptr(), _span(plane[0]), _span(plane), plane.stride(0)) for plane in planes]
    for one, other in combinations(sorted(spans), 2):
        distance, step = other[0] - one[0], one[3]
        if distance < one[2] and (step != other[3] or distance % step < one[1] or distance % step + other[1] > step):
            return True
    return False


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last one of a tensor of bytes."""
    return 1 + sum((items - 1) * step for items, step in zip(tensor.shape, tensor.stride(), strict=True))


def _share_memory(planes: Sequence[torch.Tensor]) -> bool:
    """Whether two elements of planes that are alike share memory, within a plane or in two.

    Planes may lie between each other's rows, as those of layers do that are one dimension of a tensor.
    """
    first = planes[0]
    size, span = first.element_size(), 1
    steps = [(1, size), *((stride * size, items) for items, stride in zip(first.shape, first.stride(), strict=True))]
    steps = sorted((step, items) for step, items in steps if items > 1)
    for step, items in steps:
        if step < span:
            return True
        span += (items - 1) * step
    starts = sorted(plane.data_ptr() for plane in planes)
    distances = set()
    for number, start in enumerate(starts):
        for other in starts[number + 1 :]:
            if other - start >= span:
                break
            distances.add(other - start)
    return any(_are_apart(distance, steps[::-1]) for distance in distances)


def _are_apart(distance: int, steps: Sequence[tuple[int, int]]) -> bool:
    """Whether two bytes of one plane are so many bytes apart.

    Args:
        steps: bytes from one item to the next, and the number of items, of each dimension: the largest step first, and
            none smaller than what the dimensions after it span.
    """
    if not steps:
        return distance == 0
    (step, items), *rest = steps
    reach = sum((items - 1) * step for step, items in rest)
    return any(
        abs(count) < items and abs(distance - count * step) <= reach and _are_apart(distance - count * step, rest)
        for count in (distance // step, distance // step + 1)
    )

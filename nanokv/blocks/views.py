"""Blocks and layers as sequences and as DLPack tensors, without a copy: `torch.from_dlpack(block[3])`.

The shapes are those of KVBM's Python classes: a block is [1, layers, outer, page_size, inner_dim], a layer of it
[1, 1, outer, page_size, inner_dim]. A tensor that was taken keeps what the memory belongs to alive: the block stays
where it is, until the tensor is gone too, or the block's handle was dropped by a call.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch

from nanokv.blocks.layout import Layout, LayoutConfig, MemoryDescriptor
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument
from nanokv.transfer.descriptors import flat_bytes


class Exporter(ABC):
    """What DLPack takes: a tensor that shares the memory. Consumers may write, also where they must not."""

    @property
    @abstractmethod
    def tensor(self) -> torch.Tensor:
        """The elements in place."""

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule of the memory; the arguments are those of torch."""
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """(device type, device id), as DLPack numbers them."""
        return self.tensor.__dlpack_device__()


class Layer(Exporter):
    """A layer of a block."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    @property
    def tensor(self) -> torch.Tensor:
        """[1, 1, outer, page_size, inner_dim]."""
        return self._tensor


class BlockView(Exporter, Sequence[Layer]):
    """A block as the sequence of its layers. `layers` is for subclasses."""

    @property
    def layers(self) -> Sequence[torch.Tensor]:
        """Per layer [1, 1, outer, page_size, inner_dim]."""
        whole = self.tensor
        return [whole[:, layer : layer + 1] for layer in range(whole.shape[1])]

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | list[Layer]:
        found = self.layers[index]
        return Layer(found) if isinstance(found, torch.Tensor) else [Layer(each) for each in found]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.to_list())

    def __bool__(self) -> bool:
        return True

    def to_list(self) -> list[Layer]:
        """The layers."""
        return [Layer(each) for each in self.layers]


class Block(BlockView):
    """A block of a layout in this process."""

    def __init__(self, layers: Sequence[torch.Tensor], whole: torch.Tensor | None) -> None:
        self._layers, self._whole = layers, whole

    @property
    def layers(self) -> Sequence[torch.Tensor]:
        return self._layers

    @property
    def tensor(self) -> torch.Tensor:
        """[1, layers, outer, page_size, inner_dim].

        Raises:
            InvalidArgument: the layers lie apart: take them one by one.
        """
        if self._whole is None:
            raise InvalidArgument("the layers of this block lie in memory of their own: take them one by one")
        return self._whole


class BlockList(Sequence[Block]):
    """The blocks of a layout whose memory this process has.

    Args:
        layout: where they are.
        tensors: the memory of each region, contiguous, as the layout's descriptors say.

    Raises:
        InvalidArgument: the tensors are not that memory.
    """

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        regions = tuple(MemoryDescriptor.of(each)[:2] for each in tensors)
        if regions != tuple(region[:2] for region in layout.regions):
            raise InvalidArgument(f"the layout is over {layout.regions}, these tensors are {regions}")
        width = layout.config.dtype.itemsize
        if any(
            (base + region.address) % width for base, region in zip(layout.base_offsets, layout.regions, strict=True)
        ):
            raise InvalidArgument(f"elements of {layout.config.dtype} must lie at multiples of {width} bytes")
        self.layout = layout
        self._bytes = [flat_bytes(plain_tensor(each)) for each in tensors]

    @classmethod
    def over(cls, kind: type[Layout], config: LayoutConfig, tensors: Sequence[torch.Tensor]) -> "BlockList":
        """Blocks over tensors that exist: one for FullyContiguous, one per layer for LayerSeparate."""
        return cls(kind(config, [MemoryDescriptor.of(each) for each in tensors]), tensors)

    def __len__(self) -> int:
        return self.layout.config.num_blocks

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        found = range(len(self))[index]
        return self._block(found) if isinstance(found, int) else [self._block(each) for each in found]

    def to_list(self) -> list[Block]:
        """The blocks."""
        return [self._block(each) for each in range(len(self))]

    def _block(self, block: int) -> Block:
        config = self.layout.config
        layers = [self._layer(block, layer) for layer in range(config.num_layers)]
        if len(self._bytes) > 1 or (config.num_layers == 1 and not layers[0].is_contiguous()):
            return Block(layers, None)
        start = self.layout.memory_region(block, 0, 0).offset
        whole = self._bytes[0][start : start + config.natural_block_stride].view(config.dtype)
        return Block(layers, whole.view(config.block_shape))

    def _layer(self, block: int, layer: int) -> torch.Tensor:
        config, first = self.layout.config, self.layout.memory_region(block, layer, 0)
        width, apart = config.dtype.itemsize, self.layout.outer_stride_in_bytes
        span = (config.outer_dim - 1) * apart + config.memory_region_size
        elements = self._bytes[first.storage][first.offset : first.offset + span].view(config.dtype)
        stride = apart // width
        strides = (stride * config.outer_dim, stride * config.outer_dim, stride, config.inner_dim, 1)
        return elements.as_strided((1, 1, *config.block_shape[2:]), strides)

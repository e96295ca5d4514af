"""Where the layers of blocks lie in memory: KVBM's layouts, as arithmetic over regions of memory.

A *page* is what is contiguous in every layout: [page_size, inner_dim] elements of one block, layer and outer index
(K or V). A layout says where each page is; the regions may be in this process, in another one, or on another device.

FullyContiguous: one region, [blocks, layers, outer, page_size, inner_dim], each block beginning at a multiple of
`block_stride_in_bytes = align_up(num_layers * layer_stride, alignment)`.
LayerSeparate: a region per layer, [outer, blocks, ...] if `outer_contiguous`, else [blocks, outer, ...]; its blocks
begin at multiples of the alignment too. Source of both: `lib/llm/src/block_manager/layout.rs` of Dynamo.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nanokv.arguments import integer
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument

MEMORY_TYPES = ("DRAM", "VRAM", "FILE", "BLK", "OBJ")  #: as NIXL names them
MOST_OUTER = 2
_U64 = 1 << 64
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn"}


def align_up(value: int, alignment: int) -> int:
    """The next multiple of `alignment`, a power of two."""
    return (value + alignment - 1) & ~(alignment - 1)


def checked_dtype(given: object) -> torch.dtype:
    """A dtype of torch, or the one of that name: torch's, or KVBM's "fp16", "bf16", "fp32", ..."""
    found = getattr(torch, _SHORT.get(given, given), None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise InvalidArgument(f"dtype must be a dtype of torch or its name, not {given!r}")
    return found


@dataclass(frozen=True)
class LayoutConfig:
    """The shape of blocks.

    Args:
        num_layers: of the model, or of this worker's share.
        page_size: tokens per block.
        inner_dim: elements per token, layer and outer index: heads of this worker times their size.
        outer_dim: 2 where K and V lie apart, else 1.
        dtype: of the elements; a name will do.
        alignment: of each block's first byte, a power of two, in bytes.
        num_blocks: in the layout.

    Raises:
        InvalidArgument: a value cannot be.
    """

    num_layers: int
    page_size: int
    inner_dim: int
    outer_dim: int = 1
    dtype: torch.dtype = torch.float16
    alignment: int = 1
    num_blocks: int = 1

    def __post_init__(self) -> None:
        for name in ("num_layers", "page_size", "inner_dim", "alignment", "num_blocks"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1, _U64 - 1))
        object.__setattr__(self, "outer_dim", integer("outer_dim", self.outer_dim, 1, MOST_OUTER))
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))
        if self.alignment & (self.alignment - 1):
            raise InvalidArgument(f"alignment must be a power of two, not {self.alignment}")

    @property
    def memory_region_size(self) -> int:
        """Bytes of a page."""
        return self.page_size * self.inner_dim * self.dtype.itemsize

    @property
    def layer_stride_in_bytes(self) -> int:
        """Bytes of a layer of a block, K and V together."""
        return self.memory_region_size * self.outer_dim

    @property
    def natural_block_stride(self) -> int:
        """Bytes of a block without what aligns the next one."""
        return self.num_layers * self.layer_stride_in_bytes

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """[1, layers, outer, page_size, inner_dim]: of a block's tensor, as KVBM gives it to DLPack."""
        return (1, self.num_layers, self.outer_dim, self.page_size, self.inner_dim)


class MemoryDescriptor(NamedTuple):
    """A region of memory, as NIXL registers it."""

    address: int  #: in the process that has it
    size: int  #: bytes
    memory_type: str = "DRAM"  #: of MEMORY_TYPES
    device_id: int = 0

    @staticmethod
    def of(tensor: torch.Tensor) -> "MemoryDescriptor":
        """The memory of a contiguous tensor."""
        tensor = plain_tensor(tensor)
        if not tensor.is_contiguous():
            raise InvalidArgument("the memory of a layout must be contiguous")
        kind = "DRAM" if tensor.device.type == "cpu" else "VRAM"
        return MemoryDescriptor(tensor.data_ptr(), tensor.nbytes, kind, tensor.device.index or 0)

    def check(self) -> None:
        """Raises InvalidArgument for a region that cannot be."""
        integer("address", self.address, 0, _U64 - 1)
        integer("size", self.size, 1, _U64 - self.address)
        integer("device_id", self.device_id, 0, (1 << 31) - 1)
        if self.memory_type not in MEMORY_TYPES:
            raise InvalidArgument(f"memory_type must be one of {MEMORY_TYPES}, not {self.memory_type!r}")


class MemoryRegion(NamedTuple):
    """Where a page is."""

    storage: int  #: the number of its region in the layout
    offset: int  #: bytes from the first byte of that region
    address: int  #: in the process that has the region
    size: int  #: bytes


class Layout(ABC):
    """Blocks over regions of memory.

    Args:
        config: the shape of the blocks.
        regions: the memory; where the first block begins in each, is chosen by the alignment.

    Raises:
        InvalidArgument: the number of regions is wrong, or one is too small.
    """

    kind: str

    def __init__(self, config: LayoutConfig, regions: Sequence[MemoryDescriptor]) -> None:
        self.config, self.regions = config, tuple(regions)
        if len(self.regions) != self.regions_of(config):
            raise InvalidArgument(f"{self.kind} needs {self.regions_of(config)} regions, not {len(self.regions)}")
        for region in self.regions:
            region.check()
        self.base_offsets = tuple(align_up(r.address, config.alignment) - r.address for r in self.regions)
        for region, base in zip(self.regions, self.base_offsets, strict=True):
            if base + self.layout_data_bytes > region.size:
                raise InvalidArgument(
                    f"{self.kind} needs {self.layout_data_bytes} bytes after {base} that align the first block; "
                    f"the region has {region.size}"
                )

    @staticmethod
    @abstractmethod
    def regions_of(config: LayoutConfig) -> int:
        """How many regions the blocks take."""

    @property
    @abstractmethod
    def block_stride_in_bytes(self) -> int:
        """From a block to the next one, in a region."""

    @property
    @abstractmethod
    def outer_stride_in_bytes(self) -> int:
        """From K to V of a layer of a block."""

    @property
    @abstractmethod
    def layer_stride_in_bytes(self) -> int:
        """From a layer of a block to the next one in the same region; 0 where each has a region of its own."""

    @property
    @abstractmethod
    def layout_data_bytes(self) -> int:
        """Bytes of a region from the first block on."""

    @property
    def required_allocation_size(self) -> int:
        """Bytes that are enough for a region, wherever it begins."""
        return self.layout_data_bytes + self.config.alignment - 1

    def memory_region(self, block: int, layer: int, outer: int) -> MemoryRegion:
        """The page of a block, layer and outer index.

        Raises:
            InvalidArgument: one of them is out of range.
        """
        block = integer("block", block, 0, self.config.num_blocks - 1)
        layer = integer("layer", layer, 0, self.config.num_layers - 1)
        outer = integer("outer", outer, 0, self.config.outer_dim - 1)
        storage = layer if len(self.regions) > 1 else 0
        offset = self.base_offsets[storage] + block * self.block_stride_in_bytes
        offset += layer * self.layer_stride_in_bytes + outer * self.outer_stride_in_bytes
        address = self.regions[storage].address + offset
        return MemoryRegion(storage, offset, address, self.config.memory_region_size)


class FullyContiguous(Layout):
    """All blocks in one region, each with all its layers."""

    kind = "FullyContiguous"

    @staticmethod
    def regions_of(config: LayoutConfig) -> int:
        return 1

    @property
    def block_stride_in_bytes(self) -> int:
        return align_up(self.config.natural_block_stride, self.config.alignment)

    @property
    def outer_stride_in_bytes(self) -> int:
        return self.config.memory_region_size

    @property
    def layer_stride_in_bytes(self) -> int:
        return self.config.layer_stride_in_bytes

    @property
    def layout_data_bytes(self) -> int:
        return (self.config.num_blocks - 1) * self.block_stride_in_bytes + self.config.natural_block_stride


class LayerSeparate(Layout):
    """A region per layer, as vLLM has its cache.

    Args:
        outer_contiguous: all blocks' K, then all blocks' V; else each block's K and V together.
    """

    kind = "LayerSeparate"

    def __init__(
        self, config: LayoutConfig, regions: Sequence[MemoryDescriptor], *, outer_contiguous: bool = True
    ) -> None:
        if not isinstance(outer_contiguous, bool):
            raise InvalidArgument(f"outer_contiguous must be True or False, not {outer_contiguous!r}")
        self.outer_contiguous = outer_contiguous
        super().__init__(config, regions)

    @staticmethod
    def regions_of(config: LayoutConfig) -> int:
        return config.num_layers

    @property
    def block_stride_in_bytes(self) -> int:
        pages = 1 if self.outer_contiguous else self.config.outer_dim
        return align_up(pages * self.config.memory_region_size, self.config.alignment)

    @property
    def outer_stride_in_bytes(self) -> int:
        apart = self.config.num_blocks * self.block_stride_in_bytes
        return apart if self.outer_contiguous else self.config.memory_region_size

    @property
    def layer_stride_in_bytes(self) -> int:
        return 0

    @property
    def layout_data_bytes(self) -> int:
        planes = self.config.outer_dim if self.outer_contiguous else 1
        return planes * self.config.num_blocks * self.block_stride_in_bytes

"""The memory of K and V of all sequences, and the two layouts in which a sequence's tokens are one strided view.

CortexStream's formula, K[layer][block][head][token in block][dim], puts token t of a head at

    (t // block_size) * heads * block_size * head_dim + (t % block_size) * head_dim

from the sequence's first block. With several heads and blocks no stride gives both terms, so a view [heads, tokens,
dim] over several blocks cannot exist there without a copy. It exists where the tokens of a head have one distance:

    "token_major"   [layers, blocks * block_size, heads, head_dim]      distance: heads * head_dim
    "head_major"    [heads, layers, blocks * block_size, head_dim]      distance: head_dim

The second one is the alternative that CortexStream names itself. In both, `Arena.blocks` has the formula's indices, as
a view with other strides.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from nanokv.arguments import integer
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import InvalidArgument
from nanokv.sequences.allocator import KVBlockAllocator

Layout = Literal["token_major", "head_major"]


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """What an arena holds, but for its number of blocks.

    Raises:
        InvalidArgument: a size is no integer of at least 1, the layout is not known, or the dtype is none of torch's.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    layout: Layout = "token_major"

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "head_dim", "block_size"):
            integer(name, getattr(self, name), 1)
        if self.layout not in get_args(Layout):
            raise InvalidArgument(f"layout must be one of {', '.join(get_args(Layout))}, not {self.layout!r}")
        if not isinstance(self.dtype, torch.dtype) or str(self.dtype).removeprefix("torch.") not in DTYPE_NAMES:
            raise InvalidArgument(f"dtype must be a dtype of torch that NanoKV stores, not {self.dtype!r}")

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: K and V of all layers."""
        return 2 * math.prod((self.num_layers, self.num_heads, self.block_size, self.head_dim)) * self.dtype.itemsize

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def empty(self, tokens: int, device: torch.device, pinned: bool = False) -> torch.Tensor:
        """Memory of this layout for so many tokens, zeroed, as a view [layers, heads, tokens, head_dim]."""
        if self.layout == "token_major":
            sizes, order = (self.num_layers, tokens, self.num_heads, self.head_dim), (0, 2, 1, 3)
        else:
            sizes, order = (self.num_heads, self.num_layers, tokens, self.head_dim), (1, 0, 2, 3)
        return torch.zeros(sizes, dtype=self.dtype, device=device, pin_memory=pinned).permute(order)


class Arena:
    """K and V of `total_blocks` blocks, and who has which.

    Attributes:
        k, v: [layers, heads, total_blocks * block_size, head_dim]; the strides tell the layout.
        allocator: gives out the blocks.
    """

    def __init__(self, shape: ArenaShape, total_blocks: int) -> None:
        self.shape = shape
        self.allocator = KVBlockAllocator(total_blocks)
        self.k, self.v = (shape.empty(total_blocks * shape.block_size, shape.device) for _ in "kv")

    def blocks(self, of: torch.Tensor) -> torch.Tensor:
        """`k` or `v` with CortexStream's indices: [layers, blocks, heads, block_size, head_dim], without a copy."""
        layers, heads, _, head_dim = of.shape
        return of.view(layers, heads, -1, self.shape.block_size, head_dim).transpose(1, 2)

    def tokens(self, of: torch.Tensor, first_block: int, count: int) -> torch.Tensor:
        """The first `count` tokens from a block on: [layers, heads, count, head_dim], without a copy."""
        return of.narrow(2, first_block * self.shape.block_size, count)

    def copy_from(self, source: "Arena", source_block: int, block: int, tokens: int) -> None:
        """Copy tokens of K and V from blocks of an arena, maybe this one, to blocks that do not overlap them."""
        self.tokens(self.k, block, tokens).copy_(source.tokens(source.k, source_block, tokens))
        self.tokens(self.v, block, tokens).copy_(source.tokens(source.v, source_block, tokens))

    def compact(self, block: int, kept: list[int]) -> None:
        """Move the tokens at the positions `kept`, ascending, to the front of the extent that begins at `block`."""
        first = next((at for at, position in enumerate(kept) if at != position), len(kept))  # those before stay
        if first == len(kept):
            return
        index = torch.tensor(kept[first:], device=self.shape.device)
        extents = [self.tokens(of, block, kept[-1] + 1) for of in (self.k, self.v)]
        moved = [extent.index_select(2, index) for extent in extents]  # copies, all before the first write
        for extent, tokens in zip(extents, moved, strict=True):
            extent[:, :, first : len(kept)] = tokens


@dataclass(frozen=True, slots=True)
class HostCopy:
    """K and V of a sequence in host memory, [layers, heads, tokens, head_dim] each; pinned if the arena is on a GPU."""

    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def of(cls, arena: Arena, block: int, tokens: int) -> "HostCopy":
        """A copy of the first `tokens` tokens from a block on. It is complete when this returns."""
        host, pinned = torch.device("cpu"), arena.shape.device.type == "cuda"
        copy = cls(*(arena.shape.empty(tokens, host, pinned) for _ in "kv"))
        copy.k.copy_(arena.tokens(arena.k, block, tokens))
        copy.v.copy_(arena.tokens(arena.v, block, tokens))
        return copy

    def write_to(self, arena: Arena, block: int) -> None:
        """Copy the tokens into the blocks of an arena from `block` on."""
        tokens = self.k.shape[2]
        arena.tokens(arena.k, block, tokens).copy_(self.k)
        arena.tokens(arena.v, block, tokens).copy_(self.v)

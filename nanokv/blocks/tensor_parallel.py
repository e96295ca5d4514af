"""Which bytes of a block go where, between workers of different tensor parallelism.

Worker `rank` of `size` has the elements [rank, rank + 1) * inner_dim of each token's heads: a part of the same row in
both models. So each pair of workers shares an interval of every row, and a gather-scatter list has one copy per layer,
outer index and token; what is contiguous on both sides is merged. Layers, outer indices, tokens and dtype must agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from nanokv.arguments import integer
from nanokv.blocks.layout import Layout
from nanokv.errors import InvalidArgument

_ALIKE = ("num_layers", "outer_dim", "page_size", "dtype")


@dataclass(frozen=True)
class Shard:
    """The blocks of one worker of a group.

    Raises:
        InvalidArgument: there is no such rank.
    """

    layout: Layout
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        integer("size", self.size, 1)
        integer("rank", self.rank, 0, self.size - 1)

    @property
    def inner(self) -> range:
        """The elements of a whole row that this worker has."""
        width = self.layout.config.inner_dim
        return range(self.rank * width, (self.rank + 1) * width)


class Copy(NamedTuple):
    """Bytes that are contiguous on both sides. Offsets are bytes from the first byte of a region of the layout."""

    source_offset: int
    target_offset: int
    nbytes: int
    source_region: int = 0
    target_region: int = 0

    def after(self, other: "Copy") -> bool:
        """Whether this copy goes on where the other one ends, on both sides."""
        return (
            other.source_offset + other.nbytes == self.source_offset
            and other.target_offset + other.nbytes == self.target_offset
            and other[3:] == self[3:]
        )


def gather_scatter(source: Shard, source_block: int, target: Shard, target_block: int) -> list[Copy]:
    """The copies that bring what a source worker has of a block into the target worker's block.

    For a whole target block, take those of all source workers: they do not overlap, and leave nothing out.

    Raises:
        InvalidArgument: the two models' blocks have different shapes, or there is no such block.
    """
    ours, theirs = source.layout.config, target.layout.config
    differ = [name for name in _ALIKE if getattr(ours, name) != getattr(theirs, name)]
    if ours.inner_dim * source.size != theirs.inner_dim * target.size:
        differ.append("inner_dim of all workers together")
    if differ:
        raise InvalidArgument(f"blocks of these workers cannot be exchanged: {', '.join(differ)} differ")
    copies: list[Copy] = []
    for copy in _rows(source, source_block, target, target_block):
        if copies and copy.after(copies[-1]):
            copies[-1] = copies[-1]._replace(nbytes=copies[-1].nbytes + copy.nbytes)
        else:
            copies.append(copy)
    return copies


def _rows(source: Shard, source_block: int, target: Shard, target_block: int) -> Iterator[Copy]:
    """A copy per layer, outer index and token; none if the workers share no heads."""
    config = source.layout.config
    first, last = max(source.inner.start, target.inner.start), min(source.inner.stop, target.inner.stop)
    width = config.dtype.itemsize
    for layer, outer in product(range(config.num_layers), range(config.outer_dim)):
        src = source.layout.memory_region(source_block, layer, outer)
        dst = target.layout.memory_region(target_block, layer, outer)
        for token in range(config.page_size if first < last else 0):
            yield Copy(
                src.offset + (token * len(source.inner) + first - source.inner.start) * width,
                dst.offset + (token * len(target.inner) + first - target.inner.start) * width,
                (last - first) * width,
                src.storage,
                dst.storage,
            )


def apply(copies: Sequence[Copy], sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Make copies between regions that this process has mapped, given as contiguous tensors, one per region.

    Raises:
        InvalidArgument: a copy leaves its region. None was made.
    """
    froms, tos = (_as_bytes(side) for side in (sources, targets))
    for copy in copies:
        ends = copy.source_offset + copy.nbytes, copy.target_offset + copy.nbytes
        here = min(copy) >= 0 and copy.source_region < len(froms) and copy.target_region < len(tos)
        if not here or ends[0] > froms[copy.source_region].numel() or ends[1] > tos[copy.target_region].numel():
            raise InvalidArgument(f"{copy} leaves the memory that was given")
    for at, to, nbytes, source, target in copies:
        tos[target][to : to + nbytes].copy_(froms[source][at : at + nbytes])


def _as_bytes(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if not all(each.is_contiguous() for each in tensors):
        raise InvalidArgument("regions must be contiguous")
    return [each.view(-1).view(torch.uint8) for each in tensors]

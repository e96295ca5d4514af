"""Slices of objects as the kernels see them: the table of a launch that scatters boxes into an engine's cache."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.kernels.slices import BOX, SLICES
from nanokv.device.machines.engine_cache import ALIGNMENT, check_alike
from nanokv.device.segment.layout import WORD


class Box(NamedTuple):
    """The part of one object that goes to one block, in elements of each dimension."""

    layer: int  #: of the object
    token: int
    head: int
    to_block: int  #: of the engine's cache
    to_layer: int
    to_token: int
    to_head: int
    layers: int  #: how many
    tokens: int
    heads: int


class ObjectStrides(NamedTuple):
    """Bytes from one item of an object to the next one in each dimension. The innermost, `dim`, has no gaps."""

    layer: int
    half: int
    token: int
    head: int


class Slices:
    """The boxes of one launch, and where they go.

    Args:
        planes: of the engine's cache, each [blocks, tokens, heads, dim]: K and V of each layer; kept alive here.
        halves: planes per layer.
        strides: of the objects.
        boxes: one per request of the launch.

    Raises:
        ValueError: addresses, strides or heads are not multiples of 16 bytes, or `dim` has gaps.

    Attributes:
        table: int64, on the device: a SLICES record, the addresses of the planes, and a BOX per request.
        layout: the constexpr of the kernel.
        tiles: of each piece.
    """

    @torch.inference_mode(False)
    def __init__(
        self, planes: Sequence[torch.Tensor], halves: int, strides: ObjectStrides, boxes: Sequence[Box]
    ) -> None:
        check_alike(planes)
        first = planes[0]
        size, dim = first.element_size(), first.shape[3]
        row = dim * size
        if dim > 1 and first.stride(3) != 1:
            raise ValueError(f"the last dimension of a plane must have stride 1, not {first.stride(3)}")
        to = [stride * size for stride in first.stride()[:3]]
        addresses = [plane.data_ptr() for plane in planes]
        odd = [value for value in (*addresses, *to, *strides, row) if value % ALIGNMENT]
        if odd:
            raise ValueError(f"addresses, strides and heads must be multiples of {ALIGNMENT} bytes, not {odd[0]}")
        strip = min(row & -row, TILE_BYTES.value)
        self.planes = list(planes)
        self.layout = (strip // WORD, row // strip)
        largest = max((each.layers * each.tokens * each.heads for each in boxes), default=1)
        self.tiles = -(-largest * halves * row // TILE_BYTES.value)
        rows = [word for each in boxes for word in _row(each, halves, strides)]
        fixed = SLICES.size // WORD + len(addresses)
        self.table = torch.empty(fixed + len(rows), dtype=torch.int64, device=first.device)
        head = [self.tiles, self.table.data_ptr() + fixed * WORD, halves, *strides, *to]
        assert len(head) * WORD == SLICES.size
        self.table.copy_(torch.tensor([*head, *addresses, *rows], dtype=torch.int64, device="cpu"))


def _row(box: Box, halves: int, strides: ObjectStrides) -> tuple[int, ...]:
    """The words of a BOX, in its order."""
    offset = box.layer * strides.layer + box.token * strides.token + box.head * strides.head
    place = (box.to_block, box.to_layer * halves, box.to_token, box.to_head)
    words = (offset, *place, box.layers, box.tokens, box.heads)
    assert len(words) * WORD == BOX.size
    return words

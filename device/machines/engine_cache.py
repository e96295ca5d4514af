"""An engine's paged KV cache as the kernels see it: planes in device memory, and the rows of their blocks."""

from collections.abc import Sequence

import torch

from nanokv.device.kernels.paged import PAGES
from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.segment.layout import WORD

ALIGNMENT = 16  #: of all addresses and sizes: the kernels move 16 bytes at a time


class Pages:
    """Planes of one shape: K and V of each layer of a paged KV cache.

    Args:
        planes: each [blocks, tokens, heads, dim], all of one shape, dtype, device and strides (any); kept alive here.
            An object holds one block of consecutive planes.

    Raises:
        ValueError: the planes differ, are not four-dimensional, or have addresses, strides or rows that are not
            multiples of 16 bytes.

    Attributes:
        table: int64, on the device: a PAGES record and the addresses of the planes.
        layout: the constexpr `layout` of the kernels, see `kernels.paged`.
        plane_bytes: bytes of one block of one plane.
    """

    @torch.inference_mode(False)
    def __init__(self, planes: Sequence[torch.Tensor]) -> None:
        check_alike(planes)
        first = planes[0]
        self.planes = list(planes)
        self.blocks = len(first)
        self.plane_bytes = first[0].numel() * first.element_size() if len(first) else 0
        self.layout, strides = _rows(first)
        addresses = [plane.data_ptr() for plane in planes]
        odd = [value for value in (*addresses, *strides, self.plane_bytes) if value % ALIGNMENT]
        if odd:
            raise ValueError(f"addresses, strides and rows must be multiples of {ALIGNMENT} bytes, not {odd[0]}")
        words = torch.tensor([*strides, *addresses], dtype=torch.int64, device="cpu")
        assert PAGES.size == len(strides) * WORD
        self.table = words.to(first.device)


def check_alike(planes: Sequence[torch.Tensor]) -> None:
    """Refuse planes that are not of one shape, dtype, device and strides.

    Raises:
        ValueError: naming the difference.
    """
    if not planes:
        raise ValueError("a paged cache needs at least one plane")
    first = planes[0]
    if first.dim() != 4 or not first.numel():
        raise ValueError(f"a plane must be [blocks, tokens, heads, dim], none of them 0, not {list(first.shape)}")
    for attribute in ("shape", "dtype", "device"):
        kinds = {getattr(plane, attribute) for plane in planes}
        if len(kinds) > 1:
            raise ValueError(f"planes must be of one {attribute}, not {sorted(map(str, kinds))}")
    if len({plane.stride() for plane in planes}) > 1:
        raise ValueError(f"planes must have the same strides, not {sorted({plane.stride() for plane in planes})}")


def _rows(plane: torch.Tensor) -> tuple[tuple[int, int, int, int], tuple[int, int, int]]:
    """The longest runs of bytes without a gap: `layout` (cols, strips, rows, inner), and the strides as in PAGES."""
    _, tokens, heads, dim = plane.shape
    size = plane.element_size()
    of_block, of_token, of_head, of_element = (stride * size for stride in plane.stride())
    if dim > 1 and of_element != size:
        raise ValueError(f"the last dimension of a plane must have stride 1, not {plane.stride(3)}")
    row, rows, inner, outer_stride, inner_stride = dim * size, tokens * heads, heads, of_token, of_head
    if heads == 1 or of_head == row:
        row, rows, inner, outer_stride, inner_stride = row * heads, tokens, 1, of_token, 0
        if tokens == 1 or of_token == row:
            row, rows, outer_stride = row * tokens, 1, 0
    if row % ALIGNMENT:
        raise ValueError(f"rows must be multiples of {ALIGNMENT} bytes, not {row}")
    strip = min(row & -row, TILE_BYTES.value)  # a power of two
    return (strip // WORD, row // strip, rows, inner), (of_block, outer_stride, inner_stride)

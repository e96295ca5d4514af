"""Tests of batches over an engine's paged KV cache, as plain functions of a device; see `bodies`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.engine_cache import Pages
from nanokv.device.machines.records import Request
from nanokv.device.protocol.status import Status
from tests.gpu.bodies import World, flat, key, world

OK, MISS, SIZE = Status.OK, Status.MISS, Status.SIZE
BLOCKS = 5


class Shape(NamedTuple):
    """The shape of an engine's cache."""

    layers: int
    tokens: int
    heads: int
    dim: int
    dtype: torch.dtype


SMALL = Shape(3, 16, 2, 32, torch.bfloat16)  # a plane's block is a fraction of a tile
ODD = Shape(2, 7, 3, 24, torch.bfloat16)  # rows of 48 bytes
LARGE = Shape(1, 32, 5, 64, torch.float32)  # a plane's block is more than a tile
assert TILE_BYTES.value < 32 * 5 * 64 * 4


def block_first(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """Planes of layers [blocks, 2, tokens, heads, dim]."""
    layers = [_zeros((BLOCKS, 2, *shape[1:4]), shape, device) for _ in range(shape.layers)]
    return [layer[:, half] for layer in layers for half in range(2)]


def half_first(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """Planes of one tensor [layers, 2, blocks, tokens, heads, dim]."""
    whole = _zeros((shape.layers, 2, BLOCKS, *shape[1:4]), shape, device)
    return [whole[layer, half] for layer in range(shape.layers) for half in range(2)]


def heads_first(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """Planes of layers that lie as [blocks, 2, heads, tokens, dim]."""
    _, tokens, heads, dim, _ = shape
    layers = [_zeros((BLOCKS, 2, heads, tokens, dim), shape, device) for _ in range(shape.layers)]
    return [layer[:, half].permute(0, 2, 1, 3) for layer in layers for half in range(2)]


def with_gaps(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """Planes with gaps between tokens: K and V of a token side by side, as [blocks, tokens, 2, heads, dim]."""
    _, tokens, heads, dim, _ = shape
    layers = [_zeros((BLOCKS, tokens, 2, heads, dim), shape, device) for _ in range(shape.layers)]
    return [layer[:, :, half] for layer in layers for half in range(2)]


def _zeros(size: tuple[int, ...], shape: Shape, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=shape.dtype, device=device)


LAYOUTS = (block_first, half_first, heads_first, with_gaps)


def fill(planes: list[torch.Tensor], seed: int) -> None:
    """Random values in all planes."""
    dice = torch.Generator().manual_seed(seed)
    for plane in planes:
        plane.copy_(torch.randn(plane.shape, generator=dice).to(plane.dtype))


def of_block(planes: list[torch.Tensor], block: int) -> torch.Tensor:
    """The contents of an object of one block of all planes: [planes, tokens, heads, dim]."""
    return torch.stack([plane[block] for plane in planes])


def requests(pages: Pages, blocks: list[int], first_key: int, planes: range, owner: int = 1) -> list[Request]:
    """One request for each block."""
    nbytes = pages.plane_bytes * len(planes)
    what = flat(nbytes)
    return [
        Request(key(first_key + n), 0, nbytes, owner, what, 0, block, planes.start) for n, block in enumerate(blocks)
    ]


def run(w: World, pages: Pages, what: Callable[[Batch], None], asked: list[Request]) -> list[int]:
    """One launch of a new batch."""
    batch = Batch(w.machine.table_address, 8, w.device, pages)
    batch.fill(asked)
    what(batch)
    return batch.answers()


def paged_caches_of_any_layout(device: torch.device) -> None:
    """Blocks put from one layout are got into the next one; the objects have the same bytes.

    A kernel is compiled per layout, shape and direction: on a CPU each shape has every other layout.
    """
    for turn, shape in enumerate((SMALL, ODD, LARGE)):
        with world(device, pages=1024) as w:
            sources = [layout(shape, device) for layout in LAYOUTS]
            for n, planes in enumerate(sources):
                if device.type == "cpu" and (turn + n) % 2:
                    continue
                fill(planes, n)
                pages, blocks = Pages(planes), [3, 0, 4]
                asked = requests(pages, blocks, 10 * n, range(len(planes)))
                assert run(w, pages, Batch.put, asked) == [OK] * 3
                flat = of_block(planes, 3).reshape(-1).view(torch.uint8)
                status, back = w.get(10 * n, flat.numel())
                assert status == OK and torch.equal(back, flat)
                target = LAYOUTS[(n + 1) % len(LAYOUTS)](shape, device)
                into = requests(Pages(target), [1, 2, 3], 10 * n, range(len(target)))
                assert run(w, Pages(target), Batch.get, into) == [OK] * 3
                for mine, theirs in zip([1, 2, 3], blocks, strict=True):
                    assert torch.equal(of_block(target, mine), of_block(planes, theirs))
                assert not of_block(target, 0).any() and not of_block(target, 4).any()


def a_paged_cache_layer_by_layer(device: torch.device) -> None:
    """Objects of one layer each: the first can be read before the others are put."""
    for checksum in (False, True):
        with world(device, pages=64, checksum=checksum) as w:
            planes, target = block_first(SMALL, device), heads_first(SMALL, device)
            fill(planes, 1)
            pages, into = Pages(planes), Pages(target)
            for layer in range(SMALL.layers):
                of_layer = range(2 * layer, 2 * layer + 2)
                assert run(w, into, Batch.get, requests(into, [2], layer, of_layer)) == [MISS]
                assert run(w, pages, Batch.put, requests(pages, [4], layer, of_layer)) == [OK]
                assert run(w, into, Batch.get, requests(into, [2], layer, of_layer)) == [OK]
                assert torch.equal(of_block(target[: 2 * layer + 2], 2), of_block(planes[: 2 * layer + 2], 4))
            assert not of_block(target, 1).any() and not of_block(target, 3).any()


def another_shape_is_not_read(device: torch.device) -> None:
    """An object of another shape with as many bytes, or with more planes, is not copied."""
    with world(device, pages=64) as w:
        planes, target = block_first(SMALL, device), block_first(SMALL, device)
        fill(planes, 1)
        pages, into = Pages(planes), Pages(target)
        assert run(w, pages, Batch.put, requests(pages, [4], 0, range(6))) == [OK]
        (asked,) = requests(into, [4], 0, range(6))
        other = (*asked.what[:2], asked.what[2] + 1, *asked.what[3:])
        fewer = requests(into, [4], 0, range(4))
        assert run(w, into, Batch.get, [asked._replace(what=other), *fewer]) == [SIZE, SIZE]
        assert not of_block(target, 4).any()
        assert run(w, into, Batch.get, [asked._replace(what=(0,) * 8)]) == [OK]
        found = Batch(w.machine.table_address, 2, device)
        found.fill([asked, asked._replace(key=key(99))])
        one, none = found.lookup()
        assert (one.status, one.place.nbytes, one.descriptor, none.status) == (OK, asked.nbytes, asked.what, MISS)
        assert one == w.machine.lookup(key(0))


def planes_are_checked(device: torch.device) -> None:
    """Planes that the kernels cannot copy are refused."""
    planes = block_first(SMALL, device)
    wrong: tuple[tuple[list[torch.Tensor], str], ...] = (
        ([], "at least one"),
        ([planes[0][0]], "must be"),
        ([planes[0], planes[1][:2]], "one shape"),
        ([planes[0], planes[1].float()], "one dtype"),
        ([planes[0], planes[1].contiguous()], "same strides"),
        ([planes[0][..., ::2]], "stride 1"),
        ([planes[0][..., :9]], "multiples of 16"),
        ([planes[0][..., 1:9]], "multiples of 16"),
    )
    for given, why in wrong:
        try:
            Pages(given)
        except ValueError as error:
            assert why in str(error), str(error)
        else:
            raise AssertionError(why)
    assert np.array_equal(Pages(planes).table[3:].cpu().numpy(), [plane.data_ptr() for plane in planes])


BODIES: tuple[Callable[[torch.device], None], ...] = (
    paged_caches_of_any_layout,
    a_paged_cache_layer_by_layer,
    another_shape_is_not_read,
    planes_are_checked,
)

"""Tests of batches over an engine's paged KV cache, as plain functions of a device; see `bodies`."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.engine_cache import Pages
from nanokv.device.machines.records import Request
from nanokv.device.machines.slices import Box, ObjectStrides, Slices
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.ticket import TICKET
from nanokv.keys.kv_layout import KVLayout
from nanokv.transfer.reshard import object_strides, plan
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


def slices_of_any_layout(device: torch.device) -> None:
    """Objects of other orders, degrees of tensor parallelism and block sizes, each scattered by one launch."""
    whole = torch.arange(2 * 2 * 64 * 4 * 16, dtype=torch.int32).view(2, 2, 64, 4, 16)
    base = KVLayout(layers=2, kv_heads=4, head_size=16, block_size=64, dtype="int32")
    for turn, (order, theirs, own, each, to_block) in enumerate(
        (("L2NHD", 2, 1, 32, 64), ("2NLHD", 1, 4, 64, 32), ("NH2LD", 4, 2, 16, 16))
    ):
        with world(device, pages=256, checksum=bool(turn % 2)) as w:
            source = replace(base, order=order, tp_size=theirs, block_size=each)
            mine = replace(base, tp_size=own, tp_rank=own - 1, block_size=to_block)
            shape = Shape(2, to_block, len(mine.heads), 16, torch.int32)
            keys, blocks = 64 // each, list(range(64 // to_block, 0, -1))
            planes = LAYOUTS[turn](shape, device)
            made = plan(mine, source, range(2), keys, blocks)
            for number, held in enumerate(made.sources):
                for block in range(keys):
                    tokens = slice(block * each, (block + 1) * each)
                    part = whole[:, :, tokens, held.heads.start : held.heads.stop]
                    data = part.permute(["L2NHD".index(letter) for letter in order]).contiguous().view(-1)
                    assert w.put(10 * number + block, data.view(torch.uint8).to(device)) == OK
            boxes = [piece.box for piece in made.pieces]
            asked = [Request(key(10 * piece.source + piece.key), 0, source.nbytes) for piece in made.pieces]
            missing = asked[0]._replace(key=key(99))
            small = asked[0]._replace(nbytes=source.nbytes - 4)
            other = asked[0]._replace(what=flat(source.nbytes - 4))
            batch = Batch(w.machine.table_address, 16, w.device)
            for wrong, status in ((missing, MISS), (small, SIZE), (other, SIZE)):
                batch.fill([wrong])
                batch.get_slices(Slices(planes, 2, object_strides(source), boxes[:1]))
                assert batch.answers() == [status] and not any(plane.any() for plane in planes)
            batch.fill(asked)
            batch.get_slices(Slices(planes, 2, object_strides(source), boxes))
            assert batch.answers() == [OK] * len(asked)
            assert not batch.tickets[:, : TICKET.offsets["answer"] // 8].any()
            for number, block in enumerate(blocks):
                tokens = slice(number * to_block, (number + 1) * to_block)
                want = whole[:, :, tokens, mine.heads.start : mine.heads.stop].reshape(4, *shape[1:4])
                assert torch.equal(of_block(planes, block), want.to(device))
            assert not any(plane[0].any() for plane in planes)
            if turn % 2:
                found = w.machine.lookup(asked[0].key)
                w.segments[found.place.owner][found.place.payload + source.nbytes - 1] ^= 1
                batch.fill(asked)
                batch.get_slices(Slices(planes, 2, object_strides(source), boxes))
                wrong_ones = [piece.key == made.pieces[0].key for piece in made.pieces]
                assert [status == Status.CORRUPT for status in batch.answers()] == wrong_ones
                w.segments[found.place.owner][found.place.payload + source.nbytes - 1] ^= 1


def slices_are_checked(device: torch.device) -> None:
    """Planes and objects that the kernels cannot copy are refused."""
    planes = block_first(SMALL, device)
    strides, box = ObjectStrides(1024, 512, 64, 64), Box(0, 0, 0, 0, 0, 0, 0, 1, 1, 1)
    assert Slices(planes, 2, strides, [box]).tiles == 1
    odd = [plane[..., :9] for plane in planes]
    for given, of, why in (
        (odd, strides, "multiples of 16"),
        (planes, strides._replace(token=72), "multiples of 16"),
        ([plane[..., ::2] for plane in planes], strides, "stride 1"),
        ([planes[0], planes[1].float()], strides, "one dtype"),
    ):
        try:
            Slices(given, 2, of, [box])
        except ValueError as error:
            assert why in str(error), str(error)
        else:
            raise AssertionError(why)


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
    slices_of_any_layout,
    slices_are_checked,
    planes_are_checked,
)

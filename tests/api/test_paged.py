"""PagedKV: blocks of an engine's cache, in every layout, copied by torch. Kernels: tests/gpu/cache_bodies.py."""

import math
from collections.abc import Callable

import pytest
import torch

import nanokv
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, OutOfMemory
from tests.support.worlds import MakeWorld, World

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 3, 4, 8, 2, 16
Make = Callable[[], tuple[list[torch.Tensor], int | None]]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def block_first() -> tuple[list[torch.Tensor], int | None]:
    return [zeros(BLOCKS, 2, TOKENS, HEADS, DIM) for _ in range(LAYERS)], 1


def half_first() -> tuple[list[torch.Tensor], int | None]:
    return list(zeros(LAYERS, 2, BLOCKS, TOKENS, HEADS, DIM)), 0


def heads_first() -> tuple[list[torch.Tensor], int | None]:
    return [zeros(BLOCKS, 2, HEADS, TOKENS, DIM).transpose(2, 3) for _ in range(LAYERS)], 1


LAYOUTS: tuple[Make, ...] = (block_first, half_first, heads_first)


def filled(make: Make, seed: int) -> tuple[list[torch.Tensor], int | None]:
    layers, kv_dim = make()
    dice = torch.Generator().manual_seed(seed)
    for layer in layers:
        layer.copy_(torch.randn(layer.shape, generator=dice))
    return layers, kv_dim


def block_of(layers: list[torch.Tensor], kv_dim: int | None, block: int) -> torch.Tensor:
    """[layers, 2, tokens, heads, dim], as an object holds it."""
    return torch.stack([layer[block] if kv_dim in (None, 1) else layer[:, block] for layer in layers])


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_blocks_move_between_layouts(world: World, source: Make, target: Make) -> None:
    layers, kv_dim = filled(source, 1)
    mine, my_dim = target()
    here, there = world[0].paged_kv(layers, kv_dim=kv_dim), world[1].paged_kv(mine, kv_dim=my_dim)
    assert here.put(["a", "b"], [3, 0], preferred_segment=1) == [None, None]
    assert there.get(["b", "a"], [1, 2]) == [None, None]
    assert torch.equal(block_of(mine, my_dim, 1), block_of(layers, kv_dim, 0))
    assert torch.equal(block_of(mine, my_dim, 2), block_of(layers, kv_dim, 3))
    assert not block_of(mine, my_dim, 0).any() and not block_of(mine, my_dim, 3).any()
    assert torch.equal(world[1].get("a"), block_of(layers, kv_dim, 3))
    (refused,) = here.put(["a"], [0])
    (missing,) = there.get(["none"], [0])
    assert isinstance(refused, DuplicateKey) and isinstance(missing, KeyNotFound)


def test_layers_are_published_one_by_one(world: World) -> None:
    layers, kv_dim = filled(block_first, 2)
    mine, my_dim = heads_first()
    here, there = world[0].paged_kv(layers, kv_dim=kv_dim), world[1].paged_kv(mine, kv_dim=my_dim)
    for layer in range(LAYERS):
        one = range(layer, layer + 1)
        assert here.put([f"block 2 of layer {layer}"], [2], layers=one) == [None]
        assert there.get([f"block 2 of layer {layer}"], [0], layers=one) == [None]
        assert torch.equal(block_of(mine, my_dim, 0)[: layer + 1], block_of(layers, kv_dim, 2)[: layer + 1])
        assert not block_of(mine, my_dim, 0)[layer + 1 :].any()


def test_one_head_and_no_halves(world: World) -> None:
    latents = [torch.randn(BLOCKS, TOKENS, 9) for _ in range(LAYERS)]  # 36 bytes: no multiple of 16
    mine = [torch.zeros_like(layer) for layer in latents]
    assert world[0].paged_kv(latents, kv_dim=None).put(["a"], [1]) == [None]
    assert world[1].paged_kv(mine, kv_dim=None).get(["a"], [3]) == [None]
    assert all(torch.equal(layer[3], want[1]) for layer, want in zip(mine, latents, strict=True))
    assert world[0].get("a").shape == (LAYERS, TOKENS, 9)


def test_what_has_another_shape_is_not_read(world: World) -> None:
    layers, kv_dim = filled(block_first, 3)
    assert world[0].paged_kv(layers, kv_dim=kv_dim).put(["a"], [1]) == [None]
    for others in (
        [layer.view(torch.int16) for layer in layers],
        [layer.reshape(BLOCKS, 2, TOKENS, 1, HEADS * DIM) for layer in layers],
        layers[:2],
    ):
        before = [layer.clone() for layer in others]
        (error,) = world[1].paged_kv(others, kv_dim=1).get(["a"], [2])
        assert isinstance(error, InvalidArgument) and "another size" in str(error)
        assert all(map(torch.equal, before, others))


def test_a_full_heap_refuses_some(make_world: MakeWorld) -> None:
    layers, kv_dim = filled(block_first, 4)
    nbytes = block_of(layers, kv_dim, 0).nbytes
    page = 1 << (nbytes - 1).bit_length()
    world = make_world(heap_bytes=2 * page, page_bytes=page, evict=False)
    errors = (
        world[0].paged_kv(layers, kv_dim=kv_dim).put([f"k{i}" for i in range(4)], [0, 1, 2, 3], preferred_segment=1)
    )
    assert errors[:2] == [None, None] and all(isinstance(error, OutOfMemory) for error in errors[2:])


def test_what_cannot_be_is_refused(world: World) -> None:
    layers, kv_dim = block_first()
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    for keys, blocks, chosen, why in (
        (["a"], [], None, "1 keys and 0 blocks"),
        (["a"], [BLOCKS], None, "block must be 0 to 3, not 4"),
        (["a"], [-1], None, "not -1"),
        (["a"], [True], None, "not True"),
        (["a"], [0], range(2, 4), "layers must be"),
        (["a"], [0], range(0), "layers must be"),
        (["a"], [0], range(0, 3, 2), "layers must be"),
    ):
        for call in (paged.put, paged.get):
            with pytest.raises(InvalidArgument, match=why):
                call(keys, blocks, layers=chosen)
    with pytest.raises(InvalidArgument, match="named twice"):
        paged.get(["a", "b"], [1, 1])
    for wrong, dim, why in (
        (layers, 2, "kv_dim must be"),
        (layers, 0, "dimension 0 of a layer must be 2"),
        ([], 1, "at least one"),
        ([layers[0], layers[1][:2]], 1, "one shape"),
        ([layer.to("meta") for layer in layers], 1, "must be on cpu"),
        ([layer[0, 0, 0] for layer in layers], None, "must be"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            world[0].paged_kv(wrong, kv_dim=dim)
    assert paged.put([], []) == paged.get([], []) == []
    world[0].close()
    with pytest.raises(nanokv.NanoKVError, match="closed"):
        paged.put(["a"], [0])


def test_layers_of_several_shapes_are_moved_as_they_are(world: World) -> None:
    """As latents, the keys of an indexer and a state have them: in one buffer, block by block, or layer by layer."""
    shapes: list[tuple[torch.dtype, tuple[int, ...]]] = [
        (torch.bfloat16, (1, 4, 6)),
        (torch.uint8, (1, 4, 13)),
        (torch.float32, (3, 5)),
        (torch.float8_e4m3fn, (2, 2, 8)),
    ]
    sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in shapes]
    by_block = torch.randint(0, 255, (BLOCKS, 256), dtype=torch.uint8)
    layers, at = [], 0
    for (dtype, shape), nbytes in zip(shapes, sizes, strict=True):
        layers.append(by_block[:, at : at + nbytes].view(dtype).view(BLOCKS, *shape))
        at += nbytes + -nbytes % 8
    others = [torch.zeros(BLOCKS, *shape, dtype=dtype) for dtype, shape in shapes]
    one, two = world[0].paged_kv(layers, kv_dim=None), world[1].paged_kv(others, kv_dim=None)
    assert one.put(["a", "b"], [1, 3]) == [None, None]
    put = one.begin_put(["c"], [2])
    put.write(range(1, 3))
    assert put.commit() == [None]
    assert two.get(["b", "a", "c"], [0, 1, 2]) == [None] * 3
    for mine, theirs in zip(layers, others, strict=True):
        assert torch.equal(mine[[3, 1, 2]].view(torch.uint8), theirs[:3].view(torch.uint8))
    assert world[0].get("a").shape == (sum(sizes),)
    one.put(["part"], [2], layers=range(1, 3))
    assert two.get(["part"], [3], layers=range(1, 3)) == [None]
    assert torch.equal(others[2][3], layers[2][2])
    with pytest.raises(InvalidArgument, match="layers of several shapes have no layout"):
        two.get(["a"], [0], layers=range(1), held=range(2))
    for wrong, why in (
        ([layers[0], others[1][:2]], "as many blocks each, not 2 and 4"),
        ([layers[0], others[1].transpose(1, 3)], "stride 1"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            world[0].paged_kv(wrong, kv_dim=None)
    meeting = by_block.view(BLOCKS, 256)
    paged = world[1].paged_kv([meeting[:, :64], meeting[:, 60:100]], kv_dim=None)
    with pytest.raises(InvalidArgument, match="share memory"):
        paged.get(["a"], [0])
    world[1].paged_kv([meeting[:, :64], meeting[:, 64:100]], kv_dim=None)


def test_counted_as_traffic(world: World) -> None:
    layers, kv_dim = filled(block_first, 5)
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    nbytes = block_of(layers, kv_dim, 0).nbytes
    paged.put(["a", "b", "a"], [0, 1, 2])
    paged.get(["a", "none"], [2, 3])
    stats = world[0].stats()
    assert (stats["puts"], stats["put_errors"], stats["bytes_tx"]) == (2, 1, 2 * nbytes)
    assert (stats["gets"], stats["misses"], stats["bytes_rx"]) == (1, 1, nbytes)


def test_prefix_length(world: World) -> None:
    world[0].put_many([f"b{i}" for i in range(5)], [torch.ones(1)] * 5)
    world[0].remove("b3")
    for keys, length in ((["b0", "b1", "b2", "b3", "b4"], 3), ([], 0), (["b3"], 0), (["b4", "b0"], 2)):
        assert world[1].prefix_length(keys) == length

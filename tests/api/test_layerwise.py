"""Blocks that are stored layer by layer: `PagedKV.begin_put`."""

import pytest
import torch

from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, NotReady, OutOfMemory, PeerLost
from tests.api.test_paged import LAYERS, LAYOUTS, Make, block_of, filled, heads_first
from tests.support.faults import Calls
from tests.support.worlds import MakeWorld, World


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


@pytest.mark.parametrize("make", LAYOUTS)
def test_a_block_is_there_when_all_layers_are(world: World, make: Make) -> None:
    layers, kv_dim = filled(make, 1)
    computed = [layer.clone() for layer in layers]
    for layer in layers:
        layer.zero_()
    put = world[0].paged_kv(layers, kv_dim=kv_dim).begin_put(["a", "b"], [2, 0], preferred_segment=1)
    assert put.opened == 2
    assert put.keys == ["a", "b"]
    for number, values in enumerate(computed):
        layers[number].copy_(values)  # the forward pass
        put.write(range(number, number + 1))
        layers[number].zero_()
        with pytest.raises(NotReady):
            world[1].get("a")
    assert put.commit() == [None, None]
    for key, block in (("a", 2), ("b", 0)):
        assert torch.equal(world[1].get(key), block_of(computed, kv_dim, block))


def test_commit_copies_the_layers_that_were_not_written(world: World) -> None:
    layers, kv_dim = filled(heads_first, 2)
    put = world[0].paged_kv(layers, kv_dim=kv_dim).begin_put(["a"], [1], preferred_segment=1)
    put.write(range(1, 2))
    assert put.commit() == [None]
    assert torch.equal(world[1].get("a"), block_of(layers, kv_dim, 1))
    for late in (put.commit, lambda: put.write(range(1))):
        with pytest.raises(InvalidArgument, match="already"):
            late()
    put.abort()  # nothing
    assert world[1].exists("a")


def test_some_layers(world: World) -> None:
    layers, kv_dim = filled(heads_first, 3)
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    put = paged.begin_put(["last two"], [3], layers=range(1, LAYERS), preferred_segment=1)
    put.write(range(LAYERS - 1))
    with pytest.raises(InvalidArgument, match="part of range"):
        put.write(range(LAYERS))
    assert put.commit() == [None]
    assert torch.equal(world[1].get("last two"), block_of(layers, kv_dim, 3)[1:])


def test_refused_keys_do_not_disturb_the_others(world: World) -> None:
    layers, kv_dim = filled(heads_first, 4)
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    assert paged.put(["a"], [0], preferred_segment=1) == [None]
    put = paged.begin_put(["b", "a", "c"], [1, 2, 3], preferred_segment=1)
    assert put.opened == 2
    first, refused, last = put.commit()
    assert first is last is None
    assert isinstance(refused, DuplicateKey)
    assert torch.equal(world[1].get("a"), block_of(layers, kv_dim, 0))
    assert torch.equal(world[1].get("c"), block_of(layers, kv_dim, 3))
    with pytest.raises(InvalidArgument, match="twice"):
        paged.begin_put(["d", "d"], [1, 2])


def test_abort_leaves_nothing(world: World) -> None:
    layers, kv_dim = filled(heads_first, 5)
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    before = world[1].stats()["used_pages"]
    put = paged.begin_put(["a", "b"], [1, 2], preferred_segment=1)
    put.write(range(LAYERS))
    put.abort()
    with pytest.raises(KeyNotFound):
        world[1].get("a")
    assert paged.put(["a", "b"], [3, 0], preferred_segment=1) == [None, None]
    for key in ("a", "b"):
        world[1].remove(key)
    assert world[1].stats()["used_pages"] == before


def test_a_full_segment_refuses_and_a_lease_holds(make_world: MakeWorld) -> None:
    layers, kv_dim = filled(heads_first, 6)
    nbytes = block_of(layers, kv_dim, 0).nbytes
    world = make_world(n=2, heap_bytes=2 * nbytes, page_bytes=nbytes, water=(100, 100))
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    assert paged.begin_put(["a", "b"], [0, 1], preferred_segment=1, hold=3600.0).commit() == [None, None]
    (error,) = paged.begin_put(["c"], [2], preferred_segment=1).commit()
    assert isinstance(error, OutOfMemory)
    world[1].get("a")
    assert paged.begin_put(["c"], [2], preferred_segment=1).commit() == [None]
    assert world[1].exists_many(["a", "b", "c"]) == [False, True, True]


def test_nothing_is_left_of_a_begin_that_raises(world: World, calls: Calls) -> None:
    layers, kv_dim = filled(heads_first, 7)
    paged = world[0].paged_kv(layers, kv_dim=kv_dim)
    calls.fail(world[0].engine.allocation, "begin", PeerLost("the third one"), at=(3,))
    with pytest.raises(PeerLost, match="third"):
        paged.begin_put(["a", "b", "c"], [0, 1, 2], preferred_segment=1)
    calls.go_on()
    assert paged.put(["a", "b", "c"], [0, 1, 2], preferred_segment=1) == [None] * 3  # no key is taken


def test_a_commit_that_raises_does_not_disturb_the_others(world: World, calls: Calls) -> None:
    layers, kv_dim = filled(heads_first, 8)
    put = world[0].paged_kv(layers, kv_dim=kv_dim).begin_put(["a", "b", "c"], [0, 1, 2], preferred_segment=1)
    lost = world[0].digest("b")
    calls.fail(world[0].engine.allocation, "finish", PeerLost("gone"), when=lambda key, begun: key == lost)
    first, error, last = put.commit()
    assert first is last is None
    assert isinstance(error, PeerLost)
    assert world[1].exists_many(["a", "c"]) == [True, True]

"""Blocks of an engine's paged cache, put on one node and read on another."""

import torch

from nanokv.errors import KeyNotFound
from tests.support.until import until

from .conftest import MakeCluster, key_of

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 3, 8, 4, 2, 16


def engine() -> list[torch.Tensor]:
    return [torch.randn(BLOCKS, 2, TOKENS, HEADS, DIM) for _ in range(LAYERS)]


def test_prefill_here_decode_there(make_cluster: MakeCluster) -> None:
    prefill, decode = make_cluster(2)
    theirs, mine = engine(), engine()
    keys = [f"block{i}" for i in range(6)]
    one, two = prefill.paged_kv(theirs, kv_dim=1), decode.paged_kv(mine, kv_dim=1)
    with_layers = one.begin_put(keys, range(6), preferred_segment=0)
    for layer in range(LAYERS):
        with_layers.write(range(layer, layer + 1))
    assert with_layers.commit() == [None] * 6
    until(lambda: all(decode.member.locations.node_of(decode.digest(key)) == "n0" for key in keys), "the events")
    errors = two.get([*keys, "none"], [1, 2, 3, 4, 5, 6, 0])
    assert errors[:6] == [None] * 6 and isinstance(errors[6], KeyNotFound)
    for layer in range(LAYERS):
        assert torch.equal(mine[layer][1:7], theirs[layer][:6])
    assert decode.world.exists_many(keys) == [True] * 6  # they are here now


def test_some_layers_of_blocks_from_another_node(make_cluster: MakeCluster) -> None:
    prefill, decode = make_cluster(2)
    theirs, mine = engine(), engine()
    prefill.paged_kv(theirs, kv_dim=1).put(["a", "b"], [3, 4])
    until(lambda: all(decode.member.locations.node_of(decode.digest(key)) for key in "ab"), "the events")
    handle = decode.paged_kv(mine, kv_dim=1).get_async(["a", "b"], [0, 1], layers=range(1, 2), held=range(LAYERS))
    assert handle.result(60) == [None, None]
    assert torch.equal(mine[1][:2], theirs[1][3:5]) and not torch.equal(mine[0][:2], theirs[0][3:5])


def test_bring(make_cluster: MakeCluster) -> None:
    one, two = make_cluster(2, world={"checksum": True})
    keys = [key_of(one, "n1", f"x{i}") for i in range(5)]
    for i, key in enumerate(keys):
        two.put(key, torch.full((50, 3), i))
    assert one.bring([*keys, "none"]) == [True] * 5 + [False]
    for i, key in enumerate(keys):
        with one.world.pin(key) as tensor:
            assert torch.equal(tensor, torch.full((50, 3), i))
    assert one.bring(keys) == [True] * 5

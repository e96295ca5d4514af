"""Chunks of other kinds of engines: groups of layers, latent attention, layer by layer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from lmcache.v1.event_manager import EventManager
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.storage_manager import StorageManager

from nanokv.errors import NanoKVError
from tests.integrations.lmcache.calls import PATIENCE
from tests.integrations.lmcache.parts import CHUNK, CONNECTOR, Backends, content, key
from tests.support.until import until

Make = Callable[..., Backends]


def groups(*heads: int) -> Any:
    """What LMCache tells of groups of layers of so many heads."""
    kernel_groups = [
        SimpleNamespace(shape_desc=SimpleNamespace(kv_size=2), num_layers=2, hidden_dim_size=64 * each, dtype=dtype)
        for each, dtype in zip(heads, (torch.bfloat16, torch.float32), strict=True)
    ]
    return SimpleNamespace(kernel_groups=kernel_groups, num_kernel_groups=len(kernel_groups))


@pytest.mark.surface(CONNECTOR, "get")
@pytest.mark.parametrize("tokens", [5, CHUNK])
def test_groups_of_layers(backends: Make, tokens: int) -> None:
    made = backends(metadata={"kv_layer_groups_manager": groups(2, 1)})
    assert len(made.connector.meta_shapes) == len(made.connector.meta_dtypes) == 2
    chunk = made.chunk(1, tokens=tokens)
    made.remote.submit_put_task(key(1), chunk).result(PATIENCE)
    assert made.remote.contains(key(1)) and made.connector.batched_contains([key(1), key(2)]) == 1
    read = made.remote.get_blocking(key(1))
    assert content(read) == content(chunk)
    assert read.get_shapes() == chunk.get_shapes() and read.get_dtypes() == chunk.get_dtypes()
    assert all(torch.equal(_bits(read.get_tensor(i)), _bits(chunk.get_tensor(i))) for i in range(2))
    other = backends(metadata={"kv_layer_groups_manager": groups(1, 2)})
    assert other.remote.get_blocking(key(1)) is None and not other.remote.contains(key(1))
    whole = backends()  # one group
    assert whole.remote.get_blocking(key(1)) is None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.surface(CONNECTOR, "get")
def test_latent_attention(backends: Make) -> None:
    made = backends(metadata={"use_mla": True, "kv_shape": (4, 1, CHUNK, 1, 96)})
    assert made.connector.meta_fmt == MemoryFormat.KV_MLA_FMT
    chunk = made.chunk(1, tokens=3, fmt=MemoryFormat.KV_MLA_FMT)
    made.remote.submit_put_task(key(1), chunk).result(PATIENCE)
    read = made.remote.get_blocking(key(1))
    assert content(read) == content(chunk) and read.get_memory_format() == MemoryFormat.KV_MLA_FMT
    assert read.get_shape() == chunk.get_shape() == torch.Size([1, 4, 3, 96])


@pytest.mark.surface(CONNECTOR, "get")
def test_rank_zero_stores_for_all_ranks_of_latent_attention(backends: Make) -> None:
    ranks = [
        backends(metadata={"use_mla": True, "kv_shape": (4, 1, CHUNK, 1, 96), "world_size": 2, "worker_id": rank})
        for rank in range(2)
    ]
    chunk = ranks[0].chunk(1, fmt=MemoryFormat.KV_MLA_FMT)
    ranks[1].remote.submit_put_task(key(1, world_size=2, worker_id=1), chunk).result(PATIENCE)
    assert not ranks[1].remote.contains(key(1, world_size=2, worker_id=1))  # LMCache has left it to rank 0
    ranks[0].remote.submit_put_task(key(1, world_size=2), chunk).result(PATIENCE)
    assert content(ranks[1].remote.get_blocking(key(1, world_size=2, worker_id=1))) == content(chunk)


LAYERS = [
    ({}, {}, MemoryFormat.KV_T2D, (CHUNK, 2, 128)),
    ({"enable_blending": True}, {}, MemoryFormat.KV_2TD, (2, CHUNK, 128)),
    ({}, {"use_mla": True, "kv_shape": (4, 1, CHUNK, 1, 96)}, MemoryFormat.KV_MLA_FMT, (CHUNK, 96)),
]


@pytest.mark.surface(CONNECTOR, "batched_get")
@pytest.mark.parametrize(("config", "metadata", "fmt", "dims"), LAYERS)
def test_layer_by_layer(
    backends: Make, config: dict[str, Any], metadata: dict[str, Any], fmt: MemoryFormat, dims: tuple[int, ...]
) -> None:
    made = backends(use_layerwise=True, metadata=metadata, **config)
    keys, shape = key(1).split_layers(4), torch.Size(dims)
    layers = [made.filled([shape], [torch.bfloat16], fmt, seed) for seed in range(4)]
    made.run(made.connector.batched_put(keys, layers))
    assert made.remote.batched_contains(keys) == 4
    read = made.remote.batched_get_blocking(keys)
    assert [content(each) for each in read] == [content(each) for each in layers]
    assert {(each.get_shape(), each.get_memory_format()) for each in read} == {(shape, fmt)}
    assert made.connector.chunks._layout.forms[0].fmt == fmt
    short = made.filled([torch.Size([*dims[:-1], 64])], [torch.bfloat16], fmt)
    made.run(made.connector.batched_put(key(2).split_layers(1), [short]))
    assert made.run(made.connector.batched_get(key(2).split_layers(1))) == [None]  # not of this engine


def test_tags_of_requests_are_part_of_the_key(backends: Make) -> None:
    made = backends()
    tagged = [key(1, request_configs={"lmcache.tag.user": user}) for user in ("a", "b")]
    made.remote.submit_put_task(tagged[0], made.chunk(1)).result(PATIENCE)
    assert [made.remote.contains(each) for each in (*tagged, key(1))] == [True, False, False]


@pytest.mark.surface(CONNECTOR, "put")
def test_what_has_no_memory_here_is_refused(backends: Make) -> None:
    made = backends()
    chunk = made.chunk(1)
    chunk.ref_count_down()
    chunk.invalidate()
    with pytest.raises(NanoKVError, match="no tensor"):
        made.run(made.connector.put(key(1), chunk))
    assert not made.remote.contains(key(1))


def test_chunks_larger_than_usual_objects(backends: Make) -> None:
    shape = (8, 2, CHUNK, 4, 64)  # 128 KiB; 128 pages of 256 bytes are 32 KiB
    made = backends({"page_bytes": 256}, metadata={"kv_shape": shape})
    chunk = made.chunk(1)
    made.remote.submit_put_task(key(1), chunk).result(PATIENCE)
    assert content(made.remote.get_blocking(key(1))) == content(chunk)


def test_lmcaches_storage_manager(backends: Make) -> None:
    made = backends()  # for its configuration
    manager = StorageManager(made.config, made.metadata, EventManager())
    try:
        keys = [key(n) for n in range(4)]
        shapes, dtypes = made.metadata.get_shapes(), made.metadata.get_dtypes()
        objects = manager.batched_allocate(shapes, dtypes, 3, MemoryFormat.KV_2LTD)
        for number, each in enumerate(objects):
            each.tensor.fill_(number + 1)
        manager.batched_put(keys[:3], objects)
        backend = manager.storage_backends["RemoteBackend-nanokv"]
        until(lambda: backend.batched_contains(keys) == 3)
        manager.clear(locations=["LocalCPUBackend"])
        assert manager.contains(keys[0]) == "RemoteBackend-nanokv" and manager.contains(keys[3]) is None
        read = manager.batched_get(keys[:3], location="RemoteBackend-nanokv")
        for number, each in enumerate(read):
            assert each.tensor.eq(number + 1).all()
            each.ref_count_down()
        assert manager.remove(keys[0]) == 1 and manager.contains(keys[0]) is None
    finally:
        manager.close()

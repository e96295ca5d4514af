"""NanoKVConnector in LMCache's own RemoteBackend: chunks come back as they were put."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from lmcache.v1.memory_management import MemoryFormat

from tests.integrations.lmcache.parts import CHUNK, CONNECTOR, Backends, content, key

Make = Callable[..., Backends]


@pytest.mark.surface(CONNECTOR, "put")
@pytest.mark.surface(CONNECTOR, "get")
@pytest.mark.surface(CONNECTOR, "exists")
@pytest.mark.surface(CONNECTOR, "exists_sync")
def test_a_chunk_comes_back_as_it_was_put(backends: Make) -> None:
    made = backends()
    assert type(made.connector).__name__ == "NanoKVConnector"
    chunk, one = made.chunk(1), key(1)
    assert not made.remote.contains(one) and not made.connector.exists_sync(one)
    made.remote.submit_put_task(one, chunk).result(60)
    assert made.remote.contains(one) and made.connector.exists_sync(one)
    assert chunk.get_ref_count() == 1
    read = made.remote.get_blocking(one)
    assert content(read) == content(chunk)
    assert read.get_shape() == chunk.get_shape() and read.get_dtype() == chunk.get_dtype()
    assert read.get_memory_format() == MemoryFormat.KV_2LTD and read.get_ref_count() == 1
    assert made.remote.get_blocking(key(2)) is None
    for each in (chunk, read):
        each.ref_count_down()
    assert made.used() == 0


@pytest.mark.surface(CONNECTOR, "support_batched_put")
@pytest.mark.surface(CONNECTOR, "support_batched_get")
@pytest.mark.surface(CONNECTOR, "support_batched_contains")
@pytest.mark.surface(CONNECTOR, "support_batched_async_contains")
@pytest.mark.surface(CONNECTOR, "support_batched_get_non_blocking")
@pytest.mark.surface(CONNECTOR, "batched_put")
@pytest.mark.surface(CONNECTOR, "batched_get")
@pytest.mark.surface(CONNECTOR, "batched_contains")
@pytest.mark.surface(CONNECTOR, "batched_async_contains")
@pytest.mark.surface(CONNECTOR, "batched_get_non_blocking")
def test_many_chunks_in_one_call(backends: Make) -> None:
    made = backends()
    keys, chunks = [key(n) for n in range(6)], [made.chunk(n) for n in range(6)]
    for method in ("put", "get", "contains", "async_contains", "get_non_blocking"):
        assert getattr(made.connector, f"support_batched_{method}")()
    present = [0, 1, 2, 4]
    made.run(made.connector.batched_put([keys[n] for n in present], [chunks[n] for n in present]))
    assert made.remote.batched_contains(keys) == 3
    assert made.run(made.remote.batched_async_contains("a", keys, pin=True)) == 3
    read = made.remote.batched_get_blocking(keys)
    assert [each is not None for each in read] == [n in present for n in range(6)]
    prefix = made.run(made.remote.batched_get_non_blocking("a", keys))
    assert len(prefix) == 3
    assert [content(each) for each in prefix] == [content(each) for each in chunks[:3]]
    assert all(content(each) == content(chunk) for each, chunk in zip(read, chunks, strict=True) if each)
    for each in (*chunks, *prefix, *(each for each in read if each)):
        assert each.get_ref_count() == 1
        each.ref_count_down()
    assert made.used() == 0


@pytest.mark.surface(CONNECTOR, "reshape_partial_chunk")
@pytest.mark.parametrize("tokens", [1, 7, CHUNK])
def test_the_last_chunk_may_be_partial(backends: Make, tokens: int) -> None:
    made = backends()
    chunk = made.chunk(3, tokens=tokens)
    made.remote.submit_put_task(key(3), chunk).result(60)
    read = made.remote.get_blocking(key(3))
    assert read.get_shape() == chunk.get_shape() and content(read) == content(chunk)
    assert read.get_num_tokens() == tokens
    full = made.chunk(3)
    same = made.connector.reshape_partial_chunk(full, chunk.get_size())  # LMCache's own way to a partial chunk
    made.remote.submit_put_task(key(4), same).result(60)
    again = made.remote.get_blocking(key(4))
    assert again.get_shape() == chunk.get_shape() and content(again) == content(same)
    with pytest.raises(ValueError):
        made.connector.reshape_partial_chunk(full, 1)


FORMS = [
    (torch.Size([CHUNK, 2, 128]), MemoryFormat.KV_T2D),
    (torch.Size([2, CHUNK, 128]), MemoryFormat.KV_2TD),
    (torch.Size([5, 96]), MemoryFormat.EC_TD),
    (torch.Size([5, 96]), MemoryFormat.HS_TD),
    (torch.Size([2, 4, CHUNK, 128]), MemoryFormat.KV_2LTD),
]


@pytest.mark.surface(CONNECTOR, "get")
@pytest.mark.parametrize(("shape", "fmt"), FORMS)
def test_shape_dtype_and_format_are_kept(backends: Make, shape: torch.Size, fmt: MemoryFormat) -> None:
    made = backends()
    chunk = made.filled([shape], [torch.bfloat16], fmt)
    made.remote.submit_put_task(key(5), chunk).result(60)
    assert made.remote.contains(key(5)) and made.connector.batched_contains([key(5)]) == 1
    read = made.remote.get_blocking(key(5))
    assert read.get_memory_format() == fmt and read.get_shape() == shape and read.get_dtype() == torch.bfloat16
    assert content(read) == content(chunk)
    assert made.connector.remove_sync(key(5)) and not made.remote.contains(key(5))


@pytest.mark.surface(CONNECTOR, "put")
def test_keys_of_layers_are_different_objects(backends: Make) -> None:
    made = backends()
    layers = [key(6), *key(6).split_layers(3)]
    chunks = [made.chunk(n) for n in range(len(layers))]
    made.run(made.connector.batched_put(layers, chunks))
    read = made.run(made.connector.batched_get(layers))
    assert [content(each) for each in read] == [content(each) for each in chunks]


@pytest.mark.surface(CONNECTOR, "remove_sync")
@pytest.mark.surface(CONNECTOR, "list", differs="the keys that this process has put")
def test_list_and_remove(backends: Make) -> None:
    made = backends()
    keys = [key(n) for n in range(4)]
    made.run(made.connector.batched_put(keys, [made.chunk(n) for n in range(4)]))
    assert made.run(made.remote.connection.list()) == [each.to_string() for each in keys]
    assert made.remote.remove(keys[1]) and not made.remote.remove(keys[1])
    assert made.run(made.connector.list()) == [keys[n].to_string() for n in (0, 2, 3)]

"""What fails is a miss, or an error that LMCache counts; no memory is lost, and nothing waits for ever."""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryFormat

from nanokv.errors import CacheClosed, InvalidArgument, OutOfMemory
from nanokv.integrations.lmcache.adapter import name_of
from tests.integrations.lmcache.calls import PATIENCE, load, look_up, store
from tests.integrations.lmcache.parts import ADAPTER, CHUNK, CONNECTOR, Backends, content, key, memory, object_key
from tests.support.until import until

Make = Callable[..., Backends]


def all_memory(made: Backends) -> list[Any]:
    """What is left of LMCache's memory."""
    taken: list[Any] = []
    while True:
        one = made.cpu.allocate(made.metadata.get_shapes(), made.metadata.get_dtypes(), busy_loop=False)
        if one is None:
            return taken
        taken.append(one)


@pytest.mark.surface(CONNECTOR, "get", differs="a chunk of another layout or dtype than the engine's is a miss")
@pytest.mark.parametrize(
    "other", [{"kv_dtype": torch.float16}, {"kv_shape": (4, 2, CHUNK, 4, 64)}, {"kv_shape": (2, 2, CHUNK, 2, 64)}]
)
def test_a_chunk_of_another_engine_is_a_miss(backends: Make, other: dict[str, Any]) -> None:
    mine = backends()
    theirs = backends(metadata=other)
    mine.remote.submit_put_task(key(1), mine.chunk(1)).result(PATIENCE)
    assert theirs.remote.get_blocking(key(1)) is None
    assert theirs.run(theirs.connector.batched_get([key(1)])) == [None] and theirs.used() == 0
    chunk = theirs.chunk(2)
    theirs.remote.submit_put_task(key(1), chunk).result(PATIENCE)  # it replaces what it cannot use
    read = theirs.remote.get_blocking(key(1))
    assert content(read) == content(chunk) and read.get_dtype() == chunk.get_dtype()
    assert mine.remote.get_blocking(key(1)) is None


@pytest.mark.surface(CONNECTOR, "put")
def test_the_first_value_of_a_key_stays(backends: Make) -> None:
    made = backends()
    first, second = made.chunk(1), made.chunk(2)
    for chunk in (first, second):
        made.remote.submit_put_task(key(1), chunk).result(PATIENCE)
    assert content(made.remote.get_blocking(key(1))) == content(first)
    assert made.remote.put_failed_count == 0


@pytest.mark.surface(CONNECTOR, "put")
def test_bytes_of_a_serializer(backends: Make) -> None:
    made = backends()
    for number, raw in enumerate((b"some bytes", bytearray(b"others"), b"")):
        made.run(made.connector.put(key(number), BytesBufferMemoryObj(raw)))
        assert made.connector.exists_sync(key(number))
        read = made.run(made.connector.get(key(number)))
        assert bytes(read.byte_array) == bytes(raw) and read.get_memory_format() == MemoryFormat.BINARY_BUFFER


@pytest.mark.surface(CONNECTOR, "batched_put", differs="what finds no room is left out, and LMCache told so")
def test_a_chunk_without_room_is_an_error_that_lmcache_counts(backends: Make) -> None:
    made = backends({"size": "64KiB"})
    assert made.chunk(0).get_size() == 32 << 10
    large = made.filled([torch.Size([2, 4, 64, 128])], [torch.bfloat16], MemoryFormat.EC_TD)
    before = made.used()
    with pytest.raises(InvalidArgument, match="131072 bytes"):
        made.remote.submit_put_task(key(1), large).result(PATIENCE)
    until(lambda: made.remote.put_failed_count == 1)
    assert not made.remote.exists_in_put_tasks(key(1)) and not made.remote.contains(key(1))
    assert large.get_ref_count() == 1 and made.used() == before
    chunks = [made.chunk(n) for n in range(3)]
    with pytest.raises(InvalidArgument, match="131072 bytes"):
        made.run(made.connector.batched_put([key(1), key(2)], [large, chunks[2]]))
    assert made.remote.contains(key(2))
    made.connector.cache.hold([made.connector.cache.digest(f"lmcache/KV_2LTD/{key(2).to_string()}")], 300)
    made.run(made.connector.put(key(0), chunks[0]))
    made.connector.cache.hold([made.connector.cache.digest(f"lmcache/KV_2LTD/{key(0).to_string()}")], 300)
    with pytest.raises(OutOfMemory):
        made.run(made.connector.put(key(3), chunks[1]))
    assert made.connector.refusals() == {"put: InvalidArgument": 2, "put: OutOfMemory": 1}
    assert {each.get_ref_count() for each in (large, *chunks)} == {1}


@pytest.mark.surface(CONNECTOR, "get")
def test_without_memory_a_read_is_a_miss(backends: Make) -> None:
    made = backends(max_local_cpu_size=0.001)
    keys, chunks = [key(n) for n in range(4)], [made.chunk(n) for n in range(2)]
    made.run(made.connector.batched_put(keys[1:3], chunks))
    taken = all_memory(made)  # with the chunks, which live on: their memory would come back when they are collected
    taken.pop().ref_count_down()  # room for one
    before = made.used()
    read = made.run(made.connector.batched_get(keys))
    assert [each is not None for each in read] == [False, True, False, False]
    assert made.run(made.connector.batched_get_non_blocking("a", keys[1:])) == []
    read[1].ref_count_down()
    assert made.used() == before and len(taken) > 3
    assert made.connector.refusals() == {"get: NoMemory": 3}
    del chunks


@pytest.mark.surface(CONNECTOR, "get")
def test_a_read_that_nobody_waits_for_gives_its_memory_back(backends: Make) -> None:
    made = backends({"threads": 1}, max_local_cpu_size=0.001)
    chunk = made.chunk(1)
    made.run(made.connector.put(key(1), chunk))
    taken = all_memory(made)
    pending = [asyncio.run_coroutine_threadsafe(made.connector.get(key(1)), made.loop) for _ in range(2)]
    until(lambda: made.connector.gets._work_queue.qsize() == 1)  # the first one waits for memory
    for each in pending:
        each.cancel()
        with pytest.raises(CancelledError):
            each.result(PATIENCE)
    for each in taken:
        each.ref_count_down()
    made.connector.gets.submit(lambda: None).result(PATIENCE)
    until(lambda: made.used() == chunk.get_size())  # the thread lets go of what it was called with a moment later


@pytest.mark.surface(CONNECTOR, "put")
def test_a_put_that_nobody_waits_for_lets_go_of_its_memory(backends: Make) -> None:
    made = backends({"threads": 1})
    gate, chunks = threading.Event(), [made.chunk(n) for n in range(2)]
    made.connector.puts.submit(gate.wait)
    pending = [made.remote.submit_put_task(key(n), chunk) for n, chunk in enumerate(chunks)]
    until(lambda: all(each.get_ref_count() == 3 for each in chunks))  # this test's, LMCache's and the thread's
    pending[0].cancel()
    until(lambda: chunks[0].get_ref_count() == 1)
    gate.set()
    pending[1].result(PATIENCE)
    assert chunks[1].get_ref_count() == 1
    assert not made.remote.contains(key(0)) and made.remote.contains(key(1))


@pytest.mark.surface(CONNECTOR, "close")
@pytest.mark.surface(CONNECTOR, "ping")
@pytest.mark.surface(CONNECTOR, "support_ping")
def test_after_close_every_call_is_a_miss(backends: Make) -> None:
    made = backends()
    made.run(made.connector.put(key(1), made.chunk(1)))
    assert made.connector.support_ping() and made.run(made.remote.connection.ping()) == 0
    gate = threading.Event()
    for _ in range(2):
        made.connector.gets.submit(gate.wait)
    waiting = [asyncio.run_coroutine_threadsafe(made.connector.get(key(1)), made.loop) for _ in range(3)]
    until(lambda: made.connector.gets._work_queue.qsize() == 3)
    closing = asyncio.run_coroutine_threadsafe(made.connector.close(), made.loop)
    for each in waiting:
        assert each.result(PATIENCE) is None
    gate.set()
    closing.result(PATIENCE)
    made.run(made.connector.close())
    assert made.run(made.connector.ping()) != 0
    assert made.remote.get_blocking(key(1)) is None and not made.remote.contains(key(1))
    assert made.connector.batched_contains([key(1)]) == 0 and not made.connector.remove_sync(key(1))
    assert made.run(made.connector.batched_get([key(1), key(2)])) == [None, None]
    assert made.run(made.connector.batched_async_contains("a", [key(1)], True)) == 0
    assert made.run(made.connector.list()) == []
    chunk = made.chunk(2)
    with pytest.raises(CacheClosed):
        made.remote.submit_put_task(key(2), chunk).result(PATIENCE)
    assert chunk.get_ref_count() == 1


@pytest.mark.surface(CONNECTOR, "batched_async_contains", differs="pin=True: a lease of some seconds")
def test_what_a_look_up_pins_is_not_evicted(backends: Make) -> None:
    made = backends({"size": "512KiB", "lease": 300})
    keys = [key(n) for n in range(8)]
    chunks = [made.chunk(n) for n in range(8)]
    made.run(made.connector.batched_put(keys, chunks))
    assert made.run(made.connector.batched_async_contains("a", keys, pin=True)) == 8
    for n in range(100, 130):
        one = made.chunk(n)
        made.run(made.connector.put(key(n), one))
        one.ref_count_down()
    read = made.run(made.connector.batched_get_non_blocking("a", keys))
    assert [content(each) for each in read] == [content(each) for each in chunks]


def damage(cache: Any, name: str) -> None:
    """Change a byte of an object in its segment."""
    meta = cache.get_location(name)
    address = cache.remote_ptr(meta.owner_rank, meta.payload_off)
    ctypes.c_uint8.from_address(address).value ^= 1


@pytest.mark.surface(CONNECTOR, "get")
def test_a_damaged_chunk_is_a_miss_and_can_be_put_again(backends: Make) -> None:
    made = backends({"checksum": True})
    chunk = made.chunk(1)
    made.run(made.connector.put(key(1), chunk))
    damage(made.connector.cache, f"lmcache/KV_2LTD/{key(1).to_string()}")
    assert made.run(made.connector.batched_get([key(1)])) == [None] and not made.remote.contains(key(1))
    assert made.used() == chunk.get_size()
    assert made.connector.refusals() == {"get: SegmentCorrupt": 1}
    made.run(made.connector.put(key(1), chunk))
    assert content(made.remote.get_blocking(key(1))) == content(chunk)


@pytest.mark.surface(ADAPTER, "submit_load_task")
def test_a_damaged_object_is_a_miss_and_can_be_stored_again(adapters: Callable[..., Any]) -> None:
    adapter = adapters(checksum=True)
    keys, target = [object_key(1)], memory()
    store(adapter, keys, [memory(1)])
    damage(adapter.cache, name_of(keys[0]))
    assert look_up(adapter, keys) == [False] and load(adapter, keys, [target]) == [False]
    assert adapter.report_status()["refusals"] == {"lock: SegmentCorrupt": 1}
    assert store(adapter, keys, [memory(1)]).is_successful()
    assert load(adapter, keys, [target]) == [True] and content(target) == content(memory(1))


@pytest.mark.parametrize(
    "wrong",
    [{"sizes": 1}, {"size": "much"}, {"threads": 0}, {"lease": -1}, {"spread": 1}, {"node": "a"}, {"size": "16KiB"}],
)
def test_wrong_settings_are_refused(backends: Make, wrong: dict[str, Any]) -> None:
    made = backends(wrong)
    assert made.remote is None  # LMCache has logged why, and goes on without


def test_a_store_that_cannot_be_joined_is_no_connection(backends: Make) -> None:
    first = backends({"ranks": 1})
    second = backends({"ranks": 1, "attach_timeout": 5})
    assert second.remote.connection is None and not second.remote.contains(key(1))
    assert first.remote.connection is not None

"""What fails is a miss: SGLang's threads see no exception, no wrong byte, and one line in the log for each kind."""

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer, PoolTransferResult

from nanokv import Hold
from tests.integrations.sglang import parts
from tests.integrations.sglang.other import Other
from tests.integrations.sglang.parts import INTERFACE, all_of, emptied, is_empty, keys_of, same
from tests.support.faults import Calls

Start = Callable[..., Any]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What NanoKV has logged for SGLang."""
    return [each.getMessage() for each in caplog.records if each.name.startswith("nanokv.integrations.sglang")]


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.parametrize("kind", [parts.mha, parts.mla])
def test_a_store_in_which_nothing_may_go_takes_nothing(
    start: Start, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = kind()
    backend = start(pool, settings={"size": "128KiB", "ranks": 1}, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    kept = [f"kept {i}" for i in range(8)]
    for key in kept:
        backend.cache.put(key, torch.zeros(4096), hold=Hold(priority="kept"))
    for _ in range(2):
        assert backend.batch_set_v1(keys, indices) == [False] * len(keys)
    assert backend.batch_exists(keys) == 0
    assert len(lines(caplog)) == 1 and "OutOfMemory" in lines(caplog)[0]
    assert backend.calls.failures() == {"put: OutOfMemory": 2 * len(keys)}
    backend.cache.remove_many(kept)
    assert backend.batch_set_v1(keys[:3], indices[: 3 * parts.PAGE]) == [True] * 3


@pytest.mark.surface(INTERFACE, "batch_set_v1")
def test_a_full_store_drops_what_was_not_used_for_longest(start: Start) -> None:
    pool = parts.mha()
    backend = start(pool, settings={"size": "256KiB", "ranks": 1})
    _, indices = all_of(pool)
    for round_ in range(10):
        assert all(backend.batch_set_v1(keys_of(9, f"round {round_}"), indices))
    assert backend.batch_exists(keys_of(9, "round 9")) == 9 and backend.batch_exists(keys_of(9, "round 0")) == 0


@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.parametrize("kind", [parts.mha, parts.mla])
def test_a_damaged_page_is_a_miss(start: Start, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool = kind()
    backend = start(pool, settings={"checksum": True}, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    assert all(backend.batch_set_v1(keys, indices))
    key = f"{backend.pools.get('kv').scopes[0]}/{keys[3]}"
    place = backend.cache.get_location(key)
    byte = backend.cache.remote_ptr(place.owner_rank, place.payload_off + 5)
    ctypes.memset(byte, ctypes.c_uint8.from_address(byte).value ^ 1, 1)
    emptied(pool)
    wanted = [True] * 3 + [False] + [True] * (len(keys) - 4)
    assert backend.batch_get_v1(keys, indices) == wanted == backend.batch_get_v1(keys, indices)
    assert len(lines(caplog)) == 1 and "SegmentCorrupt" in lines(caplog)[0]
    assert backend.calls.failures() == {"get: SegmentCorrupt": 1} and backend.batch_exists(keys) == 3  # it is dropped
    assert all(backend.batch_set_v1(keys, indices)) and all(backend.batch_get_v1(keys, indices))


@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_pages_of_a_process_that_died_stay(start: Start) -> None:
    pool = parts.mla()  # pages of one part
    backend = start(pool, is_mla_model=True)
    keys, indices = all_of(pool)
    values = [pool.get_data_page(i * parts.PAGE).view(torch.uint8).numpy().tobytes() for i in range(len(keys))]
    with Other(backend, dict(zip(keys, values, strict=True))):
        assert backend.batch_exists(keys) == len(keys)
    stored = emptied(pool)
    assert all(backend.batch_get_v1(keys, indices)) and same(pool, stored)
    more = keys_of(len(keys), "more")
    assert all(backend.batch_set_v1(more, indices)) and backend.batch_exists(more) == len(more)


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", [parts.mha, parts.mla])
def test_a_page_whose_writer_died_is_a_miss_and_can_be_stored(start: Start, kind: Any, own: bool) -> None:
    pool = kind()
    backend = start(pool, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    unfinished = dict.fromkeys(keys, bytes(backend.pools.get("kv").pages.page_bytes))
    with Other(backend, unfinished, unfinished=True, own=own):
        assert backend.batch_exists(keys) == 0 and not any(backend.batch_get_v1(keys, indices))
    assert backend.batch_exists(keys) == 0
    stored = [each.clone() for each in parts.buffers(pool)]
    assert all(backend.batch_set_v1(keys, indices))
    assert backend.batch_exists(keys) == len(keys)
    emptied(pool)
    assert all(backend.batch_get_v1(keys, indices)) and same(pool, stored)


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.parametrize("kind", [parts.mha, parts.mla])
def test_a_page_whose_writer_gave_up_just_now_is_stored(start: Start, kind: Any, calls: Calls) -> None:
    """It goes away after the backend has seen that it is being written, and before it waits for that."""
    pool = kind()
    backend, writer = start(pool, is_mla_model=kind is parts.mla), start(kind(), is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    key = f"{backend.pools.get('kv').scopes[0]}/{keys[0]}"
    writer.cache.open_for_write(key, backend.pools.get("kv").pages.page_bytes)
    waits = calls.before(backend.cache, "wait", lambda *_, **__: writer.cache.abort(key), at=(1,))
    assert all(backend.batch_set_v1(keys, indices)) and waits
    assert backend.batch_exists(keys) == len(keys) and backend.calls.failures() == {}


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.parametrize("kind", [parts.mha, parts.mla])
def test_a_page_that_is_being_written_is_waited_for(start: Start, kind: Any, calls: Calls) -> None:
    pool = kind()
    backend, writer = start(pool, is_mla_model=kind is parts.mla), start(kind(), is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    key = f"{backend.pools.get('kv').scopes[0]}/{keys[0]}"
    nbytes = backend.pools.get("kv").pages.page_bytes
    writer.cache.open_for_write(key, nbytes)
    wanted = [False] + [True] * (len(keys) - 1)
    assert backend.batch_set_v1(keys, indices) == wanted  # after a second
    assert list(backend.calls.failures().values()) == [1]
    calls.before(backend.cache, "wait", lambda *_, **__: writer.cache.commit(key), at=(1,))
    assert all(backend.batch_set_v1(keys, indices)) and backend.batch_exists(keys) == len(keys)


@pytest.mark.surface(INTERFACE, "close")
def test_a_closed_backend_answers_misses(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    pool = parts.mha()
    backend = start(pool)
    keys, indices = all_of(pool)
    assert all(backend.batch_set_v1(keys, indices))
    backend.close()
    backend.close()
    move = [PoolTransfer(name=PoolName.KV, keys=keys, host_indices=indices)]
    nothing = [False] * len(keys)
    for _ in range(2):
        assert backend.batch_exists(keys) == 0 and not backend.exists(keys[0])
        assert backend.batch_get_v1(keys, indices) == nothing == backend.batch_set_v1(keys, indices)
        assert backend.batch_get_v2(move) == {PoolName.KV: nothing} == backend.batch_set_v2(move)
        assert backend.batch_exists_v2(keys) == PoolTransferResult.empty()
        assert backend.get("a") is None and backend.set("a", torch.zeros(1)) is False
        assert backend.batch_get(["a"], [torch.zeros(1)]) == [None]
        assert backend.batch_set(["a"], [torch.zeros(1)]) is False
        backend.clear()
    assert len(lines(caplog)) == len(set(lines(caplog))) and all("CacheClosed" in line for line in lines(caplog))


@pytest.mark.surface(INTERFACE, "close", differs="with the last process of a store its pages go")
def test_pages_stay_until_the_last_process_ends(start: Start) -> None:
    one, other = start(), start()
    assert one.set("a", torch.zeros(4)) and other.set("b", torch.zeros(4))
    one.close()
    assert other.exists("a") and other.exists("b")
    other.close()
    assert not start().exists("a")


@pytest.mark.surface(INTERFACE, "batch_set_v1")
def test_a_pool_that_is_gone_is_a_miss(start: Start) -> None:
    pool = parts.mha()
    backend = start(pool)
    keys, indices = all_of(pool)
    pool.destroy()
    assert backend.batch_set_v1(keys, indices) == [False] * len(keys) == backend.batch_get_v1(keys, indices)
    assert backend.batch_exists(keys) == 0


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_threads_store_and_read_the_same_pages(start: Start, layout: str) -> None:
    pools = [parts.mha(layout) for _ in range(2)]  # of the same bytes
    backends = [start(pools[0]), start(pools[1])]
    _, indices = all_of(pools[0])
    wrong: list[str] = []

    def work(number: int) -> None:
        backend = backends[number % 2]
        for round_ in range(20):
            keys = keys_of(9, f"round {round_}")
            if not all(backend.batch_set_v1(keys, indices)):
                wrong.append("stored")
            if not all(backend.batch_get_v1(keys, indices)):
                wrong.append("read")

    stored = [each.clone() for each in parts.buffers(pools[0])]
    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and same(pools[0], stored) and same(pools[1], stored)


def until_closed(backend: Any, keys: list[str], indices: torch.Tensor, begun: threading.Event) -> None:
    """Store pages until that fails."""
    round_ = 0
    while all(backend.batch_set_v1([f"{key}{round_}" for key in keys], indices)):
        round_ += 1
        begun.set()


@pytest.mark.surface(INTERFACE, "close")
def test_closing_waits_for_what_has_begun(start: Start) -> None:
    """A copy into memory that is gone would end the process."""
    for _ in range(3):
        pool = parts.mha()
        backend = start(pool)
        keys, indices = all_of(pool)
        begun = threading.Event()

        threads = [threading.Thread(target=until_closed, args=[backend, keys, indices, begun]) for _ in range(2)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        backend.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not is_empty(pool)


@pytest.mark.surface(INTERFACE, "get_stats")
def test_without_metrics_there_are_none(start: Start) -> None:
    pool = parts.mha()
    assert start(pool).get_stats() is None
    backend = start(pool, enable_storage_metrics=True)
    keys, indices = all_of(pool)
    assert all(backend.batch_set_v1(keys, indices)) and all(backend.batch_get_v1(keys[:4], indices[: 4 * parts.PAGE]))
    assert not any(backend.batch_get_v1(["x"], indices[: parts.PAGE]))
    told = backend.get_stats()
    assert (told.backup_pgs, told.prefetch_pgs) == ([len(keys)], [4])
    assert told.backup_bandwidth[0] > 0 and told.prefetch_bandwidth[0] > 0
    assert backend.get_stats().prefetch_pgs == []


def test_failures_are_logged_at_a_level_that_is_seen(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    backend = start()
    assert not backend.set("a", "no tensor")
    assert [each.levelno for each in caplog.records if "no tensor" in each.getMessage()] == [logging.WARNING]

"""What pools of registered memory have room for, who waits for it, and how they end; by many threads, too."""

import gc
import itertools
import random
import threading
from typing import Any, cast

import pytest

from nanokv.integrations.mooncake import (
    BufferLease,
    BufferPool,
)
from nanokv.integrations.mooncake.local_buffer import LocalBuffer, address
from nanokv.integrations.mooncake.memory import RegisteredRanges
from tests.integrations.mooncake.conftest import Start
from tests.integrations.mooncake.pools import LOCAL, MIB, SECONDS, Store, Wrapper, leased, waiting
from tests.integrations.mooncake.test_values import NAME, surface


# --- what is counted ---
@pytest.mark.parametrize(
    ("given", "sizes", "count"),
    [
        ({}, [MIB] * 30, 16),
        ({"max_bytes": 12 * MIB}, [MIB] * 30, 12),
        ({"max_bytes": MIB}, [MIB] * 30, 8),  # never less than the local buffer
        ({"max_size_class": 4096}, [MIB] * 30, 16),
        ({"max_regions": 3}, [0] * 5, 3),
        ({"max_regions": 0}, [1], 0),
        ({}, [16 * MIB, 1], 1),
        ({}, [8 * MIB, 8 * MIB], 2),
    ],
)
@surface(NAME, "BufferPool", differs="the local buffer loses nothing to rounding, so less of a pool is overflow")
def test_what_a_pool_has_room_for(store: Store, given: dict[str, Any], sizes: list[int], count: int) -> None:
    assert leased(BufferPool(store, **given), sizes) == count


@surface(NAME, "BufferPool", differs="a put or get that copies works also while the whole local buffer is leased")
def test_overflow_begins_where_the_local_buffer_ends(store: Store) -> None:
    wrapper = Wrapper(store)
    pool = BufferPool(wrapper, alignment=1 << 16)
    local = [pool.acquire(MIB) for _ in range(8)]
    assert not wrapper.registered
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    beyond = pool.acquire(1000)
    assert wrapper.registered == {beyond.ptr: 1000} and beyond.ptr % (1 << 16) == 0
    local.pop(3).release()
    with pool.acquire(MIB) as again:
        assert len(wrapper.registered) == 1 and again.size == MIB
    beyond.release()
    assert not wrapper.registered


def test_pools_of_a_client_share_its_local_buffer(store: Store) -> None:
    one, other = Wrapper(store), Wrapper(store)
    first, second = BufferPool(one), BufferPool(other)
    lease = first.acquire(LOCAL - MIB)
    second.acquire(2 * MIB).release()
    assert not one.registered
    with second.acquire(2 * MIB):
        assert len(other.registered) == 1
        lease.release()
        with second.acquire(2 * MIB):
            assert len(other.registered) == 1


def test_pieces_of_the_local_buffer_do_not_overlap() -> None:
    numbers, buffer = random.Random(1), LocalBuffer(1000 * 64 - 10, RegisteredRanges())
    out: list[Any] = []
    for _ in range(3000):
        if numbers.random() < 0.5 and out:
            buffer.give_back(out.pop(numbers.randrange(len(out))))
        elif (piece := buffer.piece(numbers.choice([1, 64, 65, 1000, 9000]))) is not None:
            assert address(piece) % 64 == 0
            out.append(piece)
        places = sorted((address(piece), piece.nbytes) for piece in out)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(places))
    assert buffer.piece(buffer.nbytes) is None
    for piece in out:
        buffer.give_back(piece)
    whole = buffer.piece(buffer.nbytes)
    assert whole is not None and whole.nbytes == buffer.nbytes and buffer.piece(1) is None


@surface(NAME, "BufferPool.prewarm")
def test_prewarm_changes_nothing(store: Store) -> None:
    pool = BufferPool(store, prewarm_size=1 << 60, prewarm_count=2)
    pool.prewarm(1, 2)
    pool.prewarm(count=1, size=1 << 60)
    for given in ((-1, 2), (1,), (1, "x")):
        with pytest.raises(TypeError):
            pool.prewarm(*cast(Any, given))
    assert leased(pool, [MIB] * 30) == 16


# --- waiting ---
@surface(NAME, "BufferPool.acquire")
@pytest.mark.parametrize("how", ["release", "drop"])
def test_one_who_waits_gets_what_comes_back(store: Store, how: str) -> None:
    pool = BufferPool(store, max_regions=1)
    leases, found = [pool.acquire(1)], []
    thread = threading.Thread(target=lambda: found.append(pool.acquire(2, timeout=SECONDS).size))
    thread.start()
    waiting(pool, 1)
    lease = leases.pop()
    if how == "release":
        lease.release()
    del lease
    thread.join(SECONDS)
    assert found == [2]


@surface(NAME, "BufferPool.acquire")
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((1, False), "exhausted"),
        ((1, False, 5), "exhausted"),
        ((1, True, 0), "timed out"),
        ((1, None, 0.01), "timed out"),
        ((1, 1, True), "timed out"),
    ],
)
def test_a_pool_that_stays_full_is_no_end(store: Store, given: tuple[Any, ...], error: str) -> None:
    pool = BufferPool(store, max_regions=1)
    lease = pool.acquire(1)
    with pytest.raises(RuntimeError, match=error):
        pool.acquire(*given)
    assert not pool.quota.waiters and lease.ptr


def test_the_pool_says_whether_to_wait_and_how_long(store: Store) -> None:
    for pool, error in (
        (BufferPool(store, max_regions=0, block_on_exhaustion=False), "exhausted"),
        (BufferPool(store, max_regions=0, default_timeout=0.01), "timed out"),
        (BufferPool(store, default_timeout=-1), "non-negative"),
    ):
        with pytest.raises(RuntimeError, match=error):
            pool.acquire(1)
    assert pool.acquire(1, timeout=0).size == 1
    assert BufferPool(store).acquire(1, timeout=1e300).size == 1


def test_small_ones_pass_one_that_waits_for_much(store: Store) -> None:
    pool = BufferPool(store, max_bytes=LOCAL)
    leases, found = [pool.acquire(LOCAL // 2), pool.acquire(LOCAL // 2)], []
    thread = threading.Thread(target=lambda: found.append(pool.acquire(LOCAL)))
    thread.start()
    waiting(pool, 1)
    leases.pop().release()
    pool.acquire(1, block=False).release()
    assert not found
    leases.pop().release()
    thread.join(SECONDS)
    assert found[0].size == LOCAL


def test_threads_share_a_pool(store: Store) -> None:
    wrapper = Wrapper(store)
    pool = BufferPool(wrapper, max_bytes=LOCAL + 4 * MIB, max_regions=5)
    lock, faults = threading.Lock(), list[object]()
    counted = {"bytes": 0, "regions": 0}

    def count(nbytes: int, sign: int) -> None:
        with lock:
            counted["bytes"] += sign * nbytes
            counted["regions"] += sign
            if counted["bytes"] > LOCAL + 4 * MIB or counted["regions"] > 5:
                faults.append(dict(counted))

    def work(mark: int) -> None:
        numbers = random.Random(mark)
        for step in range(60):
            size = numbers.choice([1, 5000, MIB, 3 * MIB])
            lease = pool.acquire(size, timeout=SECONDS)
            count(size, 1)
            view = lease.buffer
            view[:] = bytes([mark]) * size
            if view[::997] != bytes([mark]) * len(view[::997]):
                faults.append((mark, step))
            del view
            count(size, -1)
            if numbers.random() < 0.7:
                lease.release()
            del lease

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    assert not faults and counted == {"bytes": 0, "regions": 0}
    pool.close()
    assert not wrapper.registered
    with BufferPool(wrapper).acquire(LOCAL):
        assert not wrapper.registered  # all of the local buffer is there again


def test_threads_release_a_lease_once(store: Store) -> None:
    pool = BufferPool(store)
    for _ in range(200):
        lease, start_now = pool.acquire(1), threading.Barrier(3)

        def release(lease: BufferLease = lease, start_now: threading.Barrier = start_now) -> None:
            start_now.wait(SECONDS)
            try:
                lease.release()
            except RuntimeError as error:  # the other one has begun
                assert str(error) == "buffer lease is not active"

        threads = [threading.Thread(target=release) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    pool.close()
    assert leased(BufferPool(store), [MIB] * 30) == 16


# --- ends ---
@surface(NAME, "BufferPool.close")
def test_a_pool_with_leases_is_not_closed(store: Store) -> None:
    pool = BufferPool(store)
    lease = pool.acquire(1)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    pool.acquire(1).release()  # it goes on
    lease.release()
    assert pool.close() is None and pool.close() is None  # type: ignore[func-returns-value]
    with pytest.raises(RuntimeError, match="buffer pool is closed"):
        pool.acquire(1)
    with pytest.raises(RuntimeError, match="exceeds pool capacity"):
        pool.acquire(1 << 40)


def test_one_who_waits_learns_that_the_pool_was_closed(store: Store) -> None:
    pool, errors = BufferPool(store, max_regions=0), []

    def wait() -> None:
        with pytest.raises(RuntimeError) as caught:
            pool.acquire(1)
        errors.append(str(caught.value))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting(pool, 1)
    pool.close()
    thread.join(SECONDS)
    assert errors == ["buffer pool is closed"]


@surface(
    NAME, "BufferPool.close", differs="a store may close while leases are out: they stay memory (the real one faults)"
)
def test_a_store_closes_before_its_pools(start: Start) -> None:
    store = start()
    pool = BufferPool(store, max_bytes=4 * LOCAL)
    leases = [pool.acquire(10), pool.acquire(LOCAL + 1)]
    for lease in leases:
        lease.buffer[:5] = b"hello"
    store.close()
    assert [bytes(lease.buffer[:5]) for lease in leases] == [b"hello"] * 2
    assert store.put_from("k", leases[0].ptr, 5) == -600
    with pytest.raises(RuntimeError, match="not initialized"):
        BufferPool(store)
    leases.append(pool.acquire(MIB))
    for lease in leases:
        lease.release()
    pool.close()
    assert not store.client.registered


def test_a_pool_of_a_closed_store_registers_nothing_with_it(start: Start) -> None:
    store = start()
    pool = BufferPool(store)
    store.close()
    with pool.acquire(10):
        assert not store.client.registered


def test_what_was_dropped_is_unregistered_with_the_client(start: Start) -> None:
    store = start()
    BufferPool(store).acquire(LOCAL + 1)
    gc.collect()
    store.close()
    assert not store.client.registered

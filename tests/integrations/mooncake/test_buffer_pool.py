"""Pools of registered memory: leases, their views, what ends them, and the names that programs import."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanokv.integrations import mooncake
from nanokv.integrations.mooncake import (
    BufferLease,
    BufferLeaseView,
    BufferPool,
    RegisteredBufferLease,
    RegisteredBufferLeaseView,
    RegisteredBufferPool,
)
from nanokv.integrations.mooncake.shim import make
from tests.integrations.mooncake.conftest import Start
from tests.integrations.mooncake.pools import LOCAL, MIB, Store, Wrapper, ended
from tests.integrations.mooncake.test_values import NAME, surface


# --- leases ---
@surface(NAME, "BufferPool")
@surface(NAME, "BufferPool.acquire")
@surface(NAME, "BufferLease.ptr")
@surface(NAME, "BufferLease.size")
@surface(NAME, "BufferLease.buffer")
@pytest.mark.parametrize("size", [0, 1, 100_000, LOCAL, LOCAL + 1])
def test_a_lease_is_memory_of_the_size_asked_for(store: Store, size: int) -> None:
    pool = BufferPool(store)
    lease = pool.acquire(size)
    view = lease.buffer
    assert (lease.size, len(view), view.format, view.readonly, view.ndim) == (size, size, "B", False, 1)
    assert lease.ptr % 64 == 0
    view[:] = b"x" * size
    assert bytes(lease.buffer) == b"x" * size
    del view
    lease.release()
    pool.close()


@surface(NAME, "BufferPool.buffer")
def test_buffer_is_another_name_of_acquire(store: Store) -> None:
    lease = BufferPool(store, max_regions=1).buffer(size=7, block=False, timeout=0)
    assert isinstance(lease, BufferLease) and lease.size == 7


@surface(NAME, "BufferPool.acquire")
@pytest.mark.parametrize("size", [MIB, LOCAL + 5])
def test_values_go_from_and_into_leased_memory(start: Start, size: int) -> None:
    store = start(segment=64 * MIB)
    pool = BufferPool(store, max_bytes=4 * LOCAL)
    source, target = pool.acquire(size), pool.acquire(size)
    source.buffer[:] = np.random.default_rng(size).bytes(size)
    assert store.put_from("k", source.ptr, size) == 0
    assert store.get_into("k", target.ptr, size) == size and target.buffer == source.buffer
    assert store.batch_put_from(["b"], [source.ptr], [9]) == [0] and store.get("b") == bytes(source.buffer[:9])
    assert store.batch_get_into(["b"], [target.ptr + 20], [9]) == [9] and target.buffer[20:29] == source.buffer[:9]
    assert store.get_into_ranges([target.ptr + 100], [["k"]], [[[10]]], [[[1]]], [[[3]]]) == [[[3]]]
    assert target.buffer[110:113] == source.buffer[1:4]
    assert store.register_buffer(target.ptr, size) == -600  # it is registered


def test_what_was_overflow_is_registered_no_more(store: Store) -> None:
    pool = BufferPool(store)
    lease = pool.acquire(LOCAL + 1)
    ptr = lease.ptr
    store.put("k", b"value")
    assert store.get_into_ranges([ptr], [["k"]], [[[LOCAL - 4]]], [[[0]]], [[[5]]]) == [[[5]]]
    assert store.get_into_ranges([ptr], [["k"]], [[[LOCAL - 3]]], [[[0]]], [[[5]]]) == [[[-600]]]
    lease.release()
    assert store.get_into_ranges([ptr], [["k"]], [[[0]]], [[[0]]], [[[5]]]) == [[[-600]]]
    assert store.unregister_buffer(ptr) == -600


# --- releases ---
@surface(NAME, "BufferLease.release")
def test_a_lease_is_released_once(store: Store) -> None:
    pool = BufferPool(store, max_regions=1)
    lease = pool.acquire(5)
    assert lease.release() is None and lease.release() is None  # type: ignore[func-returns-value]
    with pytest.raises(RuntimeError, match="buffer lease is closed"):
        lease.ptr  # noqa: B018
    with pytest.raises(BufferError):
        lease.buffer  # noqa: B018
    assert lease.size == 5
    other = pool.acquire(5)
    lease.release()  # not the other's memory
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(5, block=False)
    other.release()


@surface(NAME, "BufferLease.release")
@surface(NAME, "BufferLeaseView.buffer")
def test_memory_that_is_looked_at_is_not_released(store: Store) -> None:
    pool = BufferPool(store)
    lease = pool.acquire(10)
    views: list[Any] = [lease.buffer[2:5], np.frombuffer(lease.buffer, np.uint8), lease.buffer.obj, lease.buffer]
    assert isinstance(views[2], BufferLeaseView)
    views.append(views[2].buffer)
    views.append(views[2][1:])
    while views:
        with pytest.raises(RuntimeError, match="exported views"):
            lease.release()
        views.pop()
    lease.release()
    pool.close()


def test_a_view_that_is_released_is_none(store: Store) -> None:
    pool = BufferPool(store)
    lease = pool.acquire(10)
    view = lease.buffer
    view.release()
    lease.release()
    pool.close()


@surface(NAME, "BufferLease as a context")
def test_a_lease_ends_with_its_block(store: Store) -> None:
    pool = BufferPool(store)
    with pool.acquire(5) as lease:
        assert lease.size == 5 and lease.ptr
    with pytest.raises(RuntimeError, match="closed"):
        lease.ptr  # noqa: B018
    with pytest.raises(KeyError), pool.acquire(5):
        raise KeyError
    view = None
    with pytest.raises(RuntimeError, match="exported views"), pool.acquire(5) as lease:
        view = lease.buffer
    del view
    lease.release()
    pool.close()


@pytest.mark.parametrize("size", [10, LOCAL + 1])
def test_a_dropped_lease_gives_its_memory_back(store: Store, size: int) -> None:
    wrapper = Wrapper(store)
    pool = BufferPool(wrapper, max_regions=1)
    lease = pool.acquire(size)
    view = lease.buffer
    del lease
    gc.collect()
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(size, block=False)  # the view keeps the lease
    assert len(view) == size
    del view
    gc.collect()
    pool.acquire(size, block=False).release()
    pool.close()
    assert not wrapper.registered


def test_a_lease_keeps_its_pool(store: Store) -> None:
    wrapper = Wrapper(store)
    lease = BufferPool(wrapper).acquire(LOCAL + 1)
    gc.collect()
    lease.buffer[:2] = b"ab"
    lease.release()
    assert not wrapper.registered


def test_giving_back_takes_no_lock_of_the_pool(store: Store) -> None:
    """The garbage collector may run where a thread has one, and with it a `__del__` that releases."""
    pool = BufferPool(store, max_bytes=4 * LOCAL)
    leases = [pool.acquire(5), pool.acquire(5), pool.acquire(LOCAL + 1)]

    def give_back() -> None:
        with pool.quota.lock, pool.local.lock:
            leases.pop(0).release()
            leases.pop(0)
            with store.client.registered.lock:
                leases.pop(0)

    assert ended(give_back) and not leases
    pool.close()


# --- names ---
@surface(NAME, "RegisteredBufferPool")
@surface(NAME, "RegisteredBufferLease")
@surface(NAME, "RegisteredBufferLeaseView")
def test_the_names_of_the_real_one() -> None:
    assert RegisteredBufferPool is BufferPool
    assert RegisteredBufferLease is BufferLease and RegisteredBufferLeaseView is BufferLeaseView
    assert {"BufferPool", "BufferLease", "BufferLeaseView", "RegisteredBufferPool"} <= set(mooncake.__all__)


@surface(NAME, "mooncake.buffer_pool")
def test_unchanged_programs_find_the_pool(tmp_path: Path) -> None:
    make(tmp_path)
    program = (
        "from mooncake.store import BufferPool, RegisteredBufferPool, BufferLease\n"
        "from mooncake import buffer_pool\n"
        "assert buffer_pool.BufferPool is BufferPool is buffer_pool.RegisteredBufferPool is RegisteredBufferPool\n"
        "print(BufferPool.__module__)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.strip() == "nanokv.integrations.mooncake.buffer_pool", ran.stderr

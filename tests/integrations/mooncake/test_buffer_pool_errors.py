"""What pools of registered memory answer to wrong calls, and to stores that do not register."""

from typing import Any, cast

import pytest

from nanokv.integrations.mooncake import (
    BufferLease,
    BufferLeaseView,
    BufferPool,
    MooncakeDistributedStore,
)
from tests.integrations.mooncake.conftest import Start
from tests.integrations.mooncake.pools import LOCAL, Store, Wrapper
from tests.integrations.mooncake.test_values import NAME, surface


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"alignment": 12345}, RuntimeError),
        ({"alignment": 4}, RuntimeError),
        ({"alignment": 0}, RuntimeError),
        ({"min_size_class": 0}, RuntimeError),
        ({"min_size_class": -1}, TypeError),
        ({"max_bytes": "x"}, TypeError),
        ({"max_bytes": 1 << 64}, TypeError),
        ({"max_size_class": 1.5}, RuntimeError),
        ({"default_timeout": "x"}, RuntimeError),
        ({"max_regions": -1}, RuntimeError),
        ({"prewarm_size": "x", "prewarm_count": 1}, RuntimeError),
        ({"prewarm_count": -1}, TypeError),
        ({"block_on_exhaustion": "yes"}, TypeError),
        ({"another": 1}, TypeError),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(store: Store, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        BufferPool(store, **given)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((-1,), TypeError),
        (("x",), TypeError),
        ((1.5,), TypeError),
        ((1 << 64,), TypeError),
        (((1 << 64) - 1,), RuntimeError),
        ((2 * LOCAL + 1,), RuntimeError),
        ((1, "x"), RuntimeError),
        ((1, True, "x"), RuntimeError),
        ((1, None, -1), RuntimeError),
        ((1, None, float("nan")), RuntimeError),
    ],
)
@surface(
    NAME, "BufferPool.acquire", differs="a timeout that is no number raises RuntimeError; the real one waits for ever"
)
def test_a_lease_that_makes_no_sense_is_refused(store: Store, given: tuple[Any, ...], error: type[Exception]) -> None:
    pool = BufferPool(store)
    with pytest.raises(error):
        pool.acquire(*given)
    pool.close()


class Odd:
    """A wrapper whose client is something else."""

    def __init__(self, found: object) -> None:
        self._get_pyclient_capsule = lambda: found


def test_a_pool_needs_a_store_with_a_local_buffer(start: Start) -> None:
    for store in (None, "text", MooncakeDistributedStore(), Odd(None), Odd(5), start(local=0)):
        with pytest.raises(RuntimeError):
            BufferPool(store)
    for made in (BufferLease, BufferLeaseView):
        with pytest.raises(TypeError):
            cast(Any, made)()


@pytest.mark.parametrize("code", [-1, True, "text", None.__class__])
def test_a_store_that_does_not_register_is_told_of(store: Store, code: object) -> None:
    wrapper = Wrapper(store)
    pool = BufferPool(wrapper, max_regions=1)
    wrapper.code = code
    with pytest.raises(RuntimeError):
        pool.acquire(LOCAL + 1)
    assert pool.acquire(1, block=False).size == 1  # nothing is counted


def test_a_store_that_does_not_unregister_is_told_of(store: Store) -> None:
    wrapper = Wrapper(store)
    pool = BufferPool(wrapper, max_regions=1)
    lease = pool.acquire(LOCAL + 1)
    wrapper.code = -1
    with pytest.raises(RuntimeError, match="unregistration failed"):
        lease.release()
    assert lease.ptr  # it is registered, so it stays memory
    with pytest.raises(RuntimeError, match="not active"):
        lease.release()
    pool.acquire(1, block=False).release()
    pool.close()


@surface(
    NAME, "BufferPool.acquire", differs="without memory of the system it raises, also where the real one would wait"
)
def test_a_system_without_memory_is_told_of(store: Store) -> None:
    pool = BufferPool(store, alignment=1 << 62)
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(LOCAL + 1)
    pool.close()

"""A native wait: it ends when the object is there, when its time is over, and rests after other objects' hints."""

import ctypes
import threading
import time
from collections.abc import Iterator

import pytest
import torch

import nanokv
from nanokv.cache.waiting import Waiter
from nanokv.device.protocol.status import Status
from nanokv.errors import WaitTimeout
from nanokv.heap import futex

PATIENCE = 30.0
Caches = list[nanokv.NanoKVCache]
pytestmark = pytest.mark.skipif(not futex.supported(), reason="this system cannot sleep on a word")


@pytest.fixture
def caches() -> Iterator[Caches]:
    caches = nanokv.local_world(2, 1 << 20, page_bytes=4096)
    yield caches
    for cache in caches:
        cache.close()


def test_a_wait_ends_at_its_time(caches: Caches) -> None:
    watch, key = caches[0].engine.watch, caches[0].digest("never")
    assert watch is not None
    for spin in (0.0, 0.002):
        began = time.monotonic()
        assert watch(key, spin, 0.002) == Status.MISS
        assert time.monotonic() - began >= 0.002


@pytest.mark.parametrize("owner", [0, 1])
def test_a_put_ends_the_sleep(caches: Caches, owner: int) -> None:
    watch, key = caches[0].engine.watch, caches[0].digest("k")
    assert watch is not None
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(watch(key, 0.0, 0.999)))
    waiting.start()
    bell = caches[0].engine.heap.world_bell()
    assert bell is not None
    asked = ctypes.c_uint32.from_address(bell.address)
    while not asked.value and waiting.is_alive():
        time.sleep(0)
    caches[1].put("k", torch.zeros(4), preferred_segment=owner)
    waiting.join(PATIENCE)
    assert found == [Status.OK]


def test_an_object_that_is_there_is_not_waited_for(caches: Caches) -> None:
    caches[1].put("k", torch.zeros(4))
    watch = caches[0].engine.watch
    assert watch is not None and watch(caches[0].digest("k"), 0.0, 0.0) == Status.OK


def test_hints_of_other_objects_do_not_end_a_wait(caches: Caches) -> None:
    waiting = threading.Thread(target=caches[0].wait, args=("k",), kwargs={"timeout": PATIENCE})
    waiting.start()
    for number in range(300):
        caches[1].put(f"other {number % 7} {number}", torch.zeros(4))
        caches[1].remove(f"other {number % 7} {number}")
    assert waiting.is_alive()
    caches[1].put("k", torch.zeros(4))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_a_waiting_rank_sleeps_in_native_code(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(caches[0].engine.heap), "wait_for_any_hint", lambda *_: pytest.fail("a sleep of Python"))
    with pytest.raises(WaitTimeout):
        caches[0].wait("never", timeout=0.02)


def test_a_rank_without_native_waits_waits(caches: Caches) -> None:
    here = caches[0]
    waiter = Waiter(here.engine.heap, here.engine.allocation, here.engine.look)
    waiting = threading.Thread(target=waiter.wait, args=([here.digest("k")], PATIENCE))
    waiting.start()
    time.sleep(0.02)
    caches[1].put("k", torch.zeros(4))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()

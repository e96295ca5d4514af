"""Waiting for room: puts into a segment in which nothing may go."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import nanokv
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.errors import DuplicateKey, InvalidArgument, OutOfMemory, PeerLost
from nanokv.fsck import check_cache
from nanokv.transfer.descriptors import describe

PAGE = 4096
World = list[nanokv.NanoKVCache]
MakeWorld = Callable[..., World]
Put = Callable[[nanokv.NanoKVCache, str, float], None]
LONG = 60.0  #: seconds


@pytest.fixture(params=[True, False], ids=["evict", "no-evict"])
def full(make_world: MakeWorld, request: pytest.FixtureRequest) -> World:
    """Four leased pages of four in segment 1: nothing may go."""
    world = make_world(n=2, heap_bytes=4 * PAGE, page_bytes=PAGE, water=(100, 100), evict=request.param)
    for number in range(4):
        world[0].put(f"k{number}", page(number), preferred_segment=1, hold=3600.0)
    return world


def page(value: int) -> torch.Tensor:
    return torch.full((PAGE,), value, dtype=torch.uint8)


def put(cache: nanokv.NanoKVCache, key: str, timeout: float) -> None:
    cache.put(key, page(9), preferred_segment=1, timeout=timeout)


def put_async(cache: nanokv.NanoKVCache, key: str, timeout: float) -> None:
    cache.put_async(key, page(9), preferred_segment=1, timeout=timeout).result()


def put_many(cache: nanokv.NanoKVCache, key: str, timeout: float) -> None:
    (error,) = cache.put_many([key], [page(9)], preferred_segment=1, timeout=timeout)
    if error is not None:
        raise error


def plan(cache: nanokv.NanoKVCache, key: str, timeout: float) -> None:
    opened = cache.open_for_write(key, PAGE, preferred_segment=1, timeout=timeout)
    assert opened.dst_rank == 1
    cache.commit(key)


@contextmanager
def once_refused(cache: nanokv.NanoKVCache, then: Callable[[], object]) -> Iterator[None]:
    """In another thread: wait until a put was refused in the segment of `cache`, then make room."""
    before = cache.stats()["refused"]
    ended = threading.Event()

    def make_room() -> None:
        while cache.stats()["refused"] == before and not ended.wait(0.001):
            pass
        then()

    thread = threading.Thread(target=make_room)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


PUTS = pytest.mark.parametrize("store", [put, put_async, put_many, plan])


@PUTS
def test_a_removal_makes_room(full: World, store: Put) -> None:
    with once_refused(full[1], lambda: full[1].remove("k2")):
        store(full[0], "more", LONG)
    assert full[1].exists_many(["k0", "k1", "k2", "k3", "more"]) == [True, True, False, True, True]


@PUTS
def test_without_room_in_time_it_is_refused_and_nothing_is_left(full: World, store: Put) -> None:
    for timeout in (0.0, 0.02, -1.0):
        with pytest.raises(OutOfMemory):
            store(full[0], "more", timeout)
    assert full[1].exists_many(["k0", "k1", "k2", "k3", "more"]) == [True, True, True, True, False]
    full[1].remove("k0")
    store(full[0], "more", 0.0)  # the key is free again, and so is the page
    for cache in full:
        assert not check_cache(cache).findings


def test_a_first_read_and_a_lease_that_ends_make_room(make_world: MakeWorld) -> None:
    world = make_world(n=2, heap_bytes=4 * PAGE, page_bytes=PAGE, water=(100, 100))
    for number in range(4):
        world[0].put(f"k{number}", page(number), preferred_segment=1, hold=3600.0)
    with once_refused(world[1], lambda: world[1].get("k3")):
        put(world[0], "more", LONG)
    assert world[1].exists_many(["k0", "k1", "k2", "k3", "more"]) == [True, True, True, False, True]
    world[0].hold(["more"], 0.05)
    put(world[0], "again", LONG)
    assert not world[1].exists("more")


def test_many_wait_for_all_together(full: World) -> None:
    keys = ["a", "b", "c"]
    with once_refused(full[1], lambda: full[1].remove_many(["k0", "k1"])):
        errors = full[0].put_many(keys, [page(9)] * 3, preferred_segment=1, hold=3600.0, timeout=1.0)
    assert [type(error) for error in errors].count(OutOfMemory) == 1
    assert full[1].exists_many(keys) == [error is None for error in errors]


def test_only_room_is_waited_for(full: World) -> None:
    with pytest.raises(DuplicateKey):
        put(full[0], "k1", LONG)
    with pytest.raises(InvalidArgument, match="raise heap_bytes"):
        full[0].put("large", torch.zeros(8 * PAGE, dtype=torch.uint8), preferred_segment=1, timeout=LONG)
    full[0].put("k1", page(1), preferred_segment=1, exist_ok=True, timeout=LONG)


@pytest.mark.parametrize("timeout", ["1", None, float("nan"), True])
@PUTS
def test_wrong_timeouts(full: World, store: Put, timeout: object) -> None:
    with pytest.raises(InvalidArgument, match="timeout must be a number"):
        store(full[0], "more", timeout)  # type: ignore[arg-type]
    assert not full[1].exists("more")


# --- the host makes room for kernels ----------------------------------------------------------
def plan_by_device(cache: nanokv.NanoKVCache, key: str, nbytes: int) -> int:
    """What a kernel gets that puts `nbytes` into segment 1: the status."""
    tensor = torch.full((nbytes,), 9, dtype=torch.uint8)
    return cache.engine.machine.put(1, cache.digest(key), tensor.data_ptr(), nbytes, describe(tensor)[1], now_ns())


def test_a_host_makes_room_for_a_kernel(new_world: MakeWorld) -> None:
    """Free pages lie between objects: a kernel can join them with nothing, a host evicts around them."""
    world = new_world(heap="local", alloc="device", n=2, heap_bytes=8 * PAGE, page_bytes=PAGE, size_classes=(1, 2, 4))
    for number in range(8):
        world[0].put(f"k{number}", page(number), preferred_segment=1)
    for number in (1, 3, 5, 7):
        world[0].remove(f"k{number}")
    assert plan_by_device(world[0], "large", 4 * PAGE) == Status.FULL
    assert world[0].make_room(1, 4 * PAGE)
    assert plan_by_device(world[0], "large", 4 * PAGE) == Status.OK
    assert sum(f"k{number}" in world[0] for number in range(0, 8, 2)) == 2


def test_no_room_can_be_made(new_world: MakeWorld) -> None:
    world = new_world(heap="local", alloc="device", n=2, heap_bytes=8 * PAGE, page_bytes=PAGE, size_classes=(1, 2, 4))
    for number in range(8):
        world[0].put(f"k{number}", page(number), preferred_segment=1, hold=3600.0)
    assert not world[0].make_room(1, PAGE)
    assert all(f"k{number}" in world[0] for number in range(8))


def test_room_that_cannot_be_asked_for(make_world: MakeWorld) -> None:
    world = make_world(n=2, heap_bytes=8 * PAGE, page_bytes=PAGE, size_classes=(1, 2, 4))
    for rank, nbytes in ((2, PAGE), (-1, PAGE), (0, -1), (0, 5 * PAGE)):
        with pytest.raises(InvalidArgument):
            world[0].make_room(rank, nbytes)
    if world[0].alloc == "host":
        with pytest.raises(InvalidArgument, match="master"):
            world[0].make_room(1, PAGE)
    else:
        assert world[0].make_room(1, PAGE)
        world[1].close()
        with pytest.raises(PeerLost):
            world[0].make_room(1, PAGE)

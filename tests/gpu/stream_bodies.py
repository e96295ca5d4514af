"""Tests of the order between streams, and of captures beside NanoKV's threads; see `bodies`.

On a CPU there are no streams: a body does the same there, and shows only that it is written rightly. On a GPU a kernel
that sleeps holds a stream up, and what must not wait for it is done while it still sleeps.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nanokv.device.kernels.frame import call_kernel
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request
from nanokv.device.protocol.status import Status
from nanokv.space.water_marks import evict_pages
from tests.gpu.bodies import flat, world
from tests.gpu.library_bodies import PAGE, caches

SLEEP = 1 << 31  #: cycles: about a second
WAIT_SECONDS = 60.0
OK = Status.OK


@contextmanager
def held_up(device: torch.device, *, default: bool = False) -> Iterator[Callable[[], bool]]:
    """A stream of the caller's (or the default one) on which a kernel sleeps. Gives: whether it still sleeps."""
    if device.type != "cuda":
        yield lambda: True
        return
    stream = torch.cuda.default_stream(device) if default else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ends = torch.cuda.Event()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)  # type: ignore[no-untyped-call]
        ends.record()
        yield lambda: not ends.query()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)


def puts_in_the_background_follow_their_caller(device: torch.device) -> None:
    """What a kernel of the caller's writes before `put_async` is what is stored, though the call comes long before."""
    with caches(device) as (here, there):
        late, cache = torch.zeros(PAGE, dtype=torch.uint8, device=device), torch.zeros(2, 4, 8, 2, 64, device=device)
        paged = here.paged_kv([cache], kv_dim=0)
        with held_up(device) as sleeps:
            late.fill_(7)
            cache[:, 1].fill_(5)
            one, many = here.put_async("late", late), paged.put_async(["block"], [1])
            assert sleeps(), "the calls waited for the caller's kernels"
            one.result(WAIT_SECONDS)
            assert many.result(WAIT_SECONDS) == [None]
        assert (there.get("late") == 7).all()
        cache.zero_()
        assert paged.get(["block"], [2]) == [None]
        assert (cache[:, 2] == 5).all()


def gets_in_the_background_follow_their_caller(device: torch.device) -> None:
    """A kernel of the caller's that reads a destination reads what was there before `get_async`."""
    with caches(device) as (here, _):
        here.put("new", torch.full((PAGE,), 7, dtype=torch.uint8, device=device))
        dst = torch.zeros(PAGE, dtype=torch.uint8, device=device)
        with held_up(device):
            before = dst.clone()
            here.get_async("new", dst=dst).result(WAIT_SECONDS)
        assert (before == 0).all()
        assert (dst == 7).all()


def memory_of_background_gets_is_not_reused_too_early(device: torch.device) -> None:
    """A tensor that `get_async` made, dropped while a kernel of the caller's has yet to read it, keeps its bytes."""
    with caches(device) as (here, _):
        for n in range(8):
            here.put(f"{n}", torch.full((PAGE,), n, dtype=torch.uint8, device=device))
        with held_up(device):
            copies = [here.get_async(f"{n}").result(WAIT_SECONDS).clone() for n in range(8)]
        assert [int(each[0]) for each in copies] == [*range(8)]
        assert all((each == each[0]).all() for each in copies)


def the_poller_waits_for_nobody(device: torch.device) -> None:
    """While a kernel sleeps on the default stream the index learns of puts, and the water marks are kept."""
    with caches(device, pages=32) as (here, there):
        for n in range(4):
            here.put(f"{n}", torch.zeros(PAGE, dtype=torch.uint8, device=device), preferred_segment=there.rank)
        with held_up(device, default=True) as sleeps:
            there.flush(timeout=WAIT_SECONDS)
            assert sleeps(), "flush waited for the default stream"
        assert there.stats()["indexed"] == 4


def the_owner_evicts_beside_a_sleeping_stream(device: torch.device) -> None:
    """By one launch, on the owner's stream."""
    with world(device, 16, may_evict=True) as made:
        data = made.bytes(PAGE, 1)
        assert [made.put(n, data) for n in range(8)] == [OK] * 8
        made.machine.enter_owner()  # this thread is the poller's from here on
        with held_up(device, default=True) as sleeps:
            assert evict_pages(made.machine, 1, 3, 100) == (3, 0)
            assert sleeps(), "the eviction waited for the default stream"
        found = [made.get(n, PAGE)[0] for n in range(8)]
        assert found.count(OK) == 5


def a_capture_beside_a_busy_poller(device: torch.device) -> None:
    """A graph is captured, in torch's own mode, while the poller takes hints and workers put; then it is replayed."""
    with caches(device, pages=512) as (here, there):
        count = 200 if device.type == "cuda" else 16
        batch = Batch(here.world_table, count, device)
        data = torch.arange(count * 64, device=device, dtype=torch.int64).view(count, 64)
        requests = [
            Request(here.digest(f"{n}"), data[n].data_ptr(), 512, there.rank, flat(512)) for n in range(len(data))
        ]
        batch.fill(requests)
        x = torch.ones(8, device=device)
        y = x * 2
        batch.put()
        handles = [here.put_async(f"aside {n}", data[n]) for n in range(8)]
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the hints are there: the poller, if it rested, goes on within its pause
            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    y.copy_(x * 3)
                    time.sleep(0.01)
            graph.replay()
            torch.cuda.synchronize(device)
            assert (y == 3).all()
        for handle in handles:
            handle.result(WAIT_SECONDS)
        assert batch.answers() == [OK] * len(data)
        there.flush(timeout=WAIT_SECONDS)
        assert there.stats()["poller_failures"] == here.stats()["poller_failures"] == 0


def a_poller_compiles_nothing_at_its_first_hints(device: torch.device) -> None:
    """All that it launches was compiled and loaded when its machine was made."""
    with world(device, 32, may_evict=True) as made:
        launches = made.machine
        launches.load()
        data = made.bytes(PAGE, 1)
        assert [made.put(n, data) for n in range(6)] == [OK] * 6
        before = _compiled()
        launches.enter_owner()
        drained = launches.drain(1, 0, 64)
        assert len(drained.hints) == 6
        assert launches.evict_pages(1, 1, 1, 1 << 40) == (1, 1)
        launches.leave(1, launches.enter(1))
        launches.in_flight(1, 0, 0)
        assert _compiled() == before


def _compiled() -> int:
    """How many kernels of one protocol function this process has compiled; 0 where they are interpreted."""
    caches = getattr(call_kernel, "device_caches", {})
    return sum(len(each[0]) for each in caches.values())


BODIES: tuple[Callable[[torch.device], None], ...] = (
    puts_in_the_background_follow_their_caller,
    gets_in_the_background_follow_their_caller,
    memory_of_background_gets_is_not_reused_too_early,
    the_poller_waits_for_nobody,
    the_owner_evicts_beside_a_sleeping_stream,
    a_capture_beside_a_busy_poller,
    a_poller_compiles_nothing_at_its_first_hints,
)

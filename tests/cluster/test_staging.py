"""The memory of gets: rooms go back to it, from any thread and at any moment."""

import gc
import threading
from typing import Any

import pytest

from nanokv.cluster import staging as staging_module
from nanokv.cluster.staging import Staging
from tests.support.faults import Limits


class Registrar:
    """A link that only notes what is registered."""

    def __init__(self) -> None:
        self.registered: set[int] = set()

    def register(self, address: int, nbytes: int, device: int | None = None, *, shared: bool = True) -> None:
        self.registered.add(address)

    def deregister(self, address: int) -> None:
        self.registered.remove(address)


@pytest.fixture
def staging() -> Any:
    return Staging(Registrar())  # type: ignore[arg-type]


def test_rooms_are_used_again(staging: Any) -> None:
    addresses = {staging.room(100).address for _ in range(10)}
    assert len(addresses) == 1
    view = staging.room(100).view(50)  # keeps its room
    assert staging.room(100).address != view.ctypes.data
    del view
    assert len(staging.link.registered) == 2


def test_more_than_is_kept_is_let_go(staging: Any, limits: Limits) -> None:
    limits(staging_module, _KEPT=8192)
    rooms = [staging.room(4096) for _ in range(5)]
    assert len(staging.link.registered) == 5
    rooms.clear()
    staging.room(10)
    assert len(staging.link.registered) == 2
    staging.close()
    staging.room(10)


def test_a_room_that_goes_under_the_lock(staging: Any) -> None:
    """The garbage collector frees rooms in any thread, also in one that has the lock: it must not wait for itself."""
    room = staging.room(100)
    cycle: list[Any] = [room]
    cycle.append(cycle)
    del room

    def collect() -> None:
        with staging._lock:
            gc.collect()

    del cycle
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert len({staging.room(100).address for _ in range(3)} & staging.link.registered) == 1
    assert len(staging.link.registered) == 1


def test_workspaces_that_come_back_late_are_let_go(staging: Any, limits: Limits) -> None:
    """And how many are still to come is known of each node."""
    limits(staging_module, _MOST_SPACES=2, _LOOK_AGAIN=0.0)
    over: list[int] = []
    for i in range(5):
        staging.keep(lambda i=i: i in over, staging.workspace(), node=i % 2)
    assert (staging.late_of(0), staging.late_of(1), staging.late_of(2)) == (3, 2, 0)
    assert len(staging.link.registered) == 5
    over += range(4)
    assert (staging.late_of(0), staging.late_of(1), staging.late) == (1, 0, 1)
    assert len(staging.link.registered) == 3  # one is late, two are kept

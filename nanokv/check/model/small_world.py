"""A small world in simulated memory, in which the tasks of a scenario work. Every answer is checked as it comes.

A key is a small number; the words of its payload all say (key, version). A task that may be killed has a rank of its
own: when it dies, that rank is dead for everybody who asks the heap.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from nanokv.check.model.transitions import watch_states
from nanokv.check.report import CheckFailure
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Found
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import WORD
from nanokv.device.sim.memory import Memory, join
from nanokv.device.sim.simulation import NEVER, Simulation, Task
from nanokv.device.sim.world import SimulatedMachine, SimulatedWorld
from nanokv.heap.base import Heap
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.poller import Poller
from nanokv.host_poller.sweeper import Sweeper

WHAT = (0,) * 8  #: the descriptor of raw bytes

#: a directory and an eviction with fewer candidates, tickets with less patience: the same code, shorter executions
SMALL = {"ENTRIES_PER_BUCKET": 2, "CANDIDATES": 4, "EVICT_SAMPLE": 2, "PATIENCE": 6}


#: steps of all tasks together in which some operation must end: lock-freedom. About four times the most that was seen
PROGRESS_BOUND = 1000


def digest(key: int) -> tuple[int, int]:
    """The two halves of a key's digest. Every key may use every entry of a directory of two buckets."""
    return key, key


class Bridge:
    """A machine that can be exchanged: host code goes on with another one when the tasks have ended."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)


class StageHeap:
    """What host code asks a heap: who is alive."""

    kind, name = "simulated", "stage"

    def __init__(self, stage: "Stage", rank: int) -> None:
        self._stage = stage
        self.rank = rank
        self.geometry = stage.geometry
        self.world_size = stage.geometry.world_size
        self.incarnation = 1
        self.recovered = stage.simulation.current is None and bool(stage.deaths())  # an owner that comes afterwards

    def alive(self, rank: int, incarnation: int) -> bool:
        """False once a task of the rank was killed; what it wrote is visible to whoever learns that."""
        dead = [task for task in self._stage.mortal.get(rank, []) if task.killed]
        current = self._stage.simulation.current
        for task in dead if current is not None else []:
            join(cast(Task, current).view, task.view)
        return not dead and rank not in self._stage.buried

    def wake(self, rank: int) -> None:
        """Nobody sleeps here."""


class Stage:
    """One scenario's world, used for many executions.

    Args:
        memory: the memory model.
        geometry: of the segments.
        replaced: mutants (`Simulation`).
        small: whether the directory has fewer candidates (`SMALL`).
    """

    def __init__(
        self,
        memory: type[Memory],
        geometry: Geometry,
        *,
        may_evict: bool = False,
        replaced: dict[Any, Any] | None = None,
        small: bool = True,
    ) -> None:
        self.simulation = Simulation(memory, replaced, SMALL if small else None, bound=PROGRESS_BOUND)
        self.geometry = geometry
        self.world = SimulatedWorld(self.simulation, geometry, may_evict=may_evict)
        self._machines: dict[int, SimulatedMachine] = {}
        self.may_evict = may_evict
        self.sound: set[tuple[object, ...]] = set()  #: contents of memory that came to rest well
        self.restart()

    def restart(self) -> None:
        """Begin an execution."""
        self.world.restart()
        self.mortal: dict[int, list[Task]] = {}  #: rank -> tasks that it dies with
        self.buried: set[int] = set()  #: ranks that were dead before
        self.kills: dict[str, int] = {}
        self.results: dict[str, Any] = {}
        self.versions: dict[int, dict[int, int]] = {}  #: key -> version -> words
        self.hosts: dict[int, tuple[Bridge, Sweeper, Poller | None]] = {}
        self.time = 0
        watch_states(self.simulation, self.world)

    def machine(self, rank: int = 0) -> SimulatedMachine:
        """The machine of a rank."""
        if rank not in self._machines:
            self._machines[rank] = self.world.machine(rank)
        return self._machines[rank]

    def function(self, device_function: Any) -> Callable[..., Any]:
        """A device function of this stage, for scenarios that call single ones."""
        return self.simulation.function(device_function)

    def spawn(self, name: str, body: Callable[[], Any], rank: int | None = None) -> None:
        """Add a task; `rank`: the process that dies with it, if it is killed. Its result: `results[name]`."""

        def run() -> None:
            self.results[name] = body()

        task = self.simulation.spawn(name, run, self.kills.get(name, NEVER))
        if rank is not None:
            self.mortal.setdefault(rank, []).append(task)

    def deaths(self) -> set[int]:
        """The ranks that died."""
        died = {rank for rank, tasks in self.mortal.items() if any(task.killed for task in tasks)}
        return died | self.buried

    def now(self) -> int:
        """A time that goes on."""
        self.time += 1
        return self.time

    def ended(self) -> None:
        """An operation has ended: the system makes progress."""
        self.simulation.completed()

    # operations of tasks
    def payload(self, key: int, version: int, words: int) -> Any:
        """int64 [words] that say whose they are."""
        self.versions.setdefault(key, {})[version] = words
        return np.full(max(words, 1), key << 32 | version, np.int64)

    def put(self, key: int, version: int, words: int = 2, *, rank: int = 0, owner: int = 0) -> Status:
        """Put an object."""
        source = self.payload(key, version, words)
        answer = self.machine(rank).put(owner, digest(key), source.ctypes.data, words * WORD, WHAT, self.now())
        self.ended()
        return Status(answer)

    def find(self, key: int, rank: int = 0) -> Status:
        """Look a key up."""
        answer = self.machine(rank).find(digest(key))
        self.ended()
        return Status(answer)

    def get(self, key: int, rank: int = 0) -> tuple[Status, int]:
        """Read an object: (status, version)."""
        found = self.machine(rank).lookup(digest(key))
        status, version = Status(found.status), 0
        if status == Status.OK:
            status, version = self._read(key, found, rank)
        self.ended()
        return status, version

    def _read(self, key: int, found: Found, rank: int) -> tuple[Status, int]:
        if not 0 < found.place.nbytes <= self.geometry.max_object_bytes:
            if self.machine(rank).validate(found.place) == Status.OK:
                raise CheckFailure(f"I4: key {key} has {found.place.nbytes} bytes")
            return Status.TORN, 0
        room = np.zeros(found.place.nbytes // WORD, np.int64)
        status = Status(self.machine(rank).read(digest(key), found.place, room.ctypes.data, self.now()))
        return status, self.check(key, room) if status == Status.OK else 0

    def check(self, key: int, words: Any) -> int:
        """The version that words say, if they are of one version of the key that was put."""
        self.simulation.finish_copies()
        said = set(words.tolist())
        if len(said) != 1:
            raise CheckFailure(f"I4: a read of key {key} is torn: {[hex(word) for word in said]}")
        word = said.pop()
        if word >> 32 != key or self.versions.get(key, {}).get(word & 0xFFFFFFFF) != len(words):
            raise CheckFailure(f"I3, I4: a read of key {key} says {word:#x}, {len(words)} words")
        return int(word & 0xFFFFFFFF)

    def remove(self, key: int, rank: int = 0) -> Status:
        """Remove an object."""
        answer = self.machine(rank).remove(digest(key))
        self.ended()
        return Status(answer)

    def hold(self, key: int, rank: int = 0, looks: int = 2) -> Status:
        """Pin an object, look at its bytes in place, unpin it."""
        machine = self.machine(rank)
        found = machine.lookup(digest(key))
        status = Status(found.status)
        if status == Status.OK:
            answer, line = machine.pin(found.place)
            status = Status(answer)
            if status == Status.OK:
                payload = self.world.bases[found.place.owner] + found.place.payload
                rooms = [np.zeros(found.place.nbytes // WORD, np.int64) for _ in range(looks)]
                for room in rooms:
                    self.simulation.vocabulary["copy_bytes"](room.ctypes.data, payload, found.place.nbytes)
                if machine.unpin(found.place, line) != Status.OK:
                    raise CheckFailure(f"I8: a pin of key {key} was lost")
                if len({self.check(key, room) for room in rooms}) > 1:
                    raise CheckFailure(f"I8: the pinned object of key {key} changed")
        self.ended()
        return status

    # host code
    def sweeper(self, rank: int = 0, write_timeout: float = 1e9) -> Sweeper:
        """The production sweeper of a rank's segment."""
        return self._host(rank, write_timeout, False)[1]

    def poller(self, rank: int = 0, write_timeout: float = 1e9) -> Poller:
        """The production poller of a rank's segment, without its thread."""
        poller = self._host(rank, write_timeout, True)[2]
        assert poller is not None
        return poller

    def _host(self, rank: int, write_timeout: float, polls: bool) -> tuple[Bridge, Sweeper, Poller | None]:
        bridge = Bridge(self.machine(rank))
        machine, heap = cast(Machine, bridge), cast(Heap, StageHeap(self, rank))
        if polls:
            poller = Poller(machine, heap, write_timeout=write_timeout, reclaims=True)
            self.hosts[rank] = bridge, poller.sweeper, poller
        else:
            index = HeaderIndex(self.geometry, rank)
            self.hosts[rank] = bridge, Sweeper(machine, heap, index, write_timeout, True), None
        return self.hosts[rank]

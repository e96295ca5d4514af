"""A small world in simulated memory, in which the tasks of a scenario work. Every answer is checked as it comes.

A key is a small number. Every word of an object's payload holds (key, version). A task that may be killed has a rank of
its own: when the task dies, the heap answers that this rank is dead.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from nanokv.check.protocol.model.native_calls import SimulatedSocket, native_calls
from nanokv.check.report import CheckFailure
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Place, Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.last_access import lease_until
from nanokv.device.segment.layout import (
    DEAD,
    EPOCH_SHIFT,
    H_PAGES,
    H_PAYLOAD,
    H_STATE,
    HEADER_BYTES,
    LOW32,
    PIN_HELD,
    READY,
    RESERVED,
    WORD,
    WRITING,
    unpack,
)
from nanokv.device.sim.memory import Memory, join
from nanokv.device.sim.simulation import InTasks, Simulation, Task
from nanokv.device.sim.world import SimulatedMachine, SimulatedWorld
from nanokv.heap.base import Heap
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.orphans import Orphans
from nanokv.host_poller.poller import Poller
from nanokv.host_poller.sweeper import Sweeper

# --- what must hold at each step of an execution ----------------------------------------------
# Every write to a STATE word must be one of the transitions that `device/protocol/header.py` lists, epochs never go
# back (I7), a pinned object never becomes DEAD, each HELD line of a ledger stands for a pin (I8), and a producer that
# publishes pages shares them with nobody (I1). What must hold when all has come to rest: `explore.come_to_rest`.
_NAMES = {RESERVED.value: "RESERVED", WRITING.value: "WRITING", READY.value: "READY", DEAD.value: "DEAD"}
_STEPS = {(RESERVED.value, WRITING.value), (WRITING.value, READY.value)}


def watch_states(memory: Memory, segments: SimulatedWorld) -> None:
    """Check every write to a STATE word, and to a line of a pin ledger, of the execution that begins."""
    for base in segments.bases:
        segment = _Segment(memory, segments.geometry, base)
        for slot in range(segments.geometry.hdr_count):
            memory.watched[segment.header(slot) + H_STATE.value] = partial(segment.check_state, slot)
        for line in segment.lines:
            memory.watched[line] = partial(segment.check_line, line)


class _Segment:
    """The headers and the pin ledger of one segment."""

    def __init__(self, memory: Memory, geometry: Geometry, base: int) -> None:
        self._newest, self._geometry = memory.newest, geometry
        self._headers = base + geometry.offsets["hdr_base"]
        ledger = base + geometry.offsets["pin_base"]
        self.lines = range(ledger, ledger + geometry.pin_slots * WORD, WORD)  #: addresses of the ledger's lines

    def header(self, slot: int) -> int:
        """The address of a header."""
        return self._headers + slot * int(HEADER_BYTES.value)

    def check_state(self, slot: int, old: int, new: int) -> None:
        """A STATE word is written."""
        if new == old:  # a read-modify-write that only reads
            return
        if not is_legal(old, new):
            raise CheckFailure(f"the STATE word of slot {slot} went from {_text(old)} to {_text(new)}")
        if unpack("STATE", "pins", new) < unpack("STATE", "pins", old):
            self._check_pins(slot, new, map(self._newest, self.lines))
        if unpack("STATE", "state", new) == WRITING.value:
            self._check_overlap(slot)

    def check_line(self, address: int, old: int, new: int) -> None:
        """A line of the ledger is written."""
        if unpack("PIN", "phase", new) == PIN_HELD.value:
            slot = int(unpack("PIN", "header", new))
            lines = (new if line == address else self._newest(line) for line in self.lines)
            self._check_pins(slot, self._newest(self.header(slot) + H_STATE.value), lines)

    def _check_pins(self, slot: int, state: int, lines: Iterable[int]) -> None:
        """Each line of the ledger that is HELD stands for one pin (I8)."""
        held = [unpack("PIN", "header", line) for line in lines if unpack("PIN", "phase", line) == PIN_HELD.value]
        if held.count(slot) > unpack("STATE", "pins", state):
            raise CheckFailure(
                f"I8: {held.count(slot)} lines of the ledger hold slot {slot}, its STATE is {_text(state)}"
            )

    def _pages(self, slot: int) -> tuple[int, int]:
        """The bytes from and to which a header holds pages: a whole extent of its class."""
        header, geometry = self.header(slot), self._geometry
        n_pages = self._newest(header + H_PAGES.value) & LOW32.value
        whole = min((size for size in geometry.class_pages if size >= n_pages), default=0) if n_pages else 0
        start = self._newest(header + H_PAYLOAD.value)
        return start, start + whole * geometry.page_bytes

    def _check_overlap(self, slot: int) -> None:
        start, end = self._pages(slot)
        for other in range(self._geometry.hdr_count):
            if other == slot or self._newest(self.header(other) + H_STATE.value) == RESERVED.value:
                continue
            first, last = self._pages(other)
            if max(first, start) < min(last, end):  # of a dead object that gave its pages away, none are left
                raise CheckFailure(f"I1: slot {slot} publishes bytes {start:#x} to {end:#x}, which slot {other} holds")


def _text(state: int) -> str:
    phase, pins, epoch = (unpack("STATE", name, state) for name in ("state", "pins", "epoch"))
    return f"({_NAMES.get(phase, phase)}, {pins}, {epoch})"


def is_legal(old: int, new: int) -> bool:
    was, state = unpack("STATE", "state", old), unpack("STATE", "state", new)
    age = unpack("STATE", "epoch", new) - unpack("STATE", "epoch", old)
    if age:
        fresh = was == DEAD.value or old == RESERVED.value
        return bool(age == 1 and fresh and new == RESERVED.value | (new >> EPOCH_SHIFT.value << EPOCH_SHIFT.value))
    pins, had = unpack("STATE", "pins", new), unpack("STATE", "pins", old)
    if state == was == READY.value:
        return True  # pins: the ledger says at rest whether they are right
    if pins or had:
        return False
    return (was, state) in _STEPS or state == DEAD.value


# --- the small world --------------------------------------------------------------------------
RAW_BYTES = (0,) * 8  #: the descriptor of raw bytes
FAR = 1 << 40  #: a time that no execution reaches

#: a directory and an eviction with fewer candidates, producers with less patience: the same code, shorter executions
SMALL = {
    "ENTRIES_PER_BUCKET": 2,
    "CANDIDATES": 4,
    "PATIENCE": 6,
    "EXTENT_LOOKS": 4,
    "LOOKS": 3,
    "SINGLE": 2,
    "PER_STEP": 1,
    "RUNS": 2,
    "TRIES": 3,
    "PLACES": 2,
    "ROUNDS": 8,
    "INLINE": 2 * WORD,
    "MOST_A_TURN": 6 * WORD,
}

#: steps of all tasks together in which some operation must end: lock-freedom. About four times the most ever seen
PROGRESS_BOUND = 1000


def digest(key: int) -> tuple[int, int]:
    """The two halves of a key's digest. Every key may use every entry of a directory of two buckets."""
    return key, key


class ReplaceableMachine:
    """A machine that can be exchanged under host code: at rest, host code goes on with a native one."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)


class Host(NamedTuple):
    """The production host code of one rank."""

    machine: ReplaceableMachine
    sweeper: Sweeper
    poller: Poller | None


class SmallHeap:
    """The heap of a small world, as host code asks it: which ranks are alive."""

    kind, name, backing = "simulated", "small", None

    def __init__(self, world: "SmallWorld", rank: int) -> None:
        self._world = world
        self.rank = rank
        self.geometry = world.geometry
        self.world_size = world.geometry.world_size
        self.incarnation = 1
        self.recovered = world.simulation.current is None and bool(world.deaths())  # an owner that comes afterwards

    def alive(self, rank: int, incarnation: int) -> bool:
        """False once a task of the rank was killed. A caller that learns this sees all that the task wrote."""
        dead = [task for task in self._world.mortal.get(rank, []) if task.killed]
        current = self._world.simulation.current
        for task in dead if current is not None else []:
            join(cast(Task, current).view, task.view)
        return not dead and rank not in self._world.buried

    def peer_closed(self, rank: int) -> bool:
        """Whether a rank has ended."""
        return not self.alive(rank, 1)

    def host_view(self, rank: int) -> Any:
        """A segment; nobody looks at it this way, only whether it is mapped."""
        return self._world.segments.views()[rank].raw

    def wake(self, rank: int) -> None:
        """Nobody sleeps here."""


class SmallWorld:
    """The world of one scenario, used for many executions.

    Args:
        memory: the memory model.
        geometry: of the segments.
        may_evict: whether producers evict.
        checksum: whether objects have checksums.
        replaced: a mutant (`Simulation`).
        in_tasks: makes what tasks call (`Simulation`).
    """

    def __init__(
        self,
        memory: type[Memory],
        geometry: Geometry,
        *,
        may_evict: bool = False,
        checksum: bool = False,
        replaced: dict[Any, Any] | None = None,
        in_tasks: InTasks | None = None,
    ) -> None:
        self.sockets: dict[int, SimulatedSocket] = {}  #: by the number that native code knows
        calls = native_calls(self.sockets, lambda: self.simulation)
        self.simulation = Simulation(memory, replaced, SMALL, native=calls, in_tasks=in_tasks, bound=PROGRESS_BOUND)
        vocabulary = self.simulation.vocabulary
        self.load, self.store, self.copy = (vocabulary[name] for name in ("load64", "store64", "copy_bytes"))
        self.geometry = geometry
        self.segments = SimulatedWorld(self.simulation, geometry, may_evict=may_evict, checksum=checksum)
        self._machines: dict[int, SimulatedMachine] = {}
        self.kept: dict[str, Any] = {}  #: what scenarios make once, for all executions
        self.sound: set[tuple[object, ...]] = set()  #: contents of memory that came to rest well
        self.restart()

    def restart(self) -> None:
        """Begin an execution."""
        self.segments.restart()
        self.mortal: dict[int, list[Task]] = {}  #: rank -> tasks that it dies with
        self.buried: set[int] = set()  #: ranks that were dead before
        self.results: dict[str, Any] = {}  #: of tasks that ended
        self.versions: dict[int, dict[int, int]] = {}  #: key -> version -> words
        self.hosts: dict[int, Host] = {}
        self.time = 0
        watch_states(self.simulation.memory, self.segments)

    def machine(self, rank: int = 0) -> SimulatedMachine:
        """The machine of a rank."""
        if rank not in self._machines:
            self._machines[rank] = self.segments.machine(rank)
        return self._machines[rank]

    def spawn(self, name: str, body: Callable[[], Any], rank: int | None = None) -> None:
        """Add a task, whose result will be `results[name]`. `rank`: the process that dies if the task is killed."""

        def run() -> None:
            self.results[name] = body()

        task = self.simulation.spawn(name, run)
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

    # --- single functions of the protocol, for tasks smaller than an operation ---
    def function(self, device_function: Any) -> Callable[..., Any]:
        """A device function of this world."""
        return self.simulation.function(device_function)

    def on_segment(self, device_function: Any, rank: int = 0) -> Callable[..., Any]:
        """A device function that begins with (world, seg), as `rank` calls it on the segment of rank 0."""
        return partial(self.function(device_function), self.segments.table(rank), self.address())

    def on_owner(self, device_function: Any, rank: int = 0) -> Callable[..., Any]:
        """A device function that begins with (world, owner), as `rank` calls it on the segment of rank 0."""
        return partial(self.function(device_function), self.segments.table(rank), 0)

    def address(self, region: str | None = None, rank: int = 0) -> int:
        """The address of a rank's segment, or of a region of it."""
        return self.segments.bases[rank] + (self.geometry.offsets[region] if region is not None else 0)

    # --- operations of tasks ---
    def payload(self, key: int, version: int, words: int) -> Any:
        """int64 [words] that hold their key and version."""
        self.versions.setdefault(key, {})[version] = words
        return np.full(max(words, 1), key << 32 | version, np.int64)

    def put(self, key: int, version: int, words: int = 2, *, rank: int = 0, owner: int = 0) -> Status:
        """Put an object."""
        source = self.payload(key, version, words)
        answer = self.machine(rank).put(owner, digest(key), source.ctypes.data, words * WORD, RAW_BYTES, self.now())
        self.ended()
        return Status(answer)

    def put_leased(self, key: int, version: int, words: int = 2) -> Status:
        """Put an object under a lease that does not end by time."""
        return self.put_with(Terms(FAR), key, version, words)

    def put_with(self, terms: Terms, key: int, version: int, words: int = 2) -> Status:
        """Put an object with terms."""
        source, machine = self.payload(key, version, words), self.machine()
        begun = machine.begin(0, digest(key), words * WORD, 0, RAW_BYTES, self.now())
        answer = begun.status
        if answer == Status.OK:
            machine.set_terms(begun.place, terms)
            self.copy(self.address() + begun.place.payload, source.ctypes.data, source.nbytes)
            answer = machine.finish(begun.place, begun.phase)
        self.ended()
        return Status(answer)

    def renew(self, key: int) -> bool:
        """Lease an object that exists."""
        machine = self.machine()
        found = machine.lookup(digest(key))
        renewed = found.status == Status.OK and machine.renew(found.place, *lease_until(FAR))
        self.ended()
        return renewed

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
            status, version = self._read(key, found.place, rank)
        self.ended()
        return status, version

    def _read(self, key: int, place: Place, rank: int) -> tuple[Status, int]:
        if not 0 < place.nbytes <= self.geometry.max_object_bytes:
            if self.machine(rank).validate(place) == Status.OK:
                raise CheckFailure(f"I4: key {key} has {place.nbytes} bytes")
            return Status.TORN, 0
        room = np.zeros(place.nbytes // WORD, np.int64)
        status = Status(self.machine(rank).read(digest(key), place, room.ctypes.data, self.now()))
        if status != Status.OK:
            self.simulation.forget_copies()
            return status, 0
        return status, self.check(key, room)

    def check(self, key: int, words: Any) -> int:
        """The version that these words hold.

        Raises:
            CheckFailure: they are not of one version of the key that was put.
        """
        self.simulation.finish_copies()
        values = set(words.tolist())
        if len(values) != 1:
            raise CheckFailure(f"I4: a read of key {key} is torn: {[hex(value) for value in values]}")
        value = values.pop()
        if value >> 32 != key or self.versions.get(key, {}).get(value & 0xFFFFFFFF) != len(words):
            raise CheckFailure(f"I3, I4: a read of key {key} found {value:#x}, {len(words)} words")
        return int(value & 0xFFFFFFFF)

    def remove(self, key: int, rank: int = 0) -> Status:
        """Remove an object."""
        answer = self.machine(rank).remove(digest(key))
        self.ended()
        return Status(answer)

    def replicate(self, key: int, target: int, rank: int = 0) -> Status:
        """Copy an object into the segment of `target`."""
        answer = self.machine(rank).replicate(target, digest(key), self.now())
        self.ended()
        return Status(answer)

    def put_copied(self, key: int, version: int, targets: tuple[int, ...], words: int = 2, *, rank: int = 0) -> Status:
        """Put an object into the segment of rank 0, with copies."""
        source = self.payload(key, version, words)
        at, size = source.ctypes.data, words * WORD
        answer, _ = self.machine(rank).put_copied(0, digest(key), at, size, RAW_BYTES, self.now(), targets)
        self.ended()
        return Status(answer)

    def versions_there(self, key: int) -> list[tuple[int, int]]:
        """At rest: (rank, version) of each READY object of a key."""
        found = []
        for rank, view in enumerate(self.segments.views()):
            for slot in np.flatnonzero(view.headers["state"] & 0xFF == READY.value).tolist():
                header = view.headers[slot]
                if int(header["key_hash"]) == key:
                    words = view.raw[int(header["payload_base"]) :][: int(header["bytes_total"])].view(np.int64)
                    found.append((rank, self.check(key, words)))
        return found

    def hold(self, key: int, rank: int = 0, looks: int = 2) -> Status:
        """Pin an object, look at its bytes in place, unpin it."""
        machine = self.machine(rank)
        found = machine.lookup(digest(key))
        status, place = Status(found.status), found.place
        if status == Status.OK:
            answer, line = machine.pin(place)
            status = Status(answer)
            if status == Status.OK:
                payload = self.address(rank=place.owner) + place.payload
                rooms = [np.zeros(place.nbytes // WORD, np.int64) for _ in range(looks)]
                for room in rooms:
                    self.copy(room.ctypes.data, payload, place.nbytes)
                if machine.unpin(place, line) != Status.OK:
                    raise CheckFailure(f"I8: a pin of key {key} was lost")
                if len({self.check(key, room) for room in rooms}) > 1:
                    raise CheckFailure(f"I8: the pinned object of key {key} changed")
        self.ended()
        return status

    # --- host code ---
    def heap(self, rank: int = 0) -> Heap:
        """The heap, as a rank's host code sees it."""
        return cast(Heap, SmallHeap(self, rank))

    def sweeper(self, rank: int = 0, write_timeout: float = 1e9) -> Sweeper:
        """The production sweeper of a rank's segment."""
        machine = ReplaceableMachine(self.machine(rank))
        index = HeaderIndex(self.geometry, rank)
        sweeper = Sweeper(cast(Machine, machine), self.heap(rank), index, write_timeout, True)
        self.hosts[rank] = Host(machine, sweeper, None)
        return sweeper

    def orphans(self, rank: int = 0) -> Orphans:
        """What a rank's poller does for ranks that have ended."""
        return Orphans(cast(Machine, self.machine(rank)), self.heap(rank))

    def poller(self, rank: int = 0) -> Poller:
        """The production poller of a rank's segment, without its thread."""
        machine = ReplaceableMachine(self.machine(rank))
        poller = Poller(cast(Machine, machine), self.heap(rank), write_timeout=1e9, reclaims=True)
        self.hosts[rank] = Host(machine, poller.sweeper, poller)
        return poller

    def steps_of(self, host: Sweeper | Poller, count: int) -> Callable[[], None]:
        """The body of a task that does `count` rounds of a sweeper or a poller."""

        def body() -> None:
            for step in range(count):
                host.step(step)
                self.ended()

        return body

"""The simulated machine: tasks run device functions, and every access to shared memory is a scheduling point.

A decider chooses which task goes on, which of the possible messages a load reads, and where a store goes. The first
alternative is always the plain one: the same task, the newest message, the end. So an execution is named by the few
decisions in which another alternative was taken (`schedule`). A task can be killed before any of its steps: it leaves
shared memory as it was then.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from nanokv.device.memory.retarget import retarget
from nanokv.device.memory.triton import GOLDEN, MIX_ONE, MIX_TWO
from nanokv.device.sim.memory import SHARED, Memory, View, signed

LOAD, STORE, MODIFY = "load", "store", "modify"
_NEVER = 1 << 60
_WORD = 8
_MASK = (1 << 64) - 1
#: addresses of this process: buffers and tables that one task has for itself. Below lie offsets in a segment at 0
PRIVATE = range(1 << 20, 1 << 48)


class Killed(BaseException):
    """Ends a task at a step. It is no Exception: nothing may handle it."""


class NoProgress(Exception):
    """No operation ended for too many steps: lock-freedom is broken."""


class Task:
    """One thread of a simulation."""

    def __init__(self, name: str, body: Callable[[], Any]) -> None:
        self.name = name
        self.body = body
        self.kill_at = _NEVER  #: steps that it does before it is killed
        self.steps = 0
        self.killed = False
        self.result: Any = None
        self.kind, self.address = "", 0  #: its next access
        self.view: View = {}
        self.behind: View = {}
        self.late: list[tuple[int, int]] = []  #: words of a copy that are still to be read: (private, shared)
        self.greenlet: greenlet | None = None


class Decider(Protocol):
    """Decides one execution: a schedule by name, or one that is drawn as it goes (`schedulers`)."""

    @property
    def kills(self) -> dict[str, int]:
        """Task -> steps that it does before it is killed."""

    def start(self, simulation: "Simulation") -> None:
        """Called before the execution, when all tasks are there."""

    def task(self, simulation: "Simulation", current: Task | None, runnable: list[Task]) -> Task:
        """The task that goes on. `current`: the one that was running, if it still can."""

    def data(self, simulation: "Simulation", count: int) -> int:
        """The outcome in memory, one of `count` > 1; 0 is the plain one."""


class InTasks(Protocol):
    """Makes what tasks call in place of device functions in plain Python: compiled code."""

    @property
    def name(self) -> str:
        """The name of the code, in strings that replay executions."""

    def __call__(self, simulation: "Simulation", device_function: Any) -> Callable[..., Any]:
        """A device function of a simulation, with what is `replaced` there, and its `constants`."""


def mixed(value: int, place: int) -> int:
    """`memory.triton.mixed`, whose arithmetic wraps."""
    x = (value + (place + 1) * GOLDEN.value) & _MASK
    x = ((x ^ (x >> 30)) * MIX_ONE.value) & _MASK
    x = ((x ^ (x >> 27)) * MIX_TWO.value) & _MASK
    return signed(x ^ (x >> 31))


def private_word(address: int) -> Any:
    """A word of this process, as an object with a `value`."""
    return ctypes.c_int64.from_address(address)


class Simulation:
    """Runs executions. Functions are rebuilt once, and used by all of them.

    Args:
        memory: makes the memory of an execution out of its first words.
        replaced: raw Python function -> the device function that runs in its place (`mutants`).
        constants: constants of the protocol by name, with the values they have here: smaller, for short executions.
        native: what stands here for the functions that native code alone has, by name.
        in_tasks: makes what tasks call; by default they run device functions as plain Python, as is done outside.
        limit: steps of one execution at most.
        bound: steps within which some task must end an operation.

    Raises (`run`):
        NoProgress: one of these two bounds was passed.
        Exception: of a task.
    """

    def __init__(
        self,
        memory: type[Memory],
        replaced: dict[Any, Any] | None = None,
        constants: dict[str, int] | None = None,
        *,
        native: dict[str, Callable[..., Any]] | None = None,
        in_tasks: InTasks | None = None,
        limit: int = 50_000,
        bound: int = 20_000,
    ) -> None:
        self._make = memory
        self.replaced, self.constants, self._in_tasks = replaced or {}, constants or {}, in_tasks
        self._done: dict[Any, Any] = {}
        self.vocabulary: dict[str, Any] = {
            "word": int,
            "select": lambda condition, yes, no: yes if condition else no,
            "table64": self._table64,
            "count_below": self._count_below,
            "open_world": lambda table: table,
            "load64": self._load64,
            "look_lines": self._look_lines,
            "look_rows": self._look_rows,
            "near": lambda number, step: number,
            "count_up": self._count_up,
            "store64": self._store64,
            "cas64": self._cas64,
            "add64": self._add64,
            "xchg64": self._xchg64,
            "copy_bytes": self._copy_bytes,
            "mixed": mixed,
            "checksum_bytes": self._checksum_bytes,
            "now_ns": lambda: 1,
            **self.constants,
            **(native or {}),
        }
        for raw, other in self.replaced.items():
            self._done[raw] = retarget(other, self.vocabulary, done=self._done)
        self._limit, self._bound = limit, bound
        self._tables: dict[int, int] = {}
        self.current: Task | None = None
        self._outside = Task("outside", lambda: None)
        self.reset([])

    def host_function(self, device_function: Any) -> Callable[..., Any]:
        """A device function on this machine, which a host runs: it is never compiled for a GPU."""
        rebuilt: Callable[..., Any] = retarget(device_function, self.vocabulary, done=self._done)
        return rebuilt

    def function(self, device_function: Any) -> Callable[..., Any]:
        """A device function on this machine. Outside of tasks it runs alone, and reads the newest words."""
        rebuilt = self.host_function(device_function)
        if self._in_tasks is None:
            return rebuilt
        within = self._in_tasks(self, device_function)

        def called(*words: int) -> Any:
            return (rebuilt if self.current is None else within)(*words)

        return called

    def table(self, address: int, words: list[int]) -> None:
        """Announce a private table, so that reading it costs little."""
        self._tables.update({address + _WORD * i: value for i, value in enumerate(words)})

    # an execution
    def reset(self, words: list[int]) -> None:
        """Begin a new execution on memory that holds `words`."""
        self.memory = self._make(words)
        self.memory.pick = self.decide
        self.tasks: list[Task] = []
        self._runnable: list[Task] = []
        self._decider: Decider | None = None
        self.current = None
        self.steps = 0
        self._since = 0
        self.longest = 0  #: most steps between two ends of operations
        self.decisions = 0
        self.choosing_late = False  #: the decision is whether a copy is late
        self.choosing_order = False  #: the decision is in which order a transfer moves its words
        self.taken: list[tuple[int, int]] = []  #: decisions that were not the plain one: (number, alternative)

    def spawn(self, name: str, body: Callable[[], Any]) -> Task:
        """Add a task."""
        task = Task(name, body)
        task.greenlet = greenlet(lambda: self._live(task))
        self.tasks.append(task)
        return task

    def _live(self, task: Task) -> None:
        try:
            task.result = task.body()
            self._read_late(task)
        except Killed:
            task.killed = True
        self._runnable.remove(task)
        self.current = None

    def run(self, decider: Decider) -> None:
        """Run all tasks to their ends."""
        for task in self.tasks:
            task.kill_at = decider.kills.get(task.name, _NEVER)
        self._decider = decider
        self._runnable = list(self.tasks)
        decider.start(self)
        hub = getcurrent()
        try:
            while self._runnable:
                self.current = self._next(None)
                assert self.current.greenlet is not None
                self.current.greenlet.parent = hub
                self.current.greenlet.switch()
        finally:
            self.current = None
            self._decider = None
            for task in self._runnable:
                if task.greenlet:
                    task.greenlet.parent = hub
                    task.greenlet.throw(GreenletExit)

    def completed(self) -> None:
        """The current task has ended one of its operations."""
        self._since = 0

    def _next(self, current: Task | None) -> Task:
        """The task that goes on; the decision is noted."""
        assert self._decider is not None
        runnable = self._runnable
        chosen = self._decider.task(self, current, runnable)
        if len(runnable) > 1:
            plain = current if current is not None else runnable[0]
            if chosen is not plain:
                others = [task for task in runnable if task is not plain]
                self.taken.append((self.decisions, 1 + others.index(chosen)))
            self.decisions += 1
        return chosen

    def decide(self, count: int) -> int:
        """One of `count` outcomes in memory; 0 is the plain one."""
        if self._decider is None or count < 2:
            return 0
        chosen = self._decider.data(self, count)
        if chosen:
            self.taken.append((self.decisions, chosen))
        self.decisions += 1
        return chosen

    def decide_late(self) -> bool:
        """Whether the words of a copy are read late; not is the plain outcome."""
        self.choosing_late = True
        late = self.decide(2) == 1
        self.choosing_late = False
        return late

    def decide_order(self, count: int) -> int:
        """Decide in which of `count` orders a transfer moves its words; as they lie is the plain outcome."""
        self.choosing_order = True
        order = self.decide(count)
        self.choosing_order = False
        return order

    def point(self, kind: str, address: int) -> Task:
        """A scheduling point before an access. Returns the task that makes the access."""
        task = self.current
        if task is None:
            return self._outside
        if task.steps >= task.kill_at:
            raise Killed
        task.steps += 1
        self.steps += 1
        self._since += 1
        if self._since > self.longest:
            self.longest = self._since
            if self._since > self._bound or self.steps > self._limit:
                raise NoProgress(f"no operation ended in {self._since} steps; {self.steps} steps in all")
        task.kind, task.address = kind, address
        chosen = self._next(task)
        if chosen is not task:
            self.current = chosen
            assert chosen.greenlet is not None
            chosen.greenlet.switch()
        return task

    def glance(self, address: int) -> tuple[int, View]:
        """What a transfer sees of a word: see `Memory.glance`."""
        task = self.point(LOAD, address)
        if task is self._outside:
            return self.memory.newest(address), {}
        return self.memory.glance(task, address)

    # the vocabulary
    def _table64(self, address: int) -> int:
        value = self._tables.get(address)
        return value if value is not None else int(private_word(address).value)

    def _count_below(self, address: int, count: int, value: int) -> int:
        return sum(self._table64(address + _WORD * i) < value for i in range(count))

    def _load64(self, address: int, sem: str) -> int:
        if address in PRIVATE:
            self.finish_copies()
            return int(private_word(address).value)
        task = self.point(LOAD, address)
        if task is self._outside:
            return self.memory.newest(address)
        return self.memory.load(task, address, sem)

    def _store64(self, address: int, value: int, sem: str) -> None:
        if address in PRIVATE:
            private_word(address).value = value
            return
        self._before(sem)
        self.memory.store(self.point(STORE, address), address, value, sem)

    def _cas64(self, address: int, expected: int, new: int, sem: str) -> int:
        self._before(sem)
        return self.memory.cas(self.point(MODIFY, address), address, expected, new, sem)

    def _add64(self, address: int, value: int, sem: str) -> int:
        if value == 0 and sem in ("relaxed", "acquire"):
            return self._load64(address, sem)  # as LLVM does
        self._before(sem)
        return self.memory.add(self.point(MODIFY, address), address, value, sem)

    def _xchg64(self, address: int, value: int, sem: str) -> int:
        self._before(sem)
        return self.memory.exchange(self.point(MODIFY, address), address, value, sem)

    def _look_lines(self, one: int, two: int, count: int, mask: int, want: int) -> tuple[int, int]:
        seen = [self._load64(line + _WORD * i, "relaxed") for line in (one, two) for i in range(count)]
        same = sum(1 << i for i, word in enumerate(seen) if word != 0 and (word & mask) == want)
        return same, sum(1 << i for i, word in enumerate(seen) if word == 0)

    def _look_rows(
        self, address: int, rows: int, columns: int, start: int, after: int, mask: int, high: int, wide: int
    ) -> int:
        turns = [turned for turned in range(columns + 1) if turned & columns == turned]
        for place in (row * wide + turned for row in range(rows) for turned in turns):
            column = (start + place) & columns
            at = address + _WORD * (place - place % wide + column)
            if place > after and self._load64(at, "relaxed") & mask:
                return place
        return -1

    def _count_up(self, address: int, count: int, shift: int, mask: int, keep: int) -> None:
        for at in range(address, address + _WORD * count, _WORD):
            old = self._load64(at, "relaxed")
            self._store64(at, ((((old >> shift) + 1) & mask) << shift) | (old & keep), "relaxed")

    def _before(self, sem: str) -> None:
        """The reads of a copy are complete before a release."""
        if sem in ("release", "acq_rel"):
            self.finish_copies()

    def finish_copies(self) -> None:
        """Read the words of copies that the current task has not read yet: before its bytes are looked at."""
        if self.current is not None and self.current.late:
            self._read_late(self.current)

    def forget_copies(self) -> None:
        """The bytes that the current task has copied are not looked at any more: their memory may go."""
        if self.current is not None:
            self.current.late = []

    def _read_late(self, task: Task) -> None:
        late, task.late = task.late, []
        for dst, src in late:
            self.point(LOAD, src)
            private_word(dst).value = self.memory.load(task, src, "relaxed")

    def _checksum_bytes(self, address: int, nbytes: int, first: int) -> int:
        assert nbytes % _WORD == 0, "tasks have objects of whole words"
        words = (self._load64(address + at, "relaxed") for at in range(0, nbytes, _WORD))
        return signed(sum(mixed(word, first + place) for place, word in enumerate(words)) & _MASK)

    def _copy_bytes(self, dst: int, src: int, nbytes: int) -> None:
        reads = src >= SHARED and dst in PRIVATE and self.current is not None and self.memory.name == "weak"
        late = reads and self.decide_late()
        for at in range(0, nbytes, _WORD):
            if late and self.current is not None:
                self.current.late.append((dst + at, src + at))
            else:
                self._store64(dst + at, self._load64(src + at, "relaxed"), "relaxed")

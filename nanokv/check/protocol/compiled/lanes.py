"""What the 32 lanes of a task see of simulated memory: the memory that compiled code has under a simulation.

PTX gives each thread a view of its own, and so does this memory. `bar.sync` joins the views of the lanes, a shuffle
does not: an acquire by lane 0 is worth something for the others only behind a barrier, and a release by lane 0
publishes what others stored only behind one. Lanes that load one address by one instruction get one value, as on
hardware (`device/memory/triton.py`). Each word is one access, and so a scheduling point.

Late words. A load whose values are only stored again (`copies`) into private memory may be satisfied as late as the
next release of its lane, or of any lane behind a barrier. Until then its values are tokens, which the store recognizes.

Addresses below SHARED are memory of this process, which no other task knows.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.ptx import Access, HostMemory, Memory, Unsupported, Warp
from nanokv.device.ptx.memory_opcodes import is_global
from nanokv.device.ptx.operands import Address, Group, Instruction, NegatedRegister, Operand, Pair, Register
from nanokv.device.ptx.parse import parse
from nanokv.device.sim.memory import SHARED, View, join, signed
from nanokv.device.sim.simulation import LOAD, MODIFY, STORE, Simulation, Task, private_word

# --- which loads of a program are those of copies: what they load is only stored again --------
_WITHOUT_RESULT = ("st", "red", "bra", "bar", "barrier", "ret", "exit", "call", "trap", "fence")
_WEAK = {"relaxed", "acquire", "volatile"}  #: a load with none of these is weak, as those of `copy_bytes` are


@lru_cache(maxsize=256)
def copying_loads(ptx: str) -> frozenset[str]:
    """The weak loads of global memory whose registers only stores of global memory read, by `Instruction.about`."""
    code = parse(ptx).code
    computed = {register.index for i in code for register in _read(i)}
    return frozenset(
        i.about
        for i in code
        if i.opcode == "ld" and is_global(i) and not _WEAK & {*i.modifiers}
        if not computed & {register.index for register in _registers(i.operands[0])}
    )


def _read(i: Instruction) -> Iterator[Register]:
    """The registers that an instruction reads, except for the value that a store of global memory stores."""
    if i.guard is not None:
        yield i.guard[0]
    if i.opcode == "st" and is_global(i):
        yield from _registers(i.operands[0])
        return
    written = None if i.opcode in _WITHOUT_RESULT else i.operands[0] if i.operands else None
    for operand in i.operands:
        if operand is not written or isinstance(operand, Address):
            yield from _registers(operand)


def _registers(operand: Operand) -> Iterator[Register]:
    match operand:
        case Register():
            yield operand
        case NegatedRegister():
            yield operand.register
        case Address():
            yield from _registers(operand.base)
        case Group():
            for item in operand.items:
                yield from _registers(item)
        case Pair():
            yield from _registers(operand.first)
            yield from _registers(operand.second)


# --- readers of simulated memory ---------------------------------------------------------------
LANES = 32
_ALL = tuple(range(LANES))
_WORD = 8
_SPAN = 1 << 64
_FIRST_TOKEN = 0x7A3E_51C9 << 32  #: far from addresses, keys and payloads of small worlds

Array = npt.NDArray[Any]


class LaneReader:
    """A reader of simulated memory: some lanes, with a view that they share."""

    def __init__(self, view: View) -> None:
        self.view = view

    @property
    def behind(self) -> View:
        """Transfers see its stores in their order: what parts those of lanes is not followed so far."""
        return dict(self.view)

    @behind.setter
    def behind(self, view: View) -> None:
        pass


class LateWord(NamedTuple):
    """A word of a copy that is still to be read. `lane`: whose release it must not pass; None: any lane's."""

    to: int
    source: int
    lane: int | None


class Lanes:
    """The lanes of a warp that a task runs.

    Attributes:
        views: of each lane; lanes that know the same share one object.
        agree: all lanes share the view of the task.
        tokens: token -> the address that is to be read for it.
        late: words of copies that are still to be read.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.views = [task.view] * LANES
        self.agree = True
        self.tokens: dict[int, int] = {}
        self.late: list[LateWord] = []

    def view_of(self, lanes: Sequence[int]) -> View:
        """One view for some lanes together, which from now on is theirs and nobody else's."""
        views = self.views
        own = views[lanes[0]]
        if len(lanes) == (LANES if self.agree else sum(view is own for view in views)) and self._share(lanes):
            return own
        made = dict(own)
        for view in {id(views[lane]): views[lane] for lane in lanes}.values():
            if view is not own:
                join(made, view)
        for lane in lanes:
            views[lane] = made
        self.agree = False
        return made

    def _share(self, lanes: Sequence[int]) -> bool:
        own = self.views[lanes[0]]
        return self.agree or all(self.views[lane] is own for lane in lanes)

    def join(self) -> None:
        """A barrier: each lane knows what all know."""
        task = self.task
        if not self.agree:
            for view in {id(view): view for view in self.views}.values():
                join(task.view, view)
            self.views, self.agree = [task.view] * LANES, True
        if self.late:
            self.late = [word._replace(lane=None) for word in self.late]

    def groups(self, lanes: Sequence[int]) -> list[Sequence[int]]:
        """The lanes, those with one view together."""
        if self.agree:
            return [lanes]
        by: dict[int, list[int]] = {}
        for lane in lanes:
            by.setdefault(id(self.views[lane]), []).append(lane)
        return [*by.values()]


class LaneMemory(Memory):
    """The words of a simulation, and the memory of this process.

    Raises (accesses):
        MemoryFault: an address is outside of both.
        Unsupported: an access to shared words that the protocol does not make: not of 64 bits, or not of system scope.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._private = HostMemory()
        self._numbers = count(_FIRST_TOKEN)

    # a call begins and ends
    def start(self, warp: Warp) -> None:
        task = self._simulation.current
        assert task is not None
        warp.state = Lanes(task)

    def finish(self, warp: Warp) -> None:
        """The end of a kernel orders like a barrier."""
        lanes: Lanes = warp.state
        lanes.join()
        lanes.task.late += [(word.to, word.source) for word in lanes.late]

    def barrier(self, warps: Sequence[Warp], lanes: Array | None) -> None:
        if lanes is not None and not lanes.all():
            raise Unsupported("a barrier of some lanes")
        for warp in warps:
            warp.state.join()

    def fence(self, warp: Warp, access: Access, lanes: Array | None) -> None:
        raise Unsupported(f"a fence, which the vocabulary of the protocol does not have: {access.about}")

    # accesses
    def load(self, warp: Warp, access: Access, lanes: Array | None, addresses: Array) -> Array:
        where = addresses.tolist()
        if where[0] < SHARED:
            self._finish_written(warp.state, where)
            return self._private.load(warp, access, lanes, addresses)
        self._check(access, "relaxed", "volatile", "weak", "acquire")
        if self._is_late(warp, access):
            tokens = [next(self._numbers) for _ in where]
            warp.state.tokens.update(zip(tokens, where, strict=True))
            return np.array(tokens, np.uint64)
        if where.count(where[0]) == len(where):
            value = self._load(warp.state, access, where[0], _numbers(lanes))
            return np.full(len(where), value, np.uint64)
        places: dict[int, list[int]] = {}
        for lane, address in zip(_numbers(lanes), where, strict=True):
            places.setdefault(address, []).append(lane)
        found = {address: self._load(warp.state, access, address, here) for address, here in places.items()}
        return np.array([found[address] for address in where], np.uint64)

    def _load(self, lanes: Lanes, access: Access, address: int, here: Sequence[int]) -> int:
        """One word, for some lanes at once."""
        simulation = self._simulation
        simulation.point(LOAD, address)
        memory = simulation.memory
        groups = [here] if access.semantics == "acquire" else lanes.groups(here)
        if len(groups) == 1:
            sem = "acquire" if access.semantics == "acquire" else "relaxed"
            return memory.load(LaneReader(lanes.view_of(here)), address, sem) % _SPAN
        seen = max(lanes.views[group[0]].get(address, 0.0) for group in groups)
        together = LaneReader({address: seen} if seen else {})
        value = memory.load(together, address, "relaxed")
        for group in groups:  # what else they know stays theirs
            lanes.view_of(group).update(together.view)
        return value % _SPAN

    def store(self, warp: Warp, access: Access, lanes: Array | None, addresses: Array, values: Array) -> None:
        where, words = addresses.tolist(), values.tolist()
        state: Lanes = warp.state
        if where[0] < SHARED:
            self._private.store(warp, access, lanes, addresses, values)
            if state.tokens and access.size == _WORD:
                for lane, address, value in zip(_numbers(lanes), where, words, strict=True):
                    if value in state.tokens:
                        state.late.append(LateWord(address, state.tokens.pop(value), lane))
            return
        self._check(access, "relaxed", "volatile", "weak")
        simulation = self._simulation
        for lane, address, word in zip(_numbers(lanes), where, words, strict=True):
            value = self._read(state, state.tokens.pop(word), lane) if word in state.tokens else word
            simulation.point(STORE, address)
            simulation.memory.store(LaneReader(state.view_of([lane])), address, value, "relaxed")

    def atomic(self, warp: Warp, access: Access, lane: int, address: int, operands: Sequence[int]) -> int:
        if address < SHARED:
            return self._private.atomic(warp, access, lane, address, operands)
        self._check(access, "relaxed", "acquire", "release", "acq_rel")
        simulation, state, sem = self._simulation, warp.state, access.semantics
        if sem in ("release", "acq_rel"):
            simulation.finish_copies()  # of earlier calls
            self._finish_late(state, [word for word in state.late if word.lane in (None, lane)])
        simulation.point(MODIFY, address)
        memory, reader = simulation.memory, LaneReader(state.view_of([lane]))
        operation = access.operation.partition(".")[0]
        if operation == "cas":
            return memory.cas(reader, address, operands[0], operands[1], sem) % _SPAN
        if operation == "add":
            return memory.add(reader, address, operands[0], sem) % _SPAN
        if operation == "exch":
            return memory.exchange(reader, address, operands[0], sem) % _SPAN
        raise Unsupported(f"an atomic that the vocabulary does not have: {access.about}")

    def _check(self, access: Access, *semantics: str) -> None:
        if access.size != _WORD or access.semantics not in semantics:
            raise Unsupported(f"an access to shared words: {access.about}")
        if access.kind == "atomic" and access.scope != "sys":
            raise Unsupported(f"an atomic of scope {access.scope}, and other GPUs use this word: {access.about}")

    # late words
    def _is_late(self, warp: Warp, access: Access) -> bool:
        simulation = self._simulation
        if simulation.memory.name != "weak" or access.about not in copying_loads(warp.launch.program.ptx):
            return False
        return simulation.decide_late()

    def _finish_written(self, lanes: Lanes, addresses: list[int]) -> None:
        """Private words are about to be looked at."""
        wanted = {*addresses}
        if any(to in wanted for to, _ in lanes.task.late):
            self._simulation.finish_copies()
        self._finish_late(lanes, [word for word in lanes.late if word.to in wanted])

    def _finish_late(self, lanes: Lanes, words: list[LateWord]) -> None:
        for late in words:
            lanes.late.remove(late)
            private_word(late.to).value = signed(self._read(lanes, late.source, late.lane or 0))

    def _read(self, lanes: Lanes, address: int, lane: int) -> int:
        simulation = self._simulation
        simulation.point(LOAD, address)
        return simulation.memory.load(LaneReader(lanes.view_of([lane])), address, "relaxed")


def _numbers(lanes: Array | None) -> Sequence[int]:
    return _ALL if lanes is None else np.flatnonzero(lanes).tolist()

"""A warp: 32 lanes of a CTA, their registers, and where each of them is.

Lanes part at branches. Each lane then has a place of its own, the group of lanes in the lowest block goes on, and lanes
that meet are one group again: the layout of the compilers makes that the point where their paths join. A block with an
instruction for lanes together (shuffles, barriers, matrices) waits until all lanes that have not ended are there. If no
group can go on otherwise, the lowest one does, and the instruction itself says which lanes it wants.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanokv.device.emulation.errors import Divergence, MemoryFault, Misaligned, Trap, Unsupported
from nanokv.device.ptx.kinds import LANES, Array
from nanokv.device.ptx.lanes import ALL, LANE, bits_of
from nanokv.device.ptx.operands import Instruction
from nanokv.device.ptx.writer import EXIT

if TYPE_CHECKING:
    from nanokv.device.ptx.access import Access
    from nanokv.device.ptx.blocks import Block
    from nanokv.device.ptx.counting import Counter
    from nanokv.device.ptx.launch import Cta, Launch

_AXES = {"x": 0, "y": 1, "z": 2}


class Warp:
    """One warp of a launch.

    Attributes:
        number: within its CTA.
        done: all lanes have ended.
        waiting: the barrier at which it waits, or None.
        lanes: those that execute something now; None: all.
        pending: register -> what fills it, for loads that are late.
        copies: groups of asynchronous copies that were not waited for; the last is not committed.
        state: whatever the memory wants to keep of it.
    """

    def __init__(self, launch: "Launch", cta: "Cta", number: int) -> None:
        self.launch, self.cta, self.number = launch, cta, number
        self.block = launch.translation.entry
        self.places: Array | None = None  #: the block of each lane, if they are not together
        self.live = ALL  #: lanes that have not ended
        self.lanes: Array | None = None
        self.done = False
        self.waiting: int | None = None
        self.registers = list(launch.translation.poison)
        self.local = np.zeros((LANES, -(-launch.program.local_bytes // 16) * 16), np.uint8)
        self.carry = np.zeros(LANES, bool)
        self.copies: list[list[Callable[[], None]]] = [[]]
        self.pending: dict[int, Callable[[], None]] = {}
        self.counter: Counter | None = None
        self.state: Any = None
        self.about = ""
        self._specials: dict[str, Array] = {}

    # going on
    def run(self) -> None:
        """Go on to the end: for a CTA of one warp, on memory that lets others go on in the middle of an access."""
        with np.errstate(all="ignore"):
            while self.step():
                pass

    def step(self) -> bool:
        """Do one block; False at the end of all lanes."""
        if self.places is not None:
            return self._step_apart(self.places)
        translation = self.launch.translation
        block = translation.blocks[self.block]
        if block.splits and self.launch.splits():
            return self._part(block)
        self.lanes = None
        if self.counter is not None:
            self.counter.block(block, self, None)
        after = (block.functions[0] or translation.function(block, False))(self, self.registers, None)
        if type(after) is int:
            self.block = after
            if after != EXIT:
                return True
        return self._moved(ALL, after, np.full(LANES, block.number))

    def _part(self, block: "Block") -> bool:
        """Some lanes do a load, the others do it when other warps have run."""
        places = np.full(LANES, block.number)
        return self._apart(places, block, self.launch.some_lanes())

    def _step_apart(self, places: Array) -> bool:
        blocks, chosen = self.launch.translation.blocks, None
        for number in sorted(set(places[self.live].tolist())):
            group = self.live & (places == number)
            if not blocks[number].convergent or (group == self.live).all():
                chosen = blocks[number], group
                break
        if chosen is None:
            number = int(places[self.live].min())
            chosen = blocks[number], self.live & (places == number)
        return self._apart(places, *chosen)

    def _apart(self, places: Array, block: "Block", group: Array) -> bool:
        translation = self.launch.translation
        self.lanes = group
        if self.counter is not None:
            self.counter.block(block, self, group)
        after = (block.functions[1] or translation.function(block, True))(self, self.registers, group)
        return self._moved(group, after, places)

    def _moved(self, group: Array, after: Any, places: Array) -> bool:
        """Note where lanes go on: a block, (taken, target, other), or a block for each lane."""
        if isinstance(after, tuple):
            taken, target, other = after
            after = np.where(taken, target, other)
            self.launch.machine.divergences += 1
        places = np.where(group, after, places)
        live = self.live & (places != EXIT)
        self.live = ALL if live.all() else live
        if not live.any():
            return self._end()
        self.places = places
        if self.live is ALL and (places == places[0]).all():
            self.places, self.block = None, int(places[0])
        return True

    def _end(self) -> bool:
        self.settle(tuple(self.pending))
        self.done = True
        self.launch.memory.finish(self)
        return False

    # loads that are late
    def defer(self, registers: Sequence[int], finish: Callable[[], None]) -> None:
        """Registers that `finish` fills at their first use."""
        self.pending.update(dict.fromkeys(registers, finish))

    def settle(self, registers: Sequence[int] | None = None) -> None:
        """Fill registers whose loads are late; None: all of them."""
        for register in list(self.pending) if registers is None else registers:
            finish = self.pending.get(register)
            if finish is not None:
                self.pending = {key: value for key, value in self.pending.items() if value is not finish}
                finish()

    # what blocks call
    def special(self, name: str) -> Array:
        """A special register: %tid.x."""
        found = self._specials.get(name)
        if found is None:
            found = self._made_special(name[1:].split(".", maxsplit=1)[0], _AXES.get(name[-1], 0) if "." in name else 0)
            if "clock" not in name and "timer" not in name:
                self._specials[name] = found
        return found

    def _made_special(self, name: str, axis: int) -> Array:
        launch, program = self.launch, self.launch.program
        if name == "tid":
            return LANE + LANES * self.number if axis == 0 else np.zeros(LANES, int)
        if name.startswith("lanemask_"):
            one = np.int64(1) << LANE
            return {"eq": one, "le": 2 * one - 1, "lt": one - 1, "ge": -one, "gt": -2 * one}[name[9:]] & 0xFFFFFFFF
        values = {
            "ntid": program.threads if axis == 0 else 1,
            "ctaid": self.cta.place[axis],
            "nctaid": launch.grid[axis],
            "warpid": self.number,
            "nwarpid": -(-program.threads // LANES),
            "cluster_ctarank": 0,
            "cluster_ctaid": 0,
            "cluster_nctarank": 1,
            "cluster_nctaid": 1,
            "globaltimer": time.time_ns(),
            "globaltimer_lo": time.time_ns() & 0xFFFFFFFF,
            "clock": time.perf_counter_ns() & 0xFFFFFFFF,
            "clock64": time.perf_counter_ns(),
        }
        if name == "laneid":
            return LANE
        if name not in values:
            raise Unsupported(f"%{name}")
        return np.full(LANES, values[name])

    def arrive(self, lanes: Array | None, number: int, threads: int) -> None:
        """Wait at a barrier of the CTA."""
        here = ALL if lanes is None else lanes
        if (here != self.live).any():
            self.diverged(f"lanes {bits_of(here):#010x} are at the barrier, {bits_of(self.live):#010x} have not ended")
        self.cta.arrive(self, number, threads)

    def check_atomic(self, access: "Access", lanes: int) -> None:
        """What a machine may be asked to find in atomics."""
        machine = self.launch.machine
        if machine.one_lane_atomics and lanes > 1:
            self.found("an atomic by more than one lane", access.about)
        if machine.system_scope and access.scope != "sys":
            self.found(f"an atomic of scope {access.scope}", access.about)

    # what goes wrong
    def where(self) -> str:
        """The place of this warp as messages name it."""
        return f"CTA {self.cta.place}, warp {self.number}, {self.about}"

    def found(self, what: str, about: str) -> None:
        """Count something that should not be."""
        self.launch.machine.findings[what, self.launch.program.name, about] += 1

    def diverged(self, what: str) -> None:
        raise Divergence(f"{self.where()}: {what}")

    def misaligned(self, addresses: Array, width: int) -> None:
        raise Misaligned(f"{self.where()}: no multiples of {width}: {', '.join(hex(int(x)) for x in addresses)}")

    def faulted(self, what: str) -> None:
        raise MemoryFault(f"{self.where()}: {what}")

    def trap(self, lanes: Array | None, i: Instruction) -> None:
        """`trap`, if any lane does it."""
        if lanes is None or lanes.any():
            self.about = i.about
            raise Trap(f"{self.where()}")

    def failed(self, i: Instruction, lanes: Array | None, words: list[int]) -> None:
        """A device_assert: (message, file, line, function, size of a character)."""
        self.about = i.about
        if lanes is None or lanes.any():
            message, file = (self.launch.text(address) for address in words[:2])
            raise Trap(f"{self.where()}: device_assert failed: {message} ({file}:{words[2]})")

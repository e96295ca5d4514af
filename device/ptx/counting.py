"""What one warp costs: its instructions, its accesses, and the longest chain of accesses that wait for each other.

The chain. Each access to global memory has a depth: one more than the deepest access that it must wait for.
- Its address, its data and its guard come from registers, whose depth is that of the accesses that they come from, also
  by way of shuffles, of shared and local memory, and of parameters of functions.
- What follows a branch waits for what the branch looked at: a GPU issues in order.
- What follows an acquire or a fence waits for it; a release or a fence waits for all accesses before it. A fence itself
  adds nothing: it is no round trip of its own.
- A barrier makes all warps as deep as the deepest.
- Not counted: a value that another warp, or this one, passes on in global memory.
- A machine with a `price` counts what each instruction takes instead: its chain is an estimate of time.
The compiler behind PTX may move a use up to its load, and a GPU issues nothing behind a use that waits: so a real chain
can be longer. Registers have one depth for all lanes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.ptx.control import callee
from nanokv.device.ptx.kinds import Array, size_of
from nanokv.device.ptx.memory_opcodes import SEMANTICS, is_global, space_of
from nanokv.device.ptx.operands import (
    Address,
    Group,
    Immediate,
    Instruction,
    NegatedRegister,
    Operand,
    Pair,
    ParamVariable,
    Register,
)

if TYPE_CHECKING:
    from nanokv.device.ptx.blocks import Block
    from nanokv.device.ptx.program import Program
    from nanokv.device.ptx.warp import Warp

ORDERED = ("acquire", "release", "acq_rel", "sc")
_NO_RESULT = (
    "st",
    "red",
    "bra",
    "bar",
    "barrier",
    "fence",
    "membar",
    "cp",
    "stmatrix",
    "ret",
    "exit",
    "trap",
    "call",
    "results",
    "prefetch",
)


@dataclass
class WarpCounts:
    """Counts of one warp. An instruction counts once, for however many lanes; an access only if a lane makes it.

    Attributes:
        calls: of functions that are out of line.
        chain: the longest chain of accesses to global memory that wait for each other, or what it takes at a price.
    """

    instructions: int = 0
    loads: int = 0
    stores: int = 0
    relaxed_atomics: int = 0
    ordered_atomics: int = 0
    fences: int = 0
    shuffles: int = 0
    barriers: int = 0
    calls: int = 0
    chain: float = 0

    def most(self, other: "WarpCounts") -> "WarpCounts":
        """The larger of each."""
        return WarpCounts(*(max(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)))


def registers_in(operand: Operand) -> list[int]:
    """The registers that an operand names."""
    match operand:
        case Register():
            found = [operand.index]
        case NegatedRegister():
            found = [operand.register.index]
        case Group():
            found = [each for item in operand.items for each in registers_in(item)]
        case Pair():
            found = registers_in(operand.first) + registers_in(operand.second)
        case Address(ParamVariable() as variable):
            found = [place.index for place in variable.places.values()]
        case Address():
            found = registers_in(operand.base)
        case _:
            found = []
    return found


Price = Callable[
    [Instruction, int | None], float
]  #: of an instruction, and the address that it accesses in global memory


def one_per_access(i: Instruction, address: int | None) -> float:
    """The price of a chain whose length is counted."""
    return 0 if address is None else 1


class Counter:
    """Counts one warp, whose blocks are single instructions.

    Args:
        price: what an instruction takes once its operands are there.
    """

    def __init__(self, program: "Program", price: Price = one_per_access) -> None:
        self.program, self.price = program, price
        self.counts = WarpCounts()
        self.depth: dict[int, float] = {}  #: of registers
        self.control: float = 0  #: what everything waits for that follows
        self.deepest: float = 0  #: of all accesses so far
        self.carried: dict[tuple[str, int], float] = {}  #: depth of what stands in shared and local memory

    def block(self, block: "Block", warp: "Warp", lanes: Array | None) -> None:
        """An instruction is about to be executed by some lanes."""
        i = self.program.code[block.first]
        if i.opcode in ("call", "results"):
            self._copied(i)
        if i.opcode == "results":
            return
        self.counts.instructions += 1
        results, inputs = self._registers(i)
        active = self._active(i, warp, lanes)
        depth = max([self.control, *(self.depth.get(index, 0) for index in inputs)])
        if is_global(i) and active is not False:
            depth = self._access(i, warp, active, depth)
        else:
            depth += self.price(i, None)
        if i.opcode == "call":
            self.counts.calls += 1
        elif i.opcode == "shfl":
            self.counts.shuffles += 1
        elif i.opcode in ("bar", "barrier"):
            self.counts.barriers += 1
        elif i.opcode in ("bra", "ret", "exit") and i.guard is not None:
            self.control = depth
        elif i.opcode in ("ld", "st", "atom", "red") and space_of(i) in ("shared", "local") and active is not False:
            depth = self._carry(i, warp, active, depth)
        elif i.opcode in ("ldmatrix", "stmatrix"):
            self.carried["matrices", 0] = depth = max(depth, self.carried.get(("matrices", 0), 0))
        for index in results:
            partial = i.guard is not None or lanes is not None
            self.depth[index] = max(depth, self.depth.get(index, 0)) if partial else depth

    def _registers(self, i: Instruction) -> tuple[list[int], list[int]]:
        guard = [i.guard[0].index] if i.guard is not None else []
        operands = list(i.operands)
        if i.opcode in ("st", "ld") and "param" in i.modifiers:
            to, of = operands
            return registers_in(to), registers_in(of) + guard
        results = [] if i.opcode in _NO_RESULT else registers_in(operands.pop(0)) if operands else []
        return results, [index for operand in operands for index in registers_in(operand)] + guard

    @staticmethod
    def _active(i: Instruction, warp: "Warp", lanes: Array | None) -> "Array | bool | None":
        """The lanes that execute an instruction; None: all, False: none."""
        if i.guard is None:
            return lanes
        register, negated = i.guard
        made: Array = warp.registers[register.index] != negated
        made = made if lanes is None else made & lanes
        return made if made.any() else False

    def _access(self, i: Instruction, warp: "Warp", active: "Array | bool | None", depth: float) -> float:
        semantics = next((each for each in i.modifiers if each in SEMANTICS), "")
        fence, ordered = i.opcode in ("fence", "membar"), semantics in ORDERED
        counts = self.counts
        if fence or semantics in ("release", "acq_rel", "sc"):
            depth = max(depth, self.deepest)
        if fence:
            counts.fences += 1
            self.control = depth + self.price(i, None)
            return self.control
        if i.opcode in ("atom", "red"):
            counts.ordered_atomics += ordered
            counts.relaxed_atomics += not ordered
        elif i.opcode == "st":
            counts.stores += 1
        else:
            counts.loads += 1
        depth += self.price(i, int(self._addresses(i, warp, active)[0]))
        self.deepest = max(self.deepest, depth)
        counts.chain = max(counts.chain, depth)
        if semantics in ("acquire", "acq_rel", "sc"):
            self.control = depth
        return depth

    @staticmethod
    def _addresses(i: Instruction, warp: "Warp", active: "Array | bool | None") -> list[int]:
        """What an instruction accesses, by lane."""
        address = i.operands[0 if i.opcode in ("st", "red") else 1]
        assert isinstance(address, Address)
        if isinstance(address.base, Immediate):
            return [int(address.base.value) + address.offset]
        assert isinstance(address.base, Register)
        values = warp.registers[address.base.index]
        values = values[active] if isinstance(active, np.ndarray) else values
        return [value + address.offset for value in values.tolist()]

    def _carry(self, i: Instruction, warp: "Warp", active: "Array | bool | None", depth: float) -> float:
        """Depth by way of shared and local memory, by address."""
        places = set(self._addresses(i, warp, active))
        value = i.operands[0 if i.opcode == "ld" else -1]
        width = size_of(i.modifiers[-1]) * (len(value.items) if isinstance(value, Group) else 1)
        keys = [(space_of(i), place // 4) for start in places for place in range(start, start + width, min(width, 4))]
        if i.opcode != "st":
            depth = max([depth, *(self.carried.get(key, 0) for key in keys)])
        if i.opcode != "ld":
            self.carried.update(dict.fromkeys(keys, depth))
        return depth

    def _copied(self, i: Instruction) -> None:
        """Arguments and results of a call."""
        name, arguments, results = callee(self.program, i)
        function = self.program.functions.get(name)
        if function is None:
            return
        pairs = (
            zip(function.params, arguments, strict=True)
            if i.opcode == "call"
            else zip(results, function.results, strict=True)
        )
        for to, of in pairs:
            for offset, place in to.places.items():
                self.depth[place.index] = self.depth.get(of.places[offset].index, 0)

    @staticmethod
    def joined(counters: "Sequence[Counter]") -> None:
        """A barrier of the CTA: what it shares is known to all of its warps, and they go on together."""
        if len(counters) > 1:
            control = max(each.control for each in counters)
            carried: dict[tuple[str, int], float] = {}
            for each in counters:
                for key, depth in each.carried.items():
                    if key[0] != "local":
                        carried[key] = max(depth, carried.get(key, 0))
            for each in counters:
                each.control = control
                each.carried.update(carried)

"""Memory operations that were issued and are not complete, and the counters that s_waitcnt compares.

VMCNT counts loads, stores, atomics and writebacks of caches; they complete in order. LGKMCNT counts accesses to LDS,
which complete in order, and loads into scalar registers, which complete in any order: among these only a wait for zero
says something. Until a wait covers a load, its registers hold nothing: who reads or writes one gets `NotWaited`.

A load takes its value, and a store becomes visible, at some moment between the issue and the wait that covers it.
Operations of one wave on one address stay in order. Sources: AMD, "CDNA3 Instruction Set Architecture";
LLVM, "User Guide for AMDGPU Backend", memory model gfx942.
"""

from collections import Counter
from collections.abc import Callable

from nanokv.device.emulation.errors import NotWaited


def nothing() -> None:
    """An operation without this part."""


class Operation:
    """One memory operation.

    Args:
        perform: accesses memory.
        retire: writes the registers.
        targets: the numbers of the registers.
        span: (first, end) of the addresses; None: comes after all that was issued before it.
    """

    __slots__ = ("done", "in_order", "perform", "retire", "span", "targets")

    def __init__(
        self,
        perform: Callable[[], None],
        retire: Callable[[], None] = nothing,
        targets: range = range(0),
        span: tuple[int, int] | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        self.perform, self.retire, self.targets, self.span = perform, retire, targets, span
        self.in_order, self.done = in_order, False

    def do(self) -> None:
        """Access memory, once."""
        if not self.done:
            self.done = True
            self.perform()

    def follows(self, older: "Operation") -> bool:
        """Whether an older operation must access memory first."""
        if self.span is None:
            return True
        if older.span is None:  # only a wait holds anything back until a writeback is complete
            return False
        return self.span[0] < older.span[1] and older.span[0] < self.span[1]


class OperationQueue:
    """The operations of one wave that a counter counts, oldest first."""

    def __init__(self, counter: str) -> None:
        self.counter = counter
        self.operations: list[Operation] = []
        self.registers: Counter[int] = Counter()

    def issue(self, operation: Operation) -> None:
        """Count an operation; it accesses memory later."""
        while self.operations and self.operations[0].done and not self.operations[0].targets:
            del self.operations[0]  # a store that is done; what a wait covers are all but the newest
        self.operations.append(operation)
        self.registers.update(operation.targets)

    def advance(self, operation: Operation) -> None:
        """Let one operation access memory, after those that it follows."""
        for older in self.operations:
            if older is operation:
                break
            if not older.done and operation.follows(older):
                self.advance(older)
        operation.do()

    def wait(self, count: int) -> None:
        """Complete operations until at most `count` may be outstanding."""
        if len(self.operations) <= count:
            return
        excess = len(self.operations) - count
        if count:
            excess -= sum(not each.in_order for each in self.operations)
        finished = [each for each in self.operations if each.in_order or not count][: max(excess, 0)]
        for operation in finished:
            self.advance(operation)
            operation.retire()
            self.operations.remove(operation)
            self.registers.subtract(operation.targets)
        self.registers = +self.registers

    def refuse(self, used: frozenset[int]) -> None:
        """Raise if an instruction uses registers that an operation still writes.

        Raises:
            NotWaited: it does.
        """
        if not used.isdisjoint(self.registers):
            numbers = sorted(used & self.registers.keys())
            names = ", ".join(f"v{n - 256}" if n >= 256 else f"s{n}" for n in numbers)
            raise NotWaited(f"{names}: an outstanding load writes it, and no s_waitcnt {self.counter} came between")

"""Accesses to memory that other warps may see, and the interface of that memory.

A machine has one `Memory`. `HostMemory` and `TensorMemory` are the memory of this process; a simulator of weak memory
can stand in for them. Each access is told apart by its instruction (`Access`) and by the warp and lanes that make it.
Shared memory of a CTA and local memory of a lane are not seen here: they belong to the machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanokv.device.ptx.kinds import Array

if TYPE_CHECKING:
    from nanokv.device.ptx.program import Program
    from nanokv.device.ptx.warp import Warp


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """What an instruction says about its access; one object per instruction.

    Attributes:
        kind: "load", "store", "atomic" or "fence".
        size: bytes of an element.
        count: elements per lane, next to each other; memory is called for each.
        semantics: "weak", "volatile", "relaxed", "acquire", "release", "acq_rel" or "sc".
        scope: "cta", "cluster", "gpu", "sys", or "" for a weak access.
        operation: of an atomic, with its kind: "add.u64", "cas.b32".
        about: the instruction and its place, for messages.
    """

    kind: str
    size: int
    count: int
    semantics: str
    scope: str
    operation: str
    about: str


class Late(ABC):
    """What a load may return in place of values: they are read later.

    The machine calls `values` before the first use of the register, and before the register is written again. The
    memory calls `Warp.settle` where the model allows no more delay: before a release or a fence of the warp, before an
    acquire's effect, before an access of the same lanes to the same address, and at barriers.
    """

    @abstractmethod
    def values(self) -> Array:
        """The values, one per lane that the load was made for. Called once."""


class LaunchListener:
    """What a memory is told of a launch besides its accesses; by default it does nothing with it.

    `lanes`: see `Memory`.
    """

    def start(self, warp: "Warp") -> None:
        """A warp begins."""

    def finish(self, warp: "Warp") -> None:
        """A warp has ended."""

    def fence(self, warp: "Warp", access: Access, lanes: Array | None) -> None:
        """A fence of some lanes."""

    def barrier(self, warps: "Sequence[Warp]", lanes: Array | None) -> None:
        """A barrier is complete: of the warps of a CTA, or (bar.warp.sync) of lanes of one warp.

        What a lane has seen before it is seen by all of them after it.
        """


class Memory(LaunchListener, ABC):
    """What a memory does.

    Attributes:
        late: loads may return a `Late`.

    `lanes` is a mask of the LANES lanes of the warp, or None for all. Addresses and values are arrays with one element
    for each lane that takes part, in the order of lanes: addresses of 64 bits, values as unsigned words of
    `access.size` bytes. Every address is a multiple of the access' width.
    """

    late = False

    def bind(self, program: "Program", arguments: Sequence[tuple[str, Any]]) -> list[int]:
        """Begin a launch: the addresses that the kernel is given for its tensors.

        Args:
            arguments: (name, tensor), a tensor being what has `data_ptr`.
        """
        return [int(tensor.data_ptr()) for _, tensor in arguments]

    @abstractmethod
    def load(self, warp: "Warp", access: Access, lanes: Array | None, addresses: Array) -> "Array | Late":
        """One element for each lane."""

    @abstractmethod
    def store(self, warp: "Warp", access: Access, lanes: Array | None, addresses: Array, values: Array) -> None:
        """Store one element for each lane; of lanes with the same address any may be last."""

    @abstractmethod
    def atomic(self, warp: "Warp", access: Access, lane: int, address: int, operands: Sequence[int]) -> int:
        """A read-modify-write of one lane; returns what was there. `operands`: cas has (expected, new)."""

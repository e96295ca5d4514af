"""A link between hosts (`nanokv.cluster.links`) whose peers lie in simulated memory, for production code.

On the link an address of simulated memory has another number, `afar`: a LOOK word has room for 48 bits of it.
"""

from nanokv.cluster.links.base import State, Words
from nanokv.device.sim.memory import SHARED
from nanokv.device.sim.simulation import Simulation
from nanokv.device.sim.transfers import TransferInMemory

_AFAR = 1 << 48


def afar(address: int) -> int:
    """The address of simulated memory, as other hosts know it."""
    return address - SHARED + _AFAR


class SimulatedTransfer:
    """A read under way. `fails`: it moves its first words only."""

    def __init__(self, copy: TransferInMemory, step: int, *, fails: bool) -> None:
        self._copy, self._step, self._fails = copy, step, fails
        self._failed = False

    def state(self) -> State:
        """Moves some words; with the last one the transfer is DONE."""
        if self.moves():
            return State.MOVING
        return State.FAILED if self._failed else State.DONE

    def moves(self) -> bool:
        """Move some words. False if the transfer has ended."""
        if not self._failed:
            self._copy.move(self._step)
            self._failed = self._fails and not self._copy.ended
        return not self._failed and not self._copy.ended

    def release(self) -> None:
        """Nothing is held."""


class SimulatedLink:
    """One process's end.

    Args:
        looks: at a transfer, until it is DONE.
        may_fail: whether transfers may fail that take several looks.

    Attributes:
        moved: words that all transfers have moved, or will move.
        transfers: all that were begun.
    """

    name = "simulated"

    def __init__(self, simulation: Simulation, looks: int = 1, *, may_fail: bool = False) -> None:
        self._simulation, self._looks, self._may_fail = simulation, looks, may_fail
        self.moved = 0
        self.transfers: list[SimulatedTransfer] = []

    def card(self) -> bytes:
        """All processes of a simulation know each other."""
        return b"card"

    def register(self, address: int, nbytes: int, device: int | None = None, *, shared: bool = True) -> None:
        """All memory is registered."""

    def deregister(self, address: int) -> None:
        """Leave the memory as it is: it stays registered."""

    def connect(self, card: bytes) -> int:
        """There is one simulated memory."""
        return 0

    def disconnect(self, peer: int) -> None:
        """Nothing ends by it."""

    def read(self, peer: int, here: Words, there: Words, nbytes: Words) -> SimulatedTransfer:
        """Begin a torn copy. `there`: as `afar` says."""
        sources = (there + (SHARED - _AFAR)).tolist()
        copy = TransferInMemory(self._simulation, list(zip(here.tolist(), sources, nbytes.tolist(), strict=True)))
        self.moved += copy.count
        fails = self._may_fail and self._simulation.decide(2) == 1
        self.transfers.append(SimulatedTransfer(copy, -(-copy.count // self._looks), fails=fails))
        return self.transfers[-1]

    def close(self) -> None:
        """Nothing is held."""

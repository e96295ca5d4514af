"""The generation of an identity in a world: what connectors mix into their keys, so that a reset is one number."""

from nanokv.device.machines.base import Machine
from nanokv.device.segment.layout import PLACES_OF_GENERATIONS
from nanokv.keys.identity import Identity, digest_of


class Generations:
    """The words of one identity, in all segments of a world (`device.protocol.generations`).

    Layouts make no difference: the slices of one model have one generation.
    """

    def __init__(self, machine: Machine, rank: int, identity: Identity | None, namespace: str) -> None:
        self._machine, self._rank = machine, rank
        whole = identity.with_layout(None) if identity is not None else None
        self.place = digest_of(whole, namespace).tag % PLACES_OF_GENERATIONS
        self.raise_to(self._highest())  # this rank's segment may be younger than those of others

    def now(self) -> int:
        """The generation, as this rank's segment has it."""
        return self._machine.generation(self._rank, self.place)

    def raise_to(self, number: int) -> None:
        """Make it at least `number`, in all segments."""
        raise_to(self._machine, self.place, number)

    def advance(self) -> int:
        """Begin a new one, in all segments; returns it. No other call, of any rank, returns the same."""
        number = self._machine.raise_generation(0, self.place, self._highest(), 1)
        self.raise_to(number)
        return number

    def _highest(self) -> int:
        ranks = range(self._machine.geometry.world_size)
        return max(self._machine.generation(rank, self.place) for rank in ranks)


def raise_to(machine: Machine, place: int, number: int) -> int:
    """Make one place of generations at least `number` in all segments. Returns the lowest that is there then."""
    ranks = range(machine.geometry.world_size)
    return min(machine.raise_generation(rank, place, number, 0) for rank in ranks)

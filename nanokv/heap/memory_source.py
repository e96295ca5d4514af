"""The contract of a library of symmetric memory, as `symmetric` uses it."""

from pathlib import Path
from typing import NamedTuple, Protocol

import torch


class Meeting(NamedTuple):
    """Where the ranks of a world meet inside a library, and which one this is."""

    rank: int
    world_size: int
    folder: Path  #: a directory that all ranks may make; removed with the world
    timeout: float  #: seconds left for attaching


class Blocks(NamedTuple):
    """One block of memory per rank, as this process sees them."""

    mine: torch.Tensor  #: this rank's: uint8, one dimension
    bases: list[int]  #: the address of every rank's block; 0 where this process cannot reach it
    heap_offset: int  #: where `mine` begins in the library's heap, bytes
    owner: object  #: keeps the blocks of the others mapped


class MemorySource(Protocol):
    """A library of symmetric memory. Its calls from `begin` on are collective: every rank makes them, in this order.

    Each raises HeapUnavailable, with the library's own message, if the library refuses.
    """

    kind: str

    def check(self) -> None:
        """Find the library and the device, before this rank shows itself to the others."""
        ...

    def begin(self, meeting: Meeting) -> None:
        """Bring the ranks together."""
        ...

    def allocate(self, nbytes: int) -> None:
        """Make this rank's block of at least `nbytes`."""
        ...

    def exchange(self) -> Blocks:
        """Learn the addresses of the other ranks' blocks."""
        ...

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...

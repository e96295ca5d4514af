"""The contract of a library of symmetric memory, as `symmetric` uses it."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch

from nanokv.heap.process_group import MeetingPoint


class Blocks(NamedTuple):
    """One block of memory per rank, as this process sees them."""

    mine: torch.Tensor  #: this rank's: uint8, one dimension
    bases: list[int]  #: the address of every rank's block; 0 where this process cannot reach it
    heap_offset: int  #: where `mine` begins in the library's heap, bytes
    owner: object  #: keeps the blocks of the others mapped


class MemorySource(ABC):
    """A library of symmetric memory. Its calls from `begin` on are collective: every rank makes them, in this order.

    Each raises HeapUnavailable, with the library's own message, if the library refuses.

    Args:
        group: the caller's process group, or None.
        library: the library's module, or one that takes its place.
    """

    kind: str

    def __init__(self, group: Any, library: Any) -> None:
        self._given = group
        self._library = library

    @abstractmethod
    def begin(self, meeting: MeetingPoint) -> None:
        """Bring the ranks together."""

    @abstractmethod
    def allocate(self, nbytes: int) -> None:
        """Make this rank's block of at least `nbytes`."""

    @abstractmethod
    def exchange(self) -> Blocks:
        """Learn the addresses of the other ranks' blocks."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, and give the memory back. Idempotent."""

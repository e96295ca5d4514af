"""The contract of a heap provider: the segments of all ranks, mapped here, and which ranks are alive."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Bell
from nanokv.device.segment.geometry import Geometry

if TYPE_CHECKING:
    import torch

    from nanokv.heap.backing import Backing


class Liveness(NamedTuple):
    """The words by which native code tells which ranks live, as `Heap.peer_closed` does."""

    closed: list[int]  #: by rank: the address of its HeapCtl.closed
    stays: list[bool]  #: by rank: it does not end without setting that word, as seen from this process
    locks: int  #: the address of the descriptor (int32) of the file whose byte `rank` a rank locks while it is there
    trust: int  #: ns for which a look at a lock is believed
    memory: tuple[object, ...]  #: what keeps these addresses valid


class Heap(Protocol):
    """One rank's view of a symmetric heap.

    A provider maps every rank's segment into this process and knows which ranks are alive. It knows nothing of objects.
    Segments stay mapped until `close`; a tensor or an array that views one must not be used after it.
    Methods may be called from any thread.
    """

    kind: str  #: "local", "shm", ...
    name: str  #: the world's name; for messages
    rank: int
    world_size: int
    geometry: Geometry
    incarnation: int  #: how many times this rank has attached to this world, from 1
    recovered: bool  #: True if this rank came back to a segment that an earlier incarnation left
    device: "torch.device"  #: of this rank's segment
    bases: list[int]  #: the address of every rank's segment in this process
    elastic: bool  #: ranks come and go while the world runs
    backing: "Backing | None"  #: how far segments have memory, where it comes as it is used

    def segment(self, rank: int) -> "torch.Tensor":
        """A rank's segment: uint8, one dimension, `geometry.segment_bytes`. Never an inference tensor.

        Raises:
            HeapUnavailable: this heap is closed.
        """
        ...

    def host_view(self, rank: int) -> npt.NDArray[np.uint8] | None:
        """A rank's segment as a numpy array, or None if segments are not in host memory.

        Raises:
            HeapUnavailable: this heap is closed.
        """
        ...

    def alive(self, rank: int, incarnation: int) -> bool:
        """False only if it is certain that this incarnation of the rank has ended, or if the rank cannot exist.

        Args:
            rank: or the number of a guest, behind the ranks.
            incarnation: all of it, or only its PRODUCER bits.
        """
        ...

    def peer_closed(self, rank: int) -> bool:
        """True if the rank closed its segment, or ended, and no later incarnation has attached."""
        ...

    def liveness(self) -> Liveness:
        """What native code asks instead of `peer_closed`. Only where segments are in host memory."""
        ...

    def barrier(self, timeout: float) -> None:
        """Wait until every rank has come here; in an elastic world, every rank that is there. By one thread per rank.

        Raises:
            PeerLost: a rank that has not come has ended, or `timeout` seconds have passed; it names the ranks. The
                call then has no effect, and may be made again.
            HeapUnavailable: this heap is closed.
        """
        ...

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        """Sleep until `wake` is called for this rank, at most `timeout` seconds; not at all if `ann_head` != seen."""
        ...

    def wait_for_any_hint(self, timeout: float, still: Callable[[], bool]) -> None:
        """Sleep until `wake` is called for any rank, at most `timeout` seconds. From any thread.

        Args:
            still: called once a `wake` would end the sleep; if it is False, the call returns at once.
        """
        ...

    def world_bell(self) -> Bell | None:
        """What native code sleeps on instead of `wait_for_any_hint`, or None where it cannot.

        If it can, the memory that `bases` and the bell name stays mapped while this object and its views live.
        """
        ...

    def wake(self, rank: int) -> None:
        """Wake the poller of a rank, and the ranks that wait for any hint."""
        ...

    def close(self) -> None:
        """Leave the world: mark the segment closed and let go of it. Idempotent."""
        ...


class HasGuests(Heap, Protocol):
    """A heap whose segments lie in a file that guests may map (`guest`), if its geometry has such."""

    def file_for_guest(self) -> int:
        """A descriptor of the file, which shares no lock with others. It is the caller's, who gives it to a guest.

        Raises:
            HeapUnavailable: this heap is closed, or the file cannot be opened.
        """
        ...


class ElasticHeap(Heap, Protocol):
    """A heap whose ranks come and go (`elastic`)."""

    def mark_leaving(self, leaving: bool) -> None:
        """Let every rank see this one as closed, though it lives; or take that back."""
        ...

    def make_absent(self, rank: int) -> None:
        """Note that no page of a rank's segment is in any place, and give its memory back to the system.

        The caller has taken all pages (`coalesce.join_free_extents`). It is that rank, which closes next, or has
        adopted the segment.
        """
        ...

    def begin_adoption(self, rank: int) -> None:
        """Act for a rank that has ended, so that it does not come back meanwhile, until `end_adoption`.

        Raises:
            HeapUnavailable: the rank is there, or is absent already, or another rank acts for it.
        """
        ...

    def end_adoption(self, rank: int) -> None:
        """Let the rank come back."""
        ...

"""The heap of several processes on one host, with segments on the symmetric heap of ROCm Iris.

Each heap has an iris context of its own, with nothing else on it: with some versions of iris a later allocation maps
the memory of all peers anew, elsewhere, and the addresses that a running kernel holds would be void.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.memory_source import Blocks, MemorySource
from nanokv.heap.symmetric import SymmetricHeap
from nanokv.heap.world_spec import WorldSpec

_SLACK = 2 << 20  #: bytes beside the segment, for the context's own data on its heap, and for rounding


class Iris(MemorySource):
    """ROCm Iris. Arguments: see `attach`."""

    kind = "iris"

    def __init__(self, group: Any, library: Any) -> None:
        super().__init__(group, library)
        self._context: Any = None
        self._blocks: Blocks | None = None

    def allocate(self, nbytes: int) -> None:
        """Make a context, then the block. Both are collective; allocating only with newer versions."""
        try:
            self._context = self._library.iris(nbytes + _SLACK)
            self._check_ranks()
            tensor, table = _allocate(self._context, nbytes)
        except (RuntimeError, MemoryError, OSError, ImportError, AssertionError) as error:
            raise HeapUnavailable(f"iris: no symmetric heap of {nbytes + _SLACK} bytes: {error}") from None
        heap = [int(base) for base in table.tolist()]
        # the table is that of the whole heap, or only of this tensor: the offset is 0 then
        offset = tensor.data_ptr() - heap[self._meeting.rank]
        bases = [base + offset if base else 0 for base in heap]
        self._blocks = Blocks(tensor, bases, offset, self._context)

    def exchange(self) -> Blocks:
        assert self._blocks is not None  # iris has exchanged addresses already
        return self._blocks

    def close(self) -> None:
        self._blocks = self._context = None
        super().close()

    def _check_ranks(self) -> None:
        rank, world_size = self._context.get_rank(), self._context.get_num_ranks()
        mine = self._meeting
        if (rank, world_size) != (mine.rank, mine.world_size):
            raise InvalidArgument(f"rank {mine.rank} of {mine.world_size} is rank {rank} of {world_size} for iris")


def _allocate(context: Any, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of bytes and the table of every rank's base: the one place where versions of iris differ.

    Older: `zeros` on the heap, and the heap's bases, which an allocation may change.
    Newer: `allocate_symmetric`, which gives the tensor and its table, plain or as `peer_bases` of an address map.
    """
    newer = getattr(context, "allocate_symmetric", None)
    if newer is None:
        tensor = context.zeros(nbytes, dtype=torch.uint8)
        return tensor, context.get_heap_bases()
    tensor, table = newer(nbytes, dtype=torch.uint8)
    return tensor, getattr(table, "peer_bases", table)


def attach(spec: WorldSpec, rank: int, *, group: Any = None, library: Any = None) -> SymmetricHeap:
    """Join the world `spec.name` with every other rank; see `SymmetricHeap.attach`.

    Args:
        group: as for torch_symm. iris itself takes torch's default group (its first versions: MPI).
        library: used instead of the module `iris`.
    """
    return SymmetricHeap.attach(Iris(group, library or _imported()), spec, rank)


def why_not() -> str | None:
    """None if worlds of iris should work here, else what is missing."""
    if find_spec("iris") is None:
        return "the package iris is not installed; ROCm's is installed from its repository, ROCm/iris"
    if not torch.cuda.is_available():
        return "torch finds no CUDA or ROCm device"
    return None


def _imported() -> Any:
    try:
        library = import_module("iris")
    except ImportError as error:
        raise HeapUnavailable(f"iris: {error}; it is installed from its repository, ROCm/iris") from None
    if not callable(getattr(library, "iris", None)):
        raise HeapUnavailable("iris: the package iris that is installed is another one than ROCm's: no iris.iris")
    return library

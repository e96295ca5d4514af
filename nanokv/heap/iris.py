"""The heap of several processes on one host, with segments on the symmetric heap of ROCm Iris.

Each heap has an iris context of its own, with nothing else on it: with some versions of iris a later allocation maps
the memory of all peers anew, elsewhere, and the addresses that a running kernel holds would be void.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from nanokv.device.segment.geometry import Geometry
from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.process_group import Group
from nanokv.heap.symmetric import Memory, Place, SymmetricHeap

_SLACK = 2 << 20  #: bytes beside our segment, for what a context keeps on its heap itself, and for rounding


class Iris:
    """The `Source` over iris. Arguments: see `attach`."""

    kind = "iris"

    def __init__(self, group: Any, library: Any) -> None:
        self._given = group
        self._library = library
        self._group: Group | None = None
        self._context: Any = None
        self._memory: Memory | None = None

    def check(self) -> None:
        if self._library is None:
            self._library = _imported()

    def begin(self, place: Place) -> None:
        self._group = Group(self._given, place.rank, place.world_size, place.folder, place.timeout)
        self._place = place

    def allocate(self, nbytes: int) -> None:
        """Collective: making a context is, and allocating on newer ones."""
        try:
            self._context = self._library.iris(nbytes + _SLACK)
            self._check_ranks()
            tensor, table = _allocate(self._context, nbytes)
        except (RuntimeError, MemoryError, OSError, ImportError, AssertionError) as error:
            raise HeapUnavailable(f"iris: no symmetric heap of {nbytes + _SLACK} bytes: {error}") from None
        heap = [int(base) for base in table.tolist()]
        # the table is of the whole heap or of this tensor alone, where the offset is 0
        offset = tensor.data_ptr() - heap[self._place.rank]
        bases = [base + offset if base else 0 for base in heap]
        self._memory = Memory(tensor, bases, offset, self._context)

    def exchange(self) -> Memory:
        assert self._memory is not None  # iris has exchanged addresses already
        return self._memory

    def close(self) -> None:
        self._memory = self._context = None
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _check_ranks(self) -> None:
        said = self._context.get_rank(), self._context.get_num_ranks()
        if said != (self._place.rank, self._place.world_size):
            raise InvalidArgument(
                f"rank {self._place.rank} of {self._place.world_size} is rank {said[0]} of {said[1]} for iris"
            )


def _allocate(context: Any, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of bytes and the table of every rank's base: the one place where versions of iris differ.

    Older: `zeros` on the heap, and the heap's bases, which may be other ones after an allocation.
    Newer: `allocate_symmetric`, which gives the tensor and its own table, alone or as `peer_bases` of a map.
    """
    newer = getattr(context, "allocate_symmetric", None)
    if newer is None:
        tensor = context.zeros(nbytes, dtype=torch.uint8)
        return tensor, context.get_heap_bases()
    tensor, table = newer(nbytes, dtype=torch.uint8)
    return tensor, getattr(table, "peer_bases", table)


def attach(
    name: str,
    geometry: Geometry,
    rank: int,
    *,
    mode: str,
    may_evict: bool,
    water: tuple[int, int],
    timeout: float,
    group: Any = None,
    library: Any = None,
) -> SymmetricHeap:
    """Join the world `name` with every other rank; see `SymmetricHeap.attach` for the rest.

    Args:
        group: as for torch_symm. iris itself takes torch's default group (its first versions: MPI).
        library: what to use in place of the module `iris`.
    """
    return SymmetricHeap.attach(
        Iris(group, library), name, geometry, rank, mode=mode, may_evict=may_evict, water=water, timeout=timeout
    )


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

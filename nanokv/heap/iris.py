"""The heap of several processes on one host, with segments on the symmetric heap of ROCm Iris.

Each heap has an iris context of its own, with nothing else on it: with some versions of iris a later allocation maps
the memory of all peers anew, elsewhere, and the addresses that a running kernel holds would be void.

A context takes the GPU `rank % number of GPUs` and makes it the current one (`Iris.__init__`). It refers to itself, so
only a garbage collection frees its heap.
"""

import gc
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.gpu_peer_access import check_links
from nanokv.heap.memory_source import Blocks, MemorySource
from nanokv.heap.process_group import Group, MeetingPoint
from nanokv.heap.symmetric import SymmetricHeap
from nanokv.heap.world_spec import WorldSpec

#: by which iris refuses: HIP's errors, missing libraries, an unknown allocator or interface
_REFUSALS = (RuntimeError, MemoryError, OSError, ImportError, AssertionError, ValueError, AttributeError, TypeError)
_SLACK = 2 << 20  #: bytes beside the segment, for the context's own data on its heap, and for rounding


class Iris(MemorySource):
    """ROCm Iris. Arguments: see `attach`."""

    kind = "iris"

    def __init__(self, group: Any, library: Any) -> None:
        super().__init__(group, library)
        self._group: Group | None = None
        self._context: Any = None
        self._blocks: Blocks | None = None

    def begin(self, meeting: MeetingPoint) -> None:
        self._meeting = meeting
        self._group = Group(self._given, meeting)

    def allocate(self, nbytes: int) -> None:
        """Make a context, then the block. Both are collective; allocating only with newer versions."""
        before = torch.cuda.current_device() if torch.cuda.is_available() else None
        try:
            self._context = self._library.iris(nbytes + _SLACK)
            self._check_ranks()
            tensor, table = _allocate(self._context, nbytes)
        except _REFUSALS as error:
            raise HeapUnavailable(_explained(nbytes + _SLACK, error)) from None
        if tensor.device.type == "cuda":
            _check_gpu(self._meeting.rank, before, tensor.device)
            self._check_peers(tensor)
        heap = [int(base) for base in table.tolist()]
        # the table is that of the whole heap, or only of this tensor: the offset is 0 then
        offset = tensor.data_ptr() - heap[self._meeting.rank]
        bases = [base + offset if base else 0 for base in heap]
        self._blocks = Blocks(tensor, bases, offset, self._context)

    def exchange(self) -> Blocks:
        assert self._blocks is not None  # iris has exchanged addresses already
        return self._blocks

    def close(self) -> None:
        had_context = self._context is not None
        self._blocks = self._context = None
        if had_context:
            gc.collect()
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _check_ranks(self) -> None:
        rank, world_size = self._context.get_rank(), self._context.get_num_ranks()
        mine = self._meeting
        if (rank, world_size) != (mine.rank, mine.world_size):
            raise InvalidArgument(f"rank {mine.rank} of {mine.world_size} is rank {rank} of {world_size} for iris")

    def _check_peers(self, tensor: torch.Tensor) -> None:
        assert self._group is not None
        uuids: list[Any] = [None] * self._meeting.world_size
        mine = str(torch.cuda.get_device_properties(tensor.device).uuid)
        torch.distributed.all_gather_object(uuids, mine, self._group.group)
        check_links(f"iris: rank {self._meeting.rank}", tensor.device, uuids, tensor)


def _check_gpu(rank: int, before: int | None, taken: torch.device) -> None:
    """Refuse a context on another GPU than the one that was current, which is made current again."""
    if before is None or taken.index == before:
        return
    torch.cuda.set_device(before)
    raise HeapUnavailable(
        f"iris: rank {rank} was given GPU {taken.index} (iris takes the rank modulo the number of GPUs), and GPU "
        f"{before} is the current one: call torch.cuda.set_device({taken.index}) first"
    )


def _explained(nbytes: int, error: BaseException) -> str:
    message = f"iris: no symmetric heap of {nbytes} bytes: {type(error).__name__}: {error}"
    if "scalar type" in str(error).lower() and torch.distributed.get_backend() == "gloo":
        message += "; this version gathers addresses as uint64, which gloo cannot: make torch's default group with nccl"
    if isinstance(error, AttributeError | ValueError | TypeError):
        message += "; this version of iris has another interface than those of 2025 and 2026 that are known"
    return message


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
    except RuntimeError as error:  # iris of 2025 replaces torch's allocator, which torch refuses once it was used
        remedy = "import iris before anything uses the GPU" if "swap" in str(error) else "is it built and installed?"
        raise HeapUnavailable(f"iris cannot be imported: {error}; {remedy}") from None
    except (OSError, AttributeError) as error:  # libamdhip64.so is missing, or not the one that it needs
        raise HeapUnavailable(
            f"iris cannot be imported: {error}; are ROCm's libraries there (LD_LIBRARY_PATH)?"
        ) from None
    if not callable(getattr(library, "iris", None)):
        raise HeapUnavailable("iris: the package iris that is installed is another one than ROCm's: no iris.iris")
    return library

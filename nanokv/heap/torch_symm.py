"""The heap of several processes on one host, with segments that torch's symmetric memory makes and maps.

Only the memory and the table of addresses (`buffer_ptrs`) of torch.distributed._symmetric_memory are used. Its
barriers and signal pads collide between groups (pytorch#192581).
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.memory_source import Blocks, MemorySource
from nanokv.heap.process_group import environment_variable
from nanokv.heap.segment_in_tensor import on_device
from nanokv.heap.symmetric import SymmetricHeap
from nanokv.heap.world_spec import WorldSpec

MODULE = "torch.distributed._symmetric_memory"
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"  #: torch's own variable: several ranks on one GPU


class TorchSymm(MemorySource):
    """torch's symmetric memory. Arguments: see `attach`."""

    kind = "torch_symm"

    def __init__(self, group: Any, library: Any, device: torch.device, *, allow_overlapping: bool) -> None:
        super().__init__(group, library)
        self._device = device
        self._variable = "1" if allow_overlapping else None
        self._tensor: torch.Tensor | None = None

    def allocate(self, nbytes: int) -> None:
        """Collective, if torch's backend is NVSHMEM: its first allocation waits for all ranks (pytorch#195501)."""
        device = self._device
        try:
            with on_device(device):
                self._tensor = self._library.empty(nbytes, dtype=torch.uint8, device=device)
        except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is a RuntimeError
            raise HeapUnavailable(f"torch_symm: no symmetric memory of {nbytes} bytes on {device}: {error}") from None

    def exchange(self) -> Blocks:
        assert self._group is not None and self._tensor is not None
        try:
            with on_device(self._tensor.device), environment_variable(OVERLAPPING, self._variable):
                handle = self._library.rendezvous(self._tensor, self._group.group)
        except RuntimeError as error:
            raise HeapUnavailable(_explained(str(error))) from None
        if handle is None:
            raise HeapUnavailable("torch_symm: torch's rendezvous gave no handle for this process group")
        buffers = [int(pointer) for pointer in handle.buffer_ptrs]
        # a tensor may begin at an offset of its buffer, the same on all ranks
        offset = self._tensor.data_ptr() - buffers[self._meeting.rank]
        bases = [buffer + offset if buffer else 0 for buffer in buffers]
        return Blocks(self._tensor, bases, offset, (handle, self._tensor))

    def close(self) -> None:
        self._tensor = None
        super().close()


def attach(
    spec: WorldSpec,
    rank: int,
    *,
    group: Any = None,
    device: str | torch.device | None = None,
    allow_overlapping: bool = False,
    library: Any = None,
) -> SymmetricHeap:
    """Join the world `spec.name` with every other rank; see `SymmetricHeap.attach`.

    Args:
        group: a process group with the ranks of this world. Default: torch's default group, else one is made.
        device: of this rank's segment. Default: the current GPU (`torch.cuda.set_device`).
        allow_overlapping: let several ranks have their segments on one GPU: torch's own variable OVERLAPPING is set
            while torch brings the ranks together.
        library: used instead of torch.distributed._symmetric_memory.
    """
    source = TorchSymm(group, library or _imported(), _checked(device), allow_overlapping=allow_overlapping)
    return SymmetricHeap.attach(source, spec, rank)


def why_not() -> str | None:
    """None if worlds of torch's symmetric memory should work here, else what is missing."""
    if not torch.distributed.is_available():
        return f"torch {torch.__version__} is built without torch.distributed; install a build with it"
    if find_spec(MODULE) is None:
        return f"torch {torch.__version__} has no {MODULE}; torch 2.6 or later has"
    if not torch.cuda.is_available():
        return "torch finds no CUDA or ROCm device"
    return None


def _imported() -> Any:
    try:
        return import_module(MODULE)
    except ImportError as error:
        raise HeapUnavailable(f"torch_symm: torch {torch.__version__} has no {MODULE}: {error}") from None


def _checked(device: str | torch.device | None) -> torch.device:
    if device is not None:
        try:
            return torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(f"device: {error}") from None
    if not torch.cuda.is_available():
        raise HeapUnavailable("torch_symm: torch finds no CUDA or ROCm device")
    return torch.device("cuda", torch.cuda.current_device())


def _explained(message: str) -> str:
    if "overlapping" in message:
        return (
            "torch_symm: several ranks have their segments on one GPU. Give each a GPU (torch.cuda.set_device), or say "
            f"allow_overlapping=True. torch says: {message}"
        )
    return f"torch_symm: torch's rendezvous failed: {message}"

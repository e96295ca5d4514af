"""The heap of several processes on one host, with segments that torch's symmetric memory makes and maps.

Only the memory and the table of addresses (`buffer_ptrs`) are used, of torch's backend CUDA. Its barriers and signal
pads collide between groups (pytorch#192581).

torch keeps state per process, which would let a rank that has left a world meet itself in the next one. So each world
has a group of its own (`symmetric_group`), and memory that no pool holds: `symm_mem.empty` takes it from a pool that
lives as long as the process (since torch 2.11), where a block keeps the addresses of the peers that it once had.
`_SymmetricMemory.empty_strided_p2p` gives a new block, which goes with its tensor.
"""

import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.gpu_peer_access import check_links
from nanokv.heap.memory_source import Blocks, MemorySource
from nanokv.heap.process_group import MeetingPoint, check_numbering, environment_variable
from nanokv.heap.segment_in_tensor import on_device
from nanokv.heap.symmetric import SymmetricHeap
from nanokv.heap.world_spec import WorldSpec

if TYPE_CHECKING:
    from nanokv.heap.symmetric_group import SymmetricGroup

MODULE = "torch.distributed._symmetric_memory"
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"  #: torch's own variable: several ranks on one GPU
#: torch's own variable. NanoKV uses no multicast, and to set it up fails on GPUs that have it without an NVSwitch
NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
FIRST_TORCH = (2, 11)  #: whose rules are the ones above


class TorchSymm(MemorySource):
    """torch's symmetric memory. Arguments: see `attach`."""

    kind = "torch_symm"

    def __init__(self, group: Any, library: Any, device: torch.device, *, allow_overlapping: bool) -> None:
        super().__init__(group, library)
        self._device = device
        self._variable = "1" if allow_overlapping else None
        self._group: SymmetricGroup | None = None
        self._tensor: torch.Tensor | None = None

    def begin(self, meeting: MeetingPoint) -> None:
        self._meeting = meeting
        if self._given is not None:
            check_numbering(self._given, meeting)
        from nanokv.heap.symmetric_group import SymmetricGroup  # not importable where torch has no distributed

        self._group = SymmetricGroup(meeting)

    def allocate(self, nbytes: int) -> None:
        device, memory = self._device, self._library._SymmetricMemory
        backend = memory.get_backend(device)
        if backend not in ("CUDA", None):  # None: allocating says why
            raise HeapUnavailable(
                f"torch_symm: torch's backend for symmetric memory is {backend}, whose memory a rank cannot leave and "
                "join again; unset TORCH_SYMMMEM, or choose CUDA (torch.distributed._symmetric_memory.set_backend)"
            )
        try:
            with on_device(device):
                self._tensor = memory.empty_strided_p2p((nbytes,), (1,), torch.uint8, device)
        except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is a RuntimeError
            raise HeapUnavailable(f"torch_symm: no symmetric memory of {nbytes} bytes on {device}: {error}") from None

    def exchange(self) -> Blocks:
        assert self._group is not None and self._tensor is not None
        device = self._tensor.device
        try:
            overlapping = environment_variable(OVERLAPPING, self._variable)
            with on_device(device), overlapping, environment_variable(NO_MULTICAST, "1"):
                if device.type == "cuda":
                    uuids = self._group.all_of("gpu", str(torch.cuda.get_device_properties(device).uuid))
                    check_links(f"torch_symm: rank {self._meeting.rank}", device, uuids, self._tensor)
                handle = self._library._SymmetricMemory.rendezvous(self._tensor, self._group.name)
        except RuntimeError as error:
            raise HeapUnavailable(_explained(str(error))) from None
        if handle is None:
            raise HeapUnavailable("torch_symm: torch's rendezvous gave no handle for this tensor")
        buffers = [int(pointer) for pointer in handle.buffer_ptrs]
        # a tensor may begin at an offset of its buffer, the same on all ranks
        offset = self._tensor.data_ptr() - buffers[self._meeting.rank]
        bases = [buffer + offset if buffer else 0 for buffer in buffers]
        return Blocks(self._tensor, bases, offset, (handle, self._tensor))

    def close(self) -> None:
        self._tensor = None
        group, self._group = self._group, None
        if group is not None:
            group.close()


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
        group: a process group, which must number the ranks as this world does. It is only compared: the ranks meet by
            a store of their own.
        device: of this rank's segment. Default: the current GPU (`torch.cuda.set_device`).
        allow_overlapping: let several ranks have their segments on one GPU: torch's own variable OVERLAPPING is set
            while torch brings the ranks together.
        library: used instead of torch.distributed._symmetric_memory.

    Raises:
        HeapUnavailable: also: a link between two GPUs has no native atomics.
    """
    source = TorchSymm(group, library or _imported(), _checked(device), allow_overlapping=allow_overlapping)
    return SymmetricHeap.attach(source, spec, rank)


def why_not() -> str | None:
    """None if worlds of torch's symmetric memory should work here, else what is missing."""
    if not torch.distributed.is_available():
        return f"torch {torch.__version__} is built without torch.distributed; install a build with it"
    if _is_too_old(torch.__version__) or find_spec(MODULE) is None:
        return f"torch {torch.__version__} is too old: {_FIRST} or later is needed"
    if not torch.cuda.is_available():
        return "torch finds no CUDA or ROCm device"
    return None


_FIRST = ".".join(map(str, FIRST_TORCH))


def _is_too_old(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < FIRST_TORCH


def _imported() -> Any:
    if _is_too_old(torch.__version__):
        raise HeapUnavailable(f"torch_symm: torch {torch.__version__} is too old: {_FIRST} or later is needed")
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

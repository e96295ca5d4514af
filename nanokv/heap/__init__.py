"""Where symmetric memory comes from: one module per provider, one contract (`base.Heap`).

Each provider's module has `attach(spec, rank, **options)` and `why_not()`:

    local       virtual ranks in one process, on CPU or GPUs
    shm         processes on one host, segments in one shared file
    torch_symm  processes, segments on GPUs, made by torch's symmetric memory
    iris        processes, segments on AMD GPUs, made by ROCm Iris

Every provider uses
    base                the contract of a heap
    world_spec          the world that a rank joins or makes: geometry, mode, timeout, ...
    futex               sleep on a word of a segment, wake a poller
Host memory: local, shm
    mapping             mmap, as numpy and torch; faulting in ahead of use
GPU memory: local, torch_symm, iris
    segment_in_tensor   initialise and close a segment that lies in a tensor
    gpu_peer_access     which GPUs reach each other's memory (local)
Processes: shm, torch_symm, iris
    world_file          the file by which ranks meet: opening, header, locks, mapping
    world_file_layout   its name and its bytes
    locks               one lock per rank, which the kernel drops with the process
    world_entry         how a rank enters and leaves a world
    live_ranks          which ranks are there; barriers
    shm_tools           list, inspect and remove worlds from outside (shm)
Libraries of symmetric memory: torch_symm, iris
    memory_source       the contract of such a library
    symmetric           the heap over it
    process_group       the group of torch.distributed by which it brings ranks together
    mapped_tensor       a peer's memory as a tensor
"""

from importlib import import_module
from typing import Any, Literal, get_args

from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap
from nanokv.heap.world_spec import WorldSpec

__all__ = ["Heap", "HeapKind", "KINDS", "WorldSpec", "available", "open_heap"]

HeapKind = Literal["local", "shm", "torch_symm", "iris"]
KINDS: tuple[HeapKind, ...] = get_args(HeapKind)


def open_heap(kind: str, spec: WorldSpec, rank: int, **options: Any) -> Heap:
    """Join the world `spec` as `rank`, or make it, with a provider. `options`: of its `attach`.

    Raises:
        InvalidArgument: no such provider. Others: as the provider's `attach`.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"kind must be one of {KINDS}, not {kind!r}")
    heap: Heap = import_module(f"nanokv.heap.{kind}").attach(spec, rank, **options)
    return heap


def available() -> dict[str, str | None]:
    """For each provider None if it should work here, else what is missing and how to get it."""
    found: dict[str, str | None] = {kind: import_module(f"nanokv.heap.{kind}").why_not() for kind in KINDS}
    for kind in ("torch_symm", "iris"):
        found[kind] = found[kind] or found["shm"]  # their ranks meet by a file in the folder that shm uses
    return found

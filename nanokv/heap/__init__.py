"""Where symmetric memory comes from: one module per provider, one contract (`base.Heap`).

A provider has `attach(spec, rank, **options)` and `why_not()`:

    local               virtual ranks in one process, on a CPU or on GPUs
    shm                 processes on one host, segments in one shared file
    torch_symm          processes, segments on GPUs, made by torch's symmetric memory
    iris                processes, segments on AMD GPUs, made by ROCm Iris

They use:

    base, world_spec    the contract of a heap; the world that a rank asks for
    guest               segments of another process, as one maps them that is no rank (local)
    futex               how pollers and waiting ranks sleep on a word, and are woken
    mapping             segments in host memory (local, shm)
    backing             memory of a lazy segment, reserved before it is written; and
    ahead               faulted in shortly before it is used (shm)
    segment_in_tensor   segments in tensors (all except shm)
    gpu_peer_access     access of GPUs to each other's memory, and atomics on it
    gpu_driver          questions to the GPU's driver that torch does not ask; fine-grained memory of AMD
    process_heap        ranks that are processes (all except local): liveness, barriers
    world_entry         how such a rank enters and leaves its world, by
    world_file          one file, with its names and records in world_file_layout and one of the `locks` per rank
    shm_tools           worlds of shm from outside: list, inspect, remove
    symmetric           segments in memory of a library (torch_symm, iris)
    memory_source       the contract of such a library
    symmetric_group     how the ranks meet for torch's symmetric memory; a process_group, for iris
    mapped_tensor       a peer's memory as a tensor
    probe               whether a provider gives memory on this machine
"""

from importlib import import_module
from inspect import signature
from typing import Any, Literal, get_args

from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap
from nanokv.heap.world_spec import WorldSpec

__all__ = ["Heap", "HeapKind", "KINDS", "WorldSpec", "available", "open_heap"]

HeapKind = Literal["local", "shm", "torch_symm", "iris"]
KINDS: tuple[HeapKind, ...] = get_args(HeapKind)


def open_heap(kind: str, spec: WorldSpec, rank: int, /, **options: Any) -> Heap:
    """Join the world `spec` as `rank`, or make it, with a provider. `options`: of its `attach`.

    Raises:
        InvalidArgument: no such provider, or it has no such option. Others: as the provider's `attach`.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"kind must be one of {KINDS}, not {kind!r}")
    attach = import_module(f"nanokv.heap.{kind}").attach
    try:
        signature(attach).bind(spec, rank, **options)
    except TypeError as error:
        raise InvalidArgument(f"heap_options of heap={kind!r}: {error}") from None
    heap: Heap = attach(spec, rank, **options)
    return heap


def available() -> dict[str, str | None]:
    """Per provider None if it should work here, else the reason why not, and the remedy."""
    found: dict[str, str | None] = {kind: import_module(f"nanokv.heap.{kind}").why_not() for kind in KINDS}
    for kind in ("torch_symm", "iris"):
        found[kind] = found[kind] or found["shm"]  # their ranks meet by a file in the folder that shm uses
    return found

"""The protocol, its kernels, and the machines that run them.

Of the rest of the project only `nanokv.errors` is imported here.

The rooms, in reading order. A room imports only rooms above it; its `__init__` lists its files.

    memory     operations on shared words: the vocabulary, for GPUs and CPUs
    segment    the bytes of a segment, and how a rank finds them
    protocol   the operations of a rank on a segment, in Triton: put, get, remove, evict, reclaim, ...
    native     functions that only a host in native code runs
    fabric     a reader on another host: it sees the owner's memory only by transfers, in rounds
    wire       puts, gets and questions between processes over sockets
    kernels    the Triton kernels that call the protocol
    machines   run the protocol for a host: compiled for a CPU, or launched as kernels
    sim        the simulated machine: every interleaving, weak memory, kills

Before all rooms, `sources` takes a digest of what is compiled for a CPU.

Two public faces for users' kernels stand on top:

    library    the device functions that a kernel may call, under names that stay, with checked arguments
    remote     loads, stores and atomics on other ranks' memory, with the signatures of ROCm Iris

two for authors of any kernel, on what both need (`emulation`):

    emulation  memory, floats and Triton's driver of a GPU that is not there
    ptx        a machine that runs compiled Triton kernels without a GPU
    gcn        the same for the machine code of AMD GPUs

and two classes for hosts that launch: `Batch`, a table of requests in device memory, and `Request`, one of its rows.
"""

from typing import TYPE_CHECKING, Any

if __name__ != "nanokv.device":
    raise ImportError("import nanokv.device: the bare name `device` would be a second copy of it")

import nanokv.device.sources  # noqa: F401 - before all others: see there

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch
    from nanokv.device.machines.records import Request

__all__ = ["Batch", "Request"]

_HOMES = {"Batch": "nanokv.device.machines.batch", "Request": "nanokv.device.machines.records"}


def __getattr__(name: str) -> Any:
    """Import a name on its first use: `Batch` brings torch and the kernels."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nanokv.device' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

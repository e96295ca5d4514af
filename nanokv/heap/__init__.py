"""Where symmetric memory comes from: one file a provider, one contract (`base.Heap`).

local       virtual ranks in one process            mapping, futex, peers
shm         processes on one host                   membership, roster, world_file, locks, shm_tools
torch_symm  processes, a GPU each or shared         symmetric, process_group, foreign; and those of shm
iris        processes, an AMD GPU each              the same
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap

__all__ = ["Heap", "KINDS", "available", "open_heap"]

KINDS = ("local", "shm", "torch_symm", "iris")


def open_heap(kind: str, *args: Any, **options: Any) -> Heap:
    """One rank's heap of a provider.

    Args:
        kind: "local": the rest is a `LocalWorld` and a rank. "shm": as `ShmHeap.attach` takes it. "torch_symm", "iris":
            as `attach` in the module of that name. The last three begin with (name, geometry, rank).

    Raises:
        InvalidArgument: no such provider.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"kind must be one of {KINDS}, not {kind!r}")
    module = import_module(f"nanokv.heap.{kind}")
    attach: Callable[..., Heap] = (
        module.LocalWorld.heap if kind == "local" else module.ShmHeap.attach if kind == "shm" else module.attach
    )
    return attach(*args, **options)


def available() -> dict[str, str | None]:
    """For each provider None if it should work here, else what is missing and how to get it."""
    found: dict[str, str | None] = {kind: import_module(f"nanokv.heap.{kind}").why_not() for kind in KINDS}
    for kind in ("torch_symm", "iris"):
        found[kind] = found[kind] or found["shm"]  # their ranks meet by a file where shm has its own
    return found

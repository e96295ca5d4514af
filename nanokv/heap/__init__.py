"""Where symmetric memory comes from: one file a provider, one contract (`base.Heap`).

local       virtual ranks in one process            mapping, futex
shm         processes on one host                   membership, world_file, locks, shm_tools
"""

from importlib.util import find_spec
from typing import Any

from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap

__all__ = ["Heap", "available", "open_heap"]

_NOT_YET = "not yet built in this version"


def open_heap(kind: str, *args: Any, **options: Any) -> Heap:
    """One rank's heap of a provider: "shm" takes what `ShmHeap.attach` takes. A `LocalWorld` makes its heaps itself.

    Raises:
        InvalidArgument: no such provider.
    """
    if kind != "shm":
        raise InvalidArgument(f"kind must be 'shm', not {kind!r}; LocalWorld makes local heaps")
    from nanokv.heap.shm import ShmHeap

    return ShmHeap.attach(*args, **options)


def available() -> dict[str, str | None]:
    """For each provider None if it works here, else why not."""
    from nanokv.heap.shm import why_not

    return {"local": None, "shm": why_not(), "torch_symm": _torch_symm(), "iris": _iris()}


def _torch_symm() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"{_NOT_YET}; and torch finds no CUDA or ROCm device"
    if find_spec("torch.distributed._symmetric_memory") is None:
        return f"{_NOT_YET}; and torch {torch.__version__} has no symmetric memory"
    return _NOT_YET


def _iris() -> str:
    return _NOT_YET if find_spec("iris") is not None else f"{_NOT_YET}; and the package iris is not installed"

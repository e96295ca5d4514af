"""The first bytes of a segment that lies in a tensor, and the GPU that the tensor may be on."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.segment.layout import ACTIVITY, CLOSED, HEAP_CTL


def initialise(segment: torch.Tensor, ctl: npt.NDArray[Any], incarnations: Sequence[int]) -> None:
    """Write the control block and the activity table into a segment of zeros.

    Args:
        ctl: HeapCtl, an array of one (`Geometry.control_block`).
        incarnations: how many times each rank has attached: once, or never.
    """
    ctl["epoch"] = 1
    activity = np.zeros(len(incarnations), ACTIVITY.dtype)
    activity["incarnation"] = incarnations
    first = np.concatenate([ctl.view(np.uint8), activity.view(np.uint8)])
    segment[: first.size].copy_(torch.from_numpy(first))


def mark_closed(segment: torch.Tensor) -> None:
    """Set the `closed` word of a segment."""
    store(segment, HEAP_CTL.offsets["closed"], HEAP_CTL.dtype["closed"], CLOSED)


def store(segment: torch.Tensor, at: int, dtype: np.dtype[Any], value: int) -> None:
    """Write one number at an offset of a segment, by the host."""
    segment[at : at + dtype.itemsize].copy_(torch.from_numpy(np.array([value], dtype).view(np.uint8)))


def control_of(segment: torch.Tensor) -> npt.NDArray[Any]:
    """A copy of a segment's HeapCtl, an array of one."""
    return np.frombuffer(segment[: HEAP_CTL.size].cpu().numpy().tobytes(), HEAP_CTL.dtype)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """The context in which a GPU is the current one; nothing for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def finish_work(device: torch.device) -> None:
    """Wait until all work launched on a GPU has ended; nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

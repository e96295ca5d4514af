"""The first bytes of a segment that lies in a tensor, and the GPU that the tensor may be on."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.segment.layout import ACTIVITY, HEAP_CTL


def initialise(segment: torch.Tensor, ctl: npt.NDArray[Any], world_size: int) -> None:
    """Write the control block and the activity table into a segment of zeros: each rank has attached once.

    Args:
        ctl: HeapCtl, an array of one (`Geometry.control_block`).
    """
    ctl["epoch"] = 1
    activity = np.zeros(world_size, ACTIVITY.dtype)
    activity["incarnation"] = 1
    first = np.concatenate([ctl.view(np.uint8), activity.view(np.uint8)])
    segment[: first.size].copy_(torch.from_numpy(first))


def mark_closed(segment: torch.Tensor) -> None:
    """Set the `closed` word of a segment."""
    at, dtype = HEAP_CTL.offsets["closed"], HEAP_CTL.dtype["closed"]
    segment[at : at + dtype.itemsize].view(torch.int32).fill_(1)


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

"""Access of the GPUs of this process to each other's memory: whether it is possible, and how to get it."""

from collections.abc import Callable, Sequence
from itertools import permutations

import torch


def without_access(
    devices: Sequence[torch.device], can_access: Callable[[torch.device, torch.device], bool]
) -> tuple[torch.device, torch.device] | None:
    """The first pair of different devices of which one cannot reach the other's memory, or None.

    Args:
        can_access: whether the first device can reach the second's memory; `torch.cuda.can_device_access_peer`.
    """
    gpus = list(dict.fromkeys(device for device in devices if device.type == "cuda"))
    return next(((one, other) for one, other in permutations(gpus, 2) if not can_access(one, other)), None)


def enable_access(devices: Sequence[torch.device]) -> None:
    """Let kernels on each GPU reach the memory of the others.

    The driver gives access only on request, and torch requests it at its first copy between two devices: so make one in
    each direction. Without it the first remote store of a kernel would be a fault.
    """
    gpus = list(dict.fromkeys(device for device in devices if device.type == "cuda"))
    for one, other in permutations(gpus, 2):
        torch.zeros(1, dtype=torch.uint8, device=one).to(other)
        torch.cuda.synchronize(other)

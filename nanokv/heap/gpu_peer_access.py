"""Access of GPUs to each other's memory: whether it is possible, whether atomics work over it, and how to get it.

The protocol needs more than loads and stores: compare-and-swap and addition on words of another GPU, atomic for all.

    NVIDIA  only over links with native atomics (NVLink): over PCIe, increments are lost
    AMD     only in fine-grained memory: elsewhere atomics of system scope are those of device scope
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import permutations

import torch

from nanokv.errors import HeapUnavailable
from nanokv.heap import gpu_driver

Pair = tuple[torch.device, torch.device]
Ask = Callable[[torch.device, torch.device], bool]


def without_access(devices: Sequence[torch.device], can_access: Ask) -> Pair | None:
    """The first pair of different devices of which one cannot reach the other's memory, or None.

    Args:
        can_access: whether the first device can reach the second's memory; `torch.cuda.can_device_access_peer`. Or
            another question about two devices: `gpu_driver.has_native_atomics`.
    """
    gpus = list(dict.fromkeys(device for device in devices if device.type == "cuda"))
    return next(((one, other) for one, other in permutations(gpus, 2) if not can_access(one, other)), None)


def check_pairs(who: str, devices: Sequence[torch.device]) -> None:
    """Refuse GPUs of this process of which one cannot reach another's memory, or not by atomics.

    Raises:
        HeapUnavailable: names `who`, the pair, and the remedy.
    """
    pair = without_access(devices, torch.cuda.can_device_access_peer)
    if pair is not None:
        raise HeapUnavailable(f"{who}: {pair[0]} cannot access the memory of {pair[1]}: take GPUs with peer access")
    if gpu_driver.is_amd():
        return
    try:
        pair = without_access(devices, gpu_driver.has_native_atomics)
    except RuntimeError as error:
        raise HeapUnavailable(f"{who}: whether the GPUs' links have native atomics cannot be told: {error}") from None
    if pair is not None:
        raise HeapUnavailable(
            f"{who}: the link from {pair[0]} to {pair[1]} has no native atomics: increments would be lost; take GPUs "
            "that NVLink connects, or put all ranks on one GPU"
        )


def check_links(who: str, mine: torch.device, uuids: Sequence[str], memory: torch.Tensor) -> None:
    """Check the GPU and the memory of a rank whose peers are processes with GPUs of their own.

    Args:
        uuids: of every rank's GPU, by rank (`torch.cuda.get_device_properties(...).uuid`).
        memory: this rank's segment, as a library allocated it.

    Raises:
        HeapUnavailable: as `check_pairs`.

    Warns:
        RuntimeWarning: it cannot be told whether atomics work between two GPUs, or on AMD they are known not to be
            guaranteed in this memory.
    """
    if len(set(uuids)) == 1:
        return
    if gpu_driver.is_amd():
        _check_grain(who, memory)
        return
    here = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    hidden = [uuid for uuid in dict.fromkeys(uuids) if uuid not in here]
    if hidden:
        warnings.warn(
            f"{who}: whether links to the GPUs {hidden} have native atomics cannot be told: CUDA_VISIBLE_DEVICES hides "
            "them; without (PCIe) the cache would be corrupted",
            RuntimeWarning,
            stacklevel=2,
        )
    others = [torch.device("cuda", here[uuid]) for uuid in uuids if uuid in here]
    check_pairs(who, [mine, *others])


def _check_grain(who: str, memory: torch.Tensor) -> None:
    try:
        fine, why = gpu_driver.is_fine_grained(memory.data_ptr(), memory.nbytes), "is coarse-grained"
    except RuntimeError as error:
        fine, why = False, f"may be coarse-grained ({error})"
    if not fine:
        warnings.warn(
            f"{who}: the memory {why}: HIP does not guarantee atomics between GPUs there. local_world with several "
            "devices allocates fine-grained memory",
            RuntimeWarning,
            stacklevel=3,
        )


def enable_access(devices: Sequence[torch.device]) -> None:
    """Let kernels on each GPU reach the memory of the others.

    The driver gives access only on request, and torch requests it at its first copy between two devices: so make one in
    each direction. Without it the first remote store of a kernel would be a fault.
    """
    gpus = list(dict.fromkeys(device for device in devices if device.type == "cuda"))
    for one, other in permutations(gpus, 2):
        torch.zeros(1, dtype=torch.uint8, device=one).to(other)
        torch.cuda.synchronize(other)

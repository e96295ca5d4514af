"""Lets unmodified `kernel[grid](...)` calls run on the machine, on tensors of the CPU.

    with as_triton_driver(Machine(seed=1)):
        my_kernel[(8,)](tensor, 5, num_warps=1)

Triton specialises the arguments and compiles as it does for a GPU, and keeps what it has compiled; only the launch is
replaced.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver

from nanokv.device.gcn.machine import LDS_BYTES, Machine
from nanokv.device.gcn.registers import LANES

DEVICE = 1 << 17  #: Triton keeps kernels per device, and a real one has a small number
_one_at_a_time = threading.RLock()
_machines: list[Machine] = []  # the last one is in use: what Triton keeps must not hold a machine


class _Utils:
    """What Triton asks of a device."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": LDS_BYTES, "multiprocessor_count": 304, "warpSize": LANES, "max_num_regs": 512}

    def unload_module(self, *_: Any) -> None:
        """Nothing is loaded."""


class Driver:
    """Stands in for Triton's driver of AMD's GPUs."""

    def __init__(self, architecture: str) -> None:
        self._target = GPUTarget("hip", architecture, LANES)
        self.utils = _Utils()

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return DEVICE

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


def _init_handles(self: Any) -> None:
    """Stands in for CompiledKernel._init_handles: the "module" is the text."""
    if self.module is not None:
        return
    signature = dict(self.src.signature)
    passed = [n for n, kind in enumerate(signature.values()) if kind != "constexpr"]

    def run(x: int, y: int, z: int, *rest: Any) -> None:
        arguments = rest[-len(signature) :]  # after the stream, the function, metadata and hooks
        words = [arguments[n] for n in passed]
        addresses = [word.data_ptr() if hasattr(word, "data_ptr") else word for word in words]
        with _one_at_a_time:
            _machines[-1].run(self.asm["amdgcn"], (x, y, z), addresses, self.metadata.num_warps, self.metadata.shared)

    self.module, self.function, self._run = self, 0, run
    self.n_regs, self.n_spills, self.n_max_threads = 0, 0, 1024


@contextmanager
def as_triton_driver(machine: Machine, architecture: str = "gfx942") -> Iterator[Machine]:
    """Within, kernels of Triton are compiled for `architecture` and run on the machine."""
    real, before = CompiledKernel._init_handles, driver._active
    CompiledKernel._init_handles = _init_handles
    driver.set_active(Driver(architecture))
    _machines.append(machine)
    try:
        yield machine
    finally:
        _machines.remove(machine)
        CompiledKernel._init_handles = real
        driver._active = before

"""Triton's driver for the machine: within `machine()`, `kernel[grid](...)` runs on it, on tensors of the CPU.

Kernels go through Triton's own specialisation and compiler for a GPU that is not there, up to PTX; ptxas is not called.
Nothing of Triton is changed but its active driver and, as long as a machine is in use, the NVIDIA backend, of which a
subclass stops at PTX. What was compiled is kept by Triton per capability, in memory and in its cache on disk.
"""

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from nanokv.device.ptx.errors import Malformed
from nanokv.device.ptx.report import Report
from nanokv.device.ptx.scheduler import Machine

_DEVICE = 1 << 16  #: of the first machine's kernels: Triton keeps them per device, and a real one has a small number
_context = threading.RLock()
_launching = threading.RLock()
_machines: list[Machine] = []


class _Utils:
    """What Triton asks of a driver about a device."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        """(module, function, registers, spills, threads at most): the function is the text of the PTX.

        There is no module: Triton would ask its driver to unload it, when the machine may be gone.
        """
        return None, kernel.decode(), 0, 0, 1024


class _Launcher:
    """What Triton calls for each launch of a compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.signature: dict[str, Any] = dict(source.signature)
        self.shared = metadata.shared
        if getattr(metadata, "num_ctas", 1) != 1:
            raise Malformed("a cluster of CTAs")

    def __call__(
        self, x: int, y: int, z: int, stream: int, ptx: str, packed: Any, about: Any, enter: Any, leave: Any, *args: Any
    ) -> None:
        arguments: list[tuple[str, Any]] = []
        for (name, kind), value in zip(self.signature.items(), args, strict=True):
            arguments += _flattened(name, kind, value)
        if not _machines:
            raise Malformed("a kernel of the PTX machine was kept, and is launched outside of `machine()`")
        with _launching:
            _machines[-1].launch(ptx, (x, y, z), arguments, self.shared)


_FLOATS = {"fp16": "e", "fp32": "f", "f32": "f", "fp64": "d"}


def _flattened(name: str, kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """The parameters that an argument becomes."""
    if isinstance(kind, tuple):
        for n, (one, part) in enumerate(zip(kind, value, strict=True)):
            yield from _flattened(f"{name}[{n}]", one, part)
    elif kind == "constexpr":
        return
    elif kind == "bf16":
        yield name, int.from_bytes(struct.pack("<f", value), "little") >> 16
    elif kind in _FLOATS:
        yield name, int.from_bytes(struct.pack(f"<{_FLOATS[kind]}", value), "little")
    else:
        yield name, 0 if value is None else value


class _Driver:
    """Stands in for Triton's CUDA driver."""

    launcher_cls = _Launcher

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)
        self.utils = _Utils()

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return _DEVICE + int(self._target.arch)

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        raise Malformed("the machine has no clock: it cannot choose a configuration by timing")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty


@cache
def _backend() -> Any:
    """Triton's backend for NVIDIA, stopping at PTX."""
    from triton.backends.nvidia.compiler import CUDABackend

    class PtxBackend(CUDABackend):  # type: ignore[misc]
        def __init__(self, target: Any) -> None:
            super().__init__(target)
            self.binary_ext = "image"

        def add_stages(self, stages: dict[str, Any], *args: Any) -> None:
            super().add_stages(stages, *args)
            stages.pop("cubin", None)
            stages["image"] = lambda text, metadata: text.encode()

        def hash(self) -> str:
            return f"{super().hash()}-stops-at-ptx"

    return PtxBackend


@contextmanager
def machine(*, capability: int = 90, **options: Any) -> Iterator[Machine]:
    """Within, every launch of a Triton kernel in this process runs on a machine, on tensors of the CPU.

    Contexts of different threads wait for each other; so do launches.

    Args:
        capability: of the GPU that kernels are compiled for: 80, 90, 100.
        options: of `Machine`.
    """
    with installed(Machine(**options), capability) as made:
        yield made


@contextmanager
def installed(made: Machine, capability: int = 90) -> Iterator[Machine]:
    """`machine`, with a machine that is there already."""
    from dataclasses import replace

    from triton.backends import backends
    from triton.runtime.driver import driver

    with _context:
        before, nvidia = driver._active, backends["nvidia"]
        backends["nvidia"] = replace(nvidia, compiler=_backend())
        driver.set_active(_Driver(capability))
        _machines.append(made)
        try:
            yield made
        finally:
            _machines.remove(made)
            backends["nvidia"] = nvidia
            driver.set_active(before)


def run(
    kernel: Any,
    grid: Sequence[int] | Callable[..., Any],
    *args: Any,
    capability: int = 90,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    **meta: Any,
) -> Report:
    """Run a Triton kernel once, on tensors of the CPU.

    Args:
        kernel: a function with @triton.jit.
        grid: as in kernel[grid].
        args: the kernel's arguments. Only the storage of tensors among them may be accessed.
        capability: of the GPU that it is compiled for: 80, 90, 100.
        seed: of the order in which warps go on.
        options: of `Machine`: {"count": True}.
        meta: constants of the kernel, and num_warps, num_stages.

    Returns:
        What was found and counted. Results are in the tensors.

    Raises:
        PtxError: what went wrong, and where.
    """
    inner = kernel
    while not hasattr(inner, "device_caches") and hasattr(inner, "fn"):
        inner = inner.fn  # of @triton.autotune and @triton.heuristics
    if not hasattr(inner, "device_caches"):
        raise Malformed(f"{kernel} is no compiled kernel; is TRITON_INTERPRET set?")
    with machine(capability=capability, seed=seed, **(options or {})) as used:
        kernel[grid](*args, **meta)
        return used.report()

"""Triton's driver for the machine: within `machine()`, `kernel[grid](...)` runs on it, on tensors of the CPU.

ptxas is not called. What was compiled is kept by Triton per capability.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nanokv.device.emulation.arguments import Grid
from nanokv.device.emulation.errors import Malformed
from nanokv.device.emulation.triton_driver import Driver, active
from nanokv.device.ptx.kinds import LANES
from nanokv.device.ptx.report import Report
from nanokv.device.ptx.scheduler import Machine

_DEVICE = 1 << 16  #: the number of the first capability's device
_PROPERTIES = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": 132,
    "warpSize": LANES,
    "sm_clock_rate": 1,
    "mem_clock_rate": 1,
    "mem_bus_width": 1,
}


class PtxDriver(Driver):
    """Stands in for Triton's CUDA driver."""

    backend = "nvidia"
    text = "ptx"
    binary = "cubin"

    def __init__(self, machine: Machine, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        super().__init__(GPUTarget("cuda", capability, LANES), _DEVICE + capability, _PROPERTIES)
        self._machine = machine

    def launch(self, text: str, grid: Grid, arguments: list[tuple[str, Any]], metadata: Any) -> None:
        self._machine.launch(text, grid, arguments, metadata.shared)


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
    with active(PtxDriver(made, capability)):
        yield made


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

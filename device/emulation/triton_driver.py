"""Triton's driver for a machine: unmodified `kernel[grid](...)` calls run on it, on tensors of the CPU.

Kernels go through Triton's own specialisation and compiler for a GPU that is not there, up to the text of its code; no
assembler is called. Nothing of Triton is changed but its active driver and, as long as a machine is in use, its
backend, of which a subclass stops at the text. What was compiled is kept by Triton per device, in memory and in its
cache on disk; none of it holds a machine.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from nanokv.device.emulation.arguments import Grid, flattened
from nanokv.device.emulation.errors import Malformed

if TYPE_CHECKING:  # Triton and torch are imported when a driver is used
    from triton.backends.compiler import GPUTarget

_MOST_THREADS = 1024  #: of a CTA
_BEFORE = 4  #: what Triton passes before the kernel's arguments: metadata, packed and not, and two hooks
_context = threading.RLock()
_launching = threading.RLock()


class _Utils:
    """What Triton asks of a driver about a device."""

    def __init__(self, properties: dict[str, int]) -> None:
        self._properties = properties

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self._properties

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        """(module, function, registers, spills, threads at most): the function is the text.

        There is no module: Triton would ask its driver to unload it, when the machine may be gone.
        """
        return None, kernel.decode(), 0, 0, _MOST_THREADS


class Driver(ABC):
    """Stands in for Triton's driver of a GPU.

    Args:
        target: what kernels are compiled for.
        device: its number: Triton keeps kernels per device, and a real one has a small number.
        properties: of the device, as Triton names them.
    """

    backend: ClassVar[str]  #: Triton's name of it
    text: ClassVar[str]  #: the stage of the compiler that makes the text
    binary: ClassVar[str]  #: the stage behind it, which is left out

    def __init__(self, target: "GPUTarget", device: int, properties: dict[str, int]) -> None:
        self._target, self._device = target, device
        self.utils = _Utils(properties)

    @abstractmethod
    def launch(self, text: str, grid: Grid, arguments: list[tuple[str, Any]], metadata: Any) -> None:
        """Run a kernel to its end. `arguments`: (name, tensor or bits)."""

    # what Triton asks
    @property
    def launcher_cls(self) -> Callable[[Any, Any], Callable[..., None]]:
        return partial(_Launcher, type(self))

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> "GPUTarget":
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def set_current_device(self, device: int) -> None:  # noqa: B027 - for all drivers
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


class _Launcher:
    """What Triton calls for each launch of a compiled kernel."""

    def __init__(self, kind: type[Driver], source: Any, metadata: Any) -> None:
        self._kind, self._metadata = kind, metadata
        self._signature: dict[str, Any] = dict(source.signature)
        if getattr(metadata, "num_ctas", 1) != 1:
            raise Malformed("a cluster of CTAs")

    def __call__(self, x: int, y: int, z: int, stream: int, text: str, *rest: Any) -> None:
        from triton.runtime.driver import driver

        arguments: list[tuple[str, Any]] = []
        for (name, kind), value in zip(self._signature.items(), rest[_BEFORE:], strict=True):
            arguments += flattened(name, kind, value)
        active = driver._active
        if not isinstance(active, self._kind):
            raise Malformed("a kernel of a machine was kept, and is launched where no such machine is in use")
        with _launching:
            active.launch(text, (x, y, z), arguments, self._metadata)


@cache
def _stopping(backend: str, text: str, binary: str) -> Any:
    """Triton's backend, stopping at the text."""
    from triton.backends import backends

    whole: Any = backends[backend].compiler

    class Stopping(whole):  # type: ignore[misc]
        def __init__(self, target: Any) -> None:
            super().__init__(target)
            self.binary_ext = "image"

        def add_stages(self, stages: dict[str, Any], *args: Any) -> None:
            super().add_stages(stages, *args)
            stages.pop(binary, None)
            stages["image"] = lambda code, metadata: code.encode()

        def hash(self) -> str:
            return f"{super().hash()}-stops-at-{text}"

    return Stopping


@contextmanager
def active(made: Driver) -> Iterator[None]:
    """Within, every launch of a Triton kernel in this process goes to a driver.

    Contexts of different threads wait for each other; so do launches.
    """
    from triton.backends import backends
    from triton.runtime.driver import driver

    with _context:
        before, whole = driver._active, backends[made.backend]
        backends[made.backend] = replace(whole, compiler=_stopping(made.backend, made.text, made.binary))
        driver.set_active(made)
        try:
            yield
        finally:
            backends[made.backend] = whole
            driver.set_active(before)

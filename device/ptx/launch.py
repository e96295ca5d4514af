"""A launch of a kernel, and its CTAs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanokv.device.emulation.arguments import Grid, packed
from nanokv.device.emulation.errors import Divergence, Malformed
from nanokv.device.ptx.blocks import Style, translation
from nanokv.device.ptx.counting import Counter
from nanokv.device.ptx.kinds import LANES, Array, size_of
from nanokv.device.ptx.operands import KernelParam
from nanokv.device.ptx.warp import Warp

if TYPE_CHECKING:
    from nanokv.device.ptx.scheduler import Machine


class Cta:
    """What the warps of a CTA share.

    Attributes:
        warps: those that have not ended.
        waiting: barrier -> the warps that wait there.
    """

    def __init__(self, launch: "Launch", place: Grid) -> None:
        self.launch, self.place = launch, place
        self.shared = np.zeros(launch.shared_bytes // 8 + 2, np.uint64)
        self.waiting: dict[int, list[Warp]] = {}
        self.warps = [Warp(launch, self, number) for number in range(-(-launch.program.threads // LANES))]
        launch.ready += self.warps
        for warp in self.warps:
            launch.memory.start(warp)
            if launch.style.single:
                warp.counter = Counter(launch.program, launch.machine.price)

    def arrive(self, warp: Warp, number: int, threads: int) -> None:
        """A warp comes to a barrier of `threads` threads; 0: of all."""
        warp.waiting = number
        self.launch.ready.remove(warp)
        self.waiting.setdefault(number, []).append(warp)
        self._release(number, threads // LANES)

    def ended(self, warp: Warp) -> None:
        """A warp ends: barriers of all threads do not wait for it any more, as on a GPU."""
        self.warps.remove(warp)
        self.launch.ready.remove(warp)
        for number in list(self.waiting):
            self._release(number, 0)

    def _release(self, number: int, wanted: int) -> None:
        here = self.waiting[number]
        if here and len(here) >= (wanted or len(self.warps)):
            self.waiting[number] = []
            if len(places := sorted({warp.about for warp in here})) > 1:
                here[0].found("warps of a CTA at one barrier from different places", "; ".join(places))
            self.launch.memory.barrier(here, None)
            Counter.joined([warp.counter for warp in here if warp.counter is not None])
            for warp in here:
                warp.waiting = None
            self.launch.ready += here


class Launch:
    """One launch.

    Args:
        arguments: (name, value) of the kernel's parameters in their order: integers, floats, or tensors. Parameters
            behind the last one are 0.
        shared: bytes of shared memory of a CTA that the launch asks for.

    Raises:
        Malformed: there are more arguments than parameters.
    """

    def __init__(
        self, machine: "Machine", ptx: str, grid: Grid, arguments: Sequence[tuple[str, Any]], shared: int, style: Style
    ) -> None:
        self.machine, self.memory, self.grid, self.style = machine, machine.memory, grid, style
        self.ready: list[Warp] = []  #: that can go on
        self.translation = translation(ptx, style)
        self.program = self.translation.program
        self.shared_bytes = max(shared, self.program.shared_bytes)
        if len(arguments) > len(self.program.params):
            raise Malformed(
                f"{self.program.name}: {len(arguments)} arguments for {len(self.program.params)} parameters"
            )
        tensors = [(name, value) for name, value in arguments if hasattr(value, "data_ptr")]
        addresses = iter(self.memory.bind(self.program, tensors))
        values = [next(addresses) if hasattr(value, "data_ptr") else value for _, value in arguments]
        last = self.program.params[-1] if self.program.params else KernelParam("", "b32", 0, 0)
        self._raw = bytearray(last.offset + last.size)
        for param, value in zip(self.program.params, values, strict=False):
            self._raw[param.offset : param.offset + param.size] = _packed(param, value)
        self._params: dict[tuple[int, Any], Array] = {}

    def ctas(self) -> list[Grid]:
        """Where the CTAs of the grid stand."""
        return [(x, y, z) for z in range(self.grid[2]) for y in range(self.grid[1]) for x in range(self.grid[0])]

    def param(self, offset: int, dtype: Any) -> Array:
        """A parameter, in all lanes."""
        found = self._params.get((offset, dtype))
        if found is None:
            found = np.full(LANES, np.frombuffer(self._raw, dtype, 1, offset)[0])
            self._params[offset, dtype] = found
        return found

    def splits(self) -> bool:
        """Whether a load that all lanes are about to do is cut in two now."""
        machine = self.machine
        return machine.dice.random() < machine.split_lanes

    def some_lanes(self) -> Array:
        """The lanes that do it first."""
        return np.arange(LANES) < self.machine.dice.randrange(1, LANES)

    def text(self, address: int) -> str:
        """A string of the module."""
        for memory in self.program.variables.values():
            if memory.ctypes.data == address:
                return bytes(memory).split(b"\0")[0].decode(errors="replace")
        return f"<{address:#x}>"

    def stuck(self, warps: Sequence[Warp]) -> Divergence:
        """No warp can go on."""
        where = sorted({f"barrier {warp.waiting}: {warp.about}" for warp in warps})
        return Divergence(f"{self.program.name}: all warps wait, and none can come: {'; '.join(where)}")


def _packed(param: KernelParam, value: Any) -> bytes:
    if not isinstance(value, float) and param.size != size_of(param.kind):
        raise Malformed(f"the parameter {param.name} of {param.size} bytes")
    return packed(value, param.size)

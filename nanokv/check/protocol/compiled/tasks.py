"""Compiled code as what the tasks of a simulation call."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from nanokv.check.protocol.compiled.calls import MOST_ANSWERS, CompiledCall, compile_calls, need_compiler
from nanokv.check.protocol.compiled.lanes import LaneMemory
from nanokv.device.ptx import Cta, Machine
from nanokv.device.sim.simulation import Simulation

_GRID = (1, 1, 1)
Rewrite = Callable[[str], str]


class CompiledTasks:
    """Makes what tasks call (`Simulation`): device functions compiled for a GPU, on the PTX machine.

    Args:
        target: one of TARGETS.
        rewrite: a change of each PTX text: a mutant.

    Attributes:
        changed: whether `rewrite` has changed a text that a task was given.

    Raises:
        InvalidArgument: nothing can be compiled for the target here.
    """

    def __init__(self, target: str, rewrite: Rewrite = str) -> None:
        need_compiler(target)
        self.name, self._rewrite = target, rewrite
        self.changed = False
        self._machines: dict[Simulation, tuple[Machine, Callable[[Any], CompiledCall]]] = {}

    def __call__(self, simulation: Simulation, device_function: Any) -> Callable[..., Any]:
        if simulation not in self._machines:
            compiling = compile_calls(simulation.replaced, simulation.constants, self.name)
            self._machines[simulation] = Machine(memory=LaneMemory(simulation)), compiling
        machine, compiling = self._machines[simulation]
        code: list[CompiledCall] = []

        def call(*arguments: Any) -> Any:
            if not code:  # at the first call: most entries are never called by a scenario
                made = compiling(device_function)
                code.append(CompiledCall(self._rewrite(made.ptx), made.shared))
                self.changed |= code[0].ptx != made.ptx
            return _run(machine, code[0], list(_words(arguments)))

        return call


def _words(arguments: Iterable[Any]) -> Iterator[int]:
    """The words of a call: named tuples are several."""
    for each in arguments:
        if isinstance(each, tuple):
            yield from _words(each)
        else:
            yield int(each)


def _run(machine: Machine, code: CompiledCall, words: list[int]) -> Any:
    """One call: the answers, as the function in plain Python returns them."""
    room = np.zeros(1 + MOST_ANSWERS, np.int64)
    arguments = [("out", room.ctypes.data), *((f"word {n}", word) for n, word in enumerate(words))]
    launch = machine.prepare(code.ptx, _GRID, arguments, code.shared)
    (warp,) = Cta(launch, (0, 0, 0)).warps
    warp.run()
    count, *answers = room.tolist()
    return None if not count else answers[0] if count == 1 else tuple(answers[:count])

"""A kernel, its instructions made functions of a wave.

The text is translated once; `run_on` executes a wave until others may act: after an access to memory, a wait, a
barrier, a branch backwards, or a call.
"""

from collections.abc import Callable
from functools import cache

from nanokv.device.emulation.errors import EmulatorError, Malformed, Unsupported
from nanokv.device.gcn import access, calls, control, float_vectors, lanes, lds, private, scalar, vector
from nanokv.device.gcn.module import Kernel, Statement, read
from nanokv.device.gcn.operands import used
from nanokv.device.gcn.wave import Wave

Step = Callable[[Wave], int | None]


class Program:
    """A translated kernel.

    Raises:
        Unsupported: it has an instruction that the machine does not know.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps: list[Step] = []
        for index in range(len(kernel.code)):
            try:
                self.steps.append(self._translated(index))
            except (Unsupported, ValueError, KeyError) as error:
                raise Unsupported(f"{self.about(index)}: {error}") from error
        self._used = [_registers(statement) for statement in kernel.code]
        self._yields = [self._is_yield(index) for index in range(len(kernel.code))]

    def _translated(self, index: int) -> Step:
        statement = calls.linked(index, self.kernel)
        name = statement.name
        if name in calls.INSTRUCTIONS:
            return calls.step(index, self.kernel)
        if name in control.CONDITIONS:
            return control.branch(statement, self.kernel.labels)
        for table in (scalar.BUILDERS, vector.BUILDERS, float_vectors.BUILDERS, lanes.BUILDERS):
            if name in table:
                return table[name](statement)
        for steps in (access.BUILDERS, private.BUILDERS, lds.BUILDERS, control.BUILDERS):
            builder = next((make for prefix, make in steps.items() if name.startswith(prefix)), None)
            if builder is not None:
                return builder(statement)
        raise Unsupported("this machine does not know the instruction")

    def _is_yield(self, index: int) -> bool:
        statement = self.kernel.code[index]
        if statement.name in control.CONDITIONS:
            return self.kernel.labels[statement.operands[0]] <= index
        others = ("s_waitcnt", "s_barrier", "s_endpgm", *calls.JUMPS)
        return access.is_access(statement.name) or statement.name in others

    def about(self, index: int) -> str:
        """An instruction, and where it comes from."""
        statement = self.kernel.code[index]
        return f"{self.kernel.name}: instruction {index}, `{statement.text}` ({statement.source})"

    def run_on(self, wave: Wave) -> int:
        """Execute instructions until other waves may act; returns how many these were.

        Raises:
            EmulatorError: an instruction did what it must not do.
        """
        steps, yields, used_by = self.steps, self._yields, self._used
        vm, lgkm = wave.vm, wave.lgkm
        first = pc = wave.pc
        count = 0
        try:
            while True:
                if vm.registers:
                    vm.refuse(used_by[pc])
                if lgkm.registers:
                    lgkm.refuse(used_by[pc])
                count += 1
                after = steps[pc](wave)
                if yields[pc]:
                    wave.pc = pc + 1 if after is None else after
                    return count
                pc = pc + 1 if after is None else after
        except EmulatorError as error:
            where = f"{self.about(pc)}, workgroup {wave.workgroup.place}, wave {wave.number}"
            raise type(error)(f"{where}: {error}") from error
        except IndexError as error:
            raise Malformed(f"{self.kernel.name}: no instruction {pc} (came from {first})") from error


def _registers(statement: Statement) -> frozenset[int]:
    """What must not be in flight when an instruction executes.

    Loads of vector memory return in order, so the target of one may be the target of another that is outstanding.
    """
    name = statement.name
    loads = name.startswith(("global_load_", "buffer_load_", "scratch_load_", "ds_read"))
    return used(statement.operands[1:] if loads else statement.operands)


@cache
def translated(text: str) -> Program:
    """The kernel of a module's text, translated once."""
    return Program(read(text))

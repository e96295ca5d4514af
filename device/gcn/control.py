"""Branches, waits, barriers, and what does nothing here.

Source: AMD, "CDNA3 Instruction Set Architecture".
"""

from collections.abc import Callable

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.gcn.access import Step
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.registers import VCC
from nanokv.device.gcn.wave import Wave

Branch = Callable[[Wave], int | None]  #: returns where to go on; None: behind this instruction

CONDITIONS: dict[str, Callable[[Wave], bool]] = {
    "s_branch": lambda wave: True,
    "s_cbranch_scc0": lambda wave: not wave.scc,
    "s_cbranch_scc1": lambda wave: bool(wave.scc),
    "s_cbranch_vccz": lambda wave: not wave.pair(VCC),
    "s_cbranch_vccnz": lambda wave: bool(wave.pair(VCC)),
    "s_cbranch_execz": lambda wave: not wave.exec,
    "s_cbranch_execnz": lambda wave: bool(wave.exec),
}
#: hints about time, which this machine does not have; what must lie between two instructions is the assembler's care
IDLE = ("s_nop", "s_sleep", "s_setprio", "s_setkill", "s_inst_prefetch", "s_icache_inv", "s_dcache_inv")


def branch(statement: Statement, labels: dict[str, int]) -> Branch:
    """An instruction of CONDITIONS."""
    (label,) = statement.operands
    if label not in labels:
        raise Unsupported(f"a branch to {label}, which is no label of this kernel")
    target, condition = labels[label], CONDITIONS[statement.name]
    if statement.name == "s_branch":
        return lambda wave: target
    return lambda wave: target if condition(wave) else None


def wait(statement: Statement) -> Step:
    """s_waitcnt vmcnt(N) lgkmcnt(N)."""
    counts = {name: int(count) for name, count in statement.modifiers.items()}
    if not counts or counts.keys() - {"vmcnt", "lgkmcnt", "expcnt"}:
        raise Unsupported("the counters of a wait")
    vector, scalar = counts.get("vmcnt"), counts.get("lgkmcnt")

    def waited(wave: Wave) -> None:
        if vector is not None:
            wave.vm.wait(vector)
        if scalar is not None:
            wave.lgkm.wait(scalar)

    return waited


def idle(statement: Statement) -> Step:
    """Nothing."""
    return lambda wave: None


BUILDERS: dict[str, Callable[[Statement], Step]] = {
    "s_waitcnt": wait,
    "s_barrier": lambda statement: Wave.arrive,
    "s_endpgm": lambda statement: Wave.end,
    **dict.fromkeys(IDLE, idle),
}

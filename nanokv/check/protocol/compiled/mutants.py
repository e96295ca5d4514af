"""PTX, broken on purpose: what the compiler could get wrong, and a scenario must notice.

Each ordering of the protocol (`model.orderings`) is an instruction in PTX: a load, or a read-modify-write, with
`.acquire`, `.release` or `.acq_rel`. The compiler notes the call in the source that it comes from. So an ordering is
made weaker in the text, and the barrier before a release or after an acquire is deleted, in each place where that call
went.

    commit_state#0:release>relaxed     the instruction of an ordering, made weaker
    commit_state#0:barrier             without the barriers that make it an ordering of all lanes
    barriers:none                      without any barrier
    add:unguarded                      read-modify-writes by all lanes instead of one
    copies:unmasked                    copies that store more than they should
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from nanokv.check.protocol.model.orderings import functions, orderings
from nanokv.device.sim.mutants import WeakOrdering, ordered_calls

_ACCESS = re.compile(r"\b(?:ld|atom|red)\.global\.[\w.:]*\b(acquire|release|acq_rel)\b")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"')
_LOCATION = re.compile(r"^\s*\.loc\s(?:.*inlined_at (\d+) (\d+) |.*?@\[ ([\w.]+):(\d+):)")  # Triton 3.9, and 3.6
_BARRIER = re.compile(r"^\s*bar\.sync\s")
_OTHER = re.compile(r"^\s*(?!\$L__tmp)[$\w]+:(?!\S)|\b(?:ld|st|atom|red)\.(?:volatile\.)?global|\bbra\b")

Place = tuple[str, int]  #: (module, line) of a call in the source; no line has two that order


class PtxMutant(NamedTuple):
    """A change of PTX texts."""

    name: str
    about: str
    rewrite: Callable[[str], str]


@cache
def mutants() -> dict[str, PtxMutant]:
    """Every mutant by its name."""
    found = [*_weaker_instructions(), *_without_barriers()]
    for operation in ("add", "cas", "exch"):
        pattern = re.compile(rf"(?m)^\s*@!?%p\d+\s+(?=(?:atom|red)\.[\w.]*\b{operation}\b)")
        found.append(PtxMutant(f"{operation}:unguarded", f"each lane does it: {operation}", _without(pattern)))
    found.append(PtxMutant("barriers:none", "no barrier at all", _without(re.compile(r"(?m)^\s*bar\.sync\s.*$"))))
    found.append(PtxMutant("copies:unmasked", "copies do not end with the last word", _unmasked))
    return {mutant.name: mutant for mutant in found}


def _without(pattern: re.Pattern[str]) -> Callable[[str], str]:
    return lambda ptx: pattern.sub("\t", ptx)


def _unmasked(ptx: str) -> str:
    """Loads of copies, and the stores of what they loaded, by all lanes."""
    copied = {*re.findall(r"\bld\.global\.cg\.b64\s*\{\s*(%rd\d+)\s*\}", ptx)}

    def bare(match: re.Match[str]) -> str:
        return "\t" + match[1] if match[2] in copied else match[0]

    return re.sub(r"(?m)^\s*@!?%p\d+\s+((?:ld\.global\.cg|st\.global)\.b64[^;{]*\{\s*(%rd\d+)\s*\})", bare, ptx)


# --- orderings --------------------------------------------------------------------------------
def _weaker_instructions() -> Iterator[PtxMutant]:
    for weaker in orderings():
        yield PtxMutant(weaker.name, weaker.text, partial(_changed, weaker, partial(_weaken, weaker)))


def _without_barriers() -> Iterator[PtxMutant]:
    seen = set()
    for weaker in orderings():
        name = weaker.name.partition(":")[0]
        if name not in seen:
            seen.add(name)
            yield PtxMutant(f"{name}:barrier", weaker.text, partial(_changed, weaker, _delete_barriers))


def _changed(weaker: WeakOrdering, change: Callable[[list[str], int], None], ptx: str) -> str:
    """A text in which the instructions of one call are changed: `change` is given the lines, and the number of one."""
    numbers = _accesses(ptx).get(_places()[weaker.function.fn.__name__, weaker.call])
    if not numbers:
        return ptx
    lines = ptx.split("\n")
    for number in numbers:
        change(lines, number)
    return "\n".join(lines)


def _weaken(weaker: WeakOrdering, lines: list[str], number: int) -> None:
    lines[number] = re.sub(rf"\b{weaker.was}\b", weaker.weaker, lines[number])


def _delete_barriers(lines: list[str], number: int) -> None:
    """Delete the barriers before a release and after an acquire."""
    match = _ACCESS.search(lines[number])
    assert match is not None
    for step, orderings_of in ((-1, ("release", "acq_rel")), (1, ("acquire", "acq_rel"))):
        if match[1] in orderings_of:
            _delete_barrier(lines, number, step)


def _delete_barrier(lines: list[str], number: int, step: int) -> None:
    """The barriers from a line on, before any other access or branch."""
    at = number + step
    while 0 <= at < len(lines) and not _OTHER.search(lines[at]):
        if _BARRIER.match(lines[at]):
            lines[at] = ""
        at += step


@lru_cache(maxsize=256)
def _accesses(ptx: str) -> dict[Place, list[int]]:
    """The lines of ordered accesses, by the call in the source that each comes from."""
    lines = ptx.split("\n")
    files = {match[1]: match[2] for line in lines if (match := _FILE.match(line))}
    found: dict[Place, list[int]] = {}
    place: Place | None = None
    for number, line in enumerate(lines):
        if match := _LOCATION.match(line):
            place = Path(match[3] or files[match[1]]).name, int(match[4] or match[2])
        elif _ACCESS.search(line) and place is not None:
            found.setdefault(place, []).append(number)
    return found


@cache
def _places() -> dict[tuple[str, int], Place]:
    """(function, number of the ordered call in it) -> where it is."""
    found: dict[tuple[str, int], Place] = {}
    for function in functions():
        lines, first = inspect.getsourcelines(function.fn)
        module = Path(inspect.getfile(function.fn)).name
        head = next(n for n, line in enumerate(lines) if line.startswith("def "))
        for number, call in enumerate(ordered_calls(function)):
            found[function.fn.__name__, number] = module, first + head + call.lineno - 1
    return found

"""What a mutant is: the protocol or its host, broken in one place."""

import inspect
import textwrap
from contextlib import ExitStack
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from unittest import mock

from nanokv.device.sim.mutants import rewrite

Change = tuple[Any, str, str]  #: (device function, or function of the host; old text; new text)
Patch = tuple[Any, str, Any]  #: (class or module, name, the replacement)


class Mutant(NamedTuple):
    """One broken variant. Its function contains every old text exactly once."""

    name: str
    about: str  #: what is broken
    scenarios: tuple[str, ...]  #: which should notice
    changes: tuple[Change, ...]
    patches: tuple[Patch, ...]
    deviations: int  #: in how many decisions `Explorer.deviate` may leave the plain schedule

    def replaced(self) -> dict[Any, Any]:
        """The device functions, for `Simulation`."""
        found: dict[Any, Any] = {}
        for function, old, new in self.changes:
            if not isinstance(function, FunctionType):
                found |= rewrite(function, old, new)
        return found

    def patched(self) -> ExitStack:
        """The host's part of the mutant, for as long as the context lasts."""
        stack = ExitStack()
        texts: dict[FunctionType, list[tuple[str, str]]] = {}
        for function, old, new in self.changes:
            if isinstance(function, FunctionType):
                texts.setdefault(function, []).append((old, new))
        for function, pairs in texts.items():
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _recoded(function, pairs)
        for place, name, instead in self.patches:
            stack.enter_context(mock.patch.object(place, name, instead))
        return stack


MUTANTS: dict[str, Mutant] = {}  #: every mutant that was declared; `mutants` declares all of them


def mutant(
    name: str,
    about: str,
    scenarios: tuple[str, ...],
    *changes: Change,
    patches: tuple[Patch, ...] = (),
    deviations: int = 1,
) -> None:
    """Declare a mutant; see `Mutant`."""
    made = Mutant(name, about, scenarios, changes, patches, deviations)
    if MUTANTS.setdefault(name, made) is not made:
        raise ValueError(f"two mutants have the name {name!r}")


def _recoded(function: FunctionType, pairs: list[tuple[str, str]]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in pairs:
        if source.count(old) != 1:
            raise ValueError(f"{function.__qualname__} contains {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    scope = dict(function.__globals__)
    exec(compile(source, f"<mutant of {function.__qualname__}>", "exec"), scope)
    code: CodeType = scope[function.__name__].__code__
    return code

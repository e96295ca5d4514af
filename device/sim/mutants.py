"""Device functions, broken on purpose: a checker that does not notice them checks nothing.

A mutant is a change of source text, or an ordering made weaker. The original stays as it is: the broken function goes
to `Simulation(replaced=...)`, which then runs it wherever the protocol calls the original.
"""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from nanokv.device.memory import triton as memory
from nanokv.device.protocol import status
from nanokv.device.segment import layout

#: names of the vocabulary whose last argument is an ordering
ORDERED = ("load64", "store64", "cas64", "add64", "xchg64")
_NUMBERS = count()
WEAKER = {"acq_rel": ("acquire", "release"), "acquire": ("relaxed",), "release": ("relaxed",)}


class Replacement:
    """Takes the place of a `@triton.jit` function, for `retarget`."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = fn.__name__


class WeakOrdering(NamedTuple):
    """One call of the vocabulary with a weaker ordering."""

    function: Any  #: the `@triton.jit` function that contains it
    call: int  #: which ordered call of it, in the order of the source, from 0
    text: str  #: the call as it is written
    was: str
    weaker: str

    @property
    def name(self) -> str:
        """FUNCTION#CALL:WAS>WEAKER."""
        return f"{self.function.fn.__name__}#{self.call}:{self.was}>{self.weaker}"

    def replaced(self) -> dict[Any, Any]:
        """The functions that are replaced, as `Simulation` takes them."""
        tree = _tree(self.function)
        _ordered_calls(tree)[self.call].args[-1] = ast.Constant(self.weaker)
        return {self.function.fn: _compiled(self.function, ast.unparse(ast.fix_missing_locations(tree)))}


def rewrite(function: Any, old: str, new: str) -> dict[Any, Any]:
    """A device function with one piece of its source text replaced, for `Simulation`.

    Raises:
        ValueError: the function does not contain the text exactly once: it has changed, and the mutant must follow.
    """
    source = _source(function)
    if source.count(old) != 1:
        raise ValueError(f"{old!r} occurs {source.count(old)} times in {function.fn.__name__}, not once")
    return {function.fn: _compiled(function, source.replace(old, new))}


def weak_orderings(function: Any) -> Iterator[WeakOrdering]:
    """Every way to weaken one ordering of a device function by one step."""
    for number, call in enumerate(ordered_calls(function)):
        ordering = call.args[-1]
        assert isinstance(ordering, ast.Constant), f"{function.fn.__name__}: an ordering is no constant"
        was = str(ordering.value)
        for weaker in WEAKER.get(was, ()):
            yield WeakOrdering(function, number, ast.unparse(call), was, weaker)


def ordered_calls(function: Any) -> list[ast.Call]:
    """The calls of a device function that name an ordering, in the order of the source; lines count from its `def`."""
    return _ordered_calls(_tree(function))


def _source(function: Any) -> str:
    lines = textwrap.dedent(inspect.getsource(function.fn)).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[start:]) + "\n"


def _tree(function: Any) -> ast.Module:
    return ast.parse(_source(function))


def _ordered_calls(tree: ast.Module) -> list[ast.Call]:
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDERED
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _compiled(function: Any, source: str) -> Replacement:
    scope: dict[str, Any] = {}
    for module in (layout, status, memory):
        scope.update({name: value for name, value in vars(module).items() if not name.startswith("_")})
    scope.update(function.fn.__globals__)
    name = f"<mutant {next(_NUMBERS)} of {function.fn.__name__}>"
    linecache.cache[name] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        name,
    )  # where Triton's compiler finds it
    exec(compile(source, name, "exec"), scope)
    return Replacement(scope[function.fn.__name__])

"""Device functions as kernels: one CTA of one warp calls one function, and writes its answers into private memory.

A world is opened once per call, as kernels do. The kernel is compiled up to PTX for a GPU that is not there.
"""

import warnings
from collections.abc import Mapping
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import core
from triton.runtime.jit import JITFunction

from nanokv.device.memory.triton import store64, word
from nanokv.device.ptx import Machine, installed
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import open_world
from nanokv.device.sources import file_digest
from nanokv.errors import InvalidArgument

TARGETS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}  #: name -> capability
MOST_ANSWERS = 32
_KEPT = ("nanokv.device.memory.", "triton.")  #: modules whose functions are never replaced


def need_compiler(target: str) -> None:
    """Refuse what cannot be compiled here.

    Raises:
        InvalidArgument: the target is unknown, or device functions are interpreted in this process.
    """
    if target not in TARGETS:
        raise InvalidArgument(f"no target {target!r}; there are {', '.join(TARGETS)}")
    if not isinstance(call_one, JITFunction):
        raise InvalidArgument("TRITON_INTERPRET is set: device functions are interpreted in this process, not compiled")


class CompiledCall(NamedTuple):
    """A compiled call of one device function."""

    ptx: str
    shared: int  #: bytes of shared memory that a launch asks for


CALLS = core.constexpr(file_digest(__file__))  # Triton's cache key does not see `_count` (`memory.warps`)


@core.builtin
def _count(source: Any, answers: Any, _semantic: Any = None) -> Any:
    """How many words a function returned. `source`: CALLS."""
    if isinstance(answers, core.tuple):
        return core.constexpr(len(answers.values))
    return core.constexpr(0 if getattr(answers, "value", answers) is None else 1)


@triton.jit
def call_one(out: tl.int64, words: tl.tuple, function: tl.constexpr, opens: tl.constexpr) -> None:
    """Call a function with some words. `out`: room for the number of its answers, and for them."""
    if opens:  # noqa: SIM108 - decided while it is compiled
        answers = function(open_world(words[0]), *words[1:])
    else:
        answers = function(*words)
    count: tl.constexpr = _count(CALLS, answers)
    store64(out, word(count), "relaxed")
    if count == 1:
        store64(out + WORD_BYTES, word(answers), "relaxed")
    else:
        for i in tl.static_range(count):
            store64(out + (i + 1) * WORD_BYTES, word(answers[i]), "relaxed")


def compiled(function: Any, target: str) -> CompiledCall:
    """A call of a device function whose arguments are words, the first of them a world if it is named so."""
    names = function.arg_names
    types: dict[str, Any] = {
        "out": "i64",
        "words": ("i64",) * len(names),
        "function": "constexpr",
        "opens": "constexpr",
    }
    source = ASTSource(call_one, types, {(2,): function, (3,): names[0] == "world"})
    gpu = GPUTarget("cuda", TARGETS[target], 32)
    with installed(Machine(), TARGETS[target]), warnings.catch_warnings():  # which stops at PTX
        warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")  # words are integers
        made = triton.compile(source, target=gpu, options={"num_warps": 1})
    return CompiledCall(made.kernel.decode(), made.metadata.shared)


class Variant:
    """The device functions of one simulation, as Triton's compiler takes them.

    Args:
        replaced: raw Python function -> the function that takes its place (`sim.mutants`).
        constants: constants of the protocol by name, with other values.
    """

    def __init__(self, replaced: Mapping[Any, Any], constants: Mapping[str, int]) -> None:
        self._replaced = replaced
        self._constants = {name: tl.constexpr(value) for name, value in constants.items()}
        self._done: dict[Any, Any] = {}

    def function(self, function: Any) -> Any:
        """A device function that calls those of the variant."""
        raw = function.fn
        if raw not in self._done:
            of = self._replaced[raw].fn if raw in self._replaced else raw
            scope = dict(of.__globals__)
            plain = FunctionType(of.__code__, scope, of.__name__, of.__defaults__, of.__closure__)
            plain.__annotations__, plain.__module__ = raw.__annotations__, raw.__module__
            plain.__qualname__ = f"variant.{raw.__qualname__}"  # the original stays in the registry of Triton
            self._done[raw] = triton.jit(plain, noinline=function.noinline)
            for name in scope.keys() & {*of.__code__.co_names}:
                scope[name] = self._constants.get(name) or self._within(scope[name])
        return self._done[raw]

    def _within(self, value: Any) -> Any:
        if isinstance(value, JITFunction) and not value.fn.__module__.startswith(_KEPT):
            return self.function(value)
        return value


@cache
def _plain(constants: tuple[tuple[str, int], ...]) -> Variant:
    return Variant({}, dict(constants))


@cache
def _compiled_plain(function: Any, constants: tuple[tuple[str, int], ...], target: str) -> CompiledCall:
    return compiled(_plain(constants).function(function), target)


def compile_calls(replaced: Mapping[Any, Any], constants: Mapping[str, int], target: str) -> Any:
    """Returns what compiles a device function of a simulation. That of the protocol itself is compiled once."""
    if not replaced:
        return lambda function: _compiled_plain(function, tuple(sorted(constants.items())), target)
    variant = Variant(replaced, constants)
    return cache(lambda function: compiled(variant.function(function), target))

"""Device functions as kernels: one CTA of one warp calls one function, and writes its answers into private memory.

A world is opened once per call, as kernels do. The kernel is compiled up to PTX for a GPU that is not there.
"""

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
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
from nanokv.device.segment.world_table import World, open_world
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


CALLS = core.constexpr(file_digest(__file__))  # Triton's cache key does not see builtins (`memory.warps`)


def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a parameter that is a named tuple of words, by its annotation; a word and a world have none."""
    return () if kind is World else getattr(kind, "_fields", ())


@core.builtin
def _arguments(source: Any, words: Any, function: Any, _semantic: Any = None) -> Any:
    """The arguments that a function takes, made of words: some are named tuples of them. `source`: CALLS."""
    raw, left, arguments = function.value.fn, iter(words.values), []
    for name in function.value.arg_names:
        fields = _fields(raw.__annotations__.get(name))
        values = list(islice(left, len(fields) or 1))
        types = core.tuple_type([each.type for each in values], fields)
        arguments.append(core.tuple(values, types) if fields else values[0])
    return core.tuple(arguments)


@core.builtin
def _answers(source: Any, answer: Any, _semantic: Any = None) -> Any:
    """The words that a function has answered with, also those of tuples in a tuple. `source`: CALLS."""
    return core.tuple(list(_flat(answer)))


def _flat(answer: Any) -> Iterator[Any]:
    if isinstance(answer, core.tuple):
        for each in answer.values:
            yield from _flat(each)
    elif getattr(answer, "value", answer) is not None:
        yield answer


@triton.jit
def call_one(out: tl.int64, words: tl.tuple, function: tl.constexpr, opens: tl.constexpr) -> None:
    """Call a function with some words. `out`: room for the number of its answers, and for them."""
    arguments = _arguments(CALLS, words, function)
    if opens:  # noqa: SIM108 - decided while it is compiled
        answer = function(open_world(arguments[0]), *arguments[1:])
    else:
        answer = function(*arguments)
    answers = _answers(CALLS, answer)
    store64(out, word(len(answers)), "relaxed")
    for i in tl.static_range(len(answers)):
        store64(out + (i + 1) * WORD_BYTES, word(answers[i]), "relaxed")


def compiled(function: Any, target: str) -> CompiledCall:
    """A call of a device function of words, and of named tuples of words; the first is a world if it is named so."""
    names = function.arg_names
    count = sum(len(_fields(function.fn.__annotations__.get(name))) or 1 for name in names)
    types: dict[str, Any] = {"out": "i64", "words": ("i64",) * count, "function": "constexpr", "opens": "constexpr"}
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

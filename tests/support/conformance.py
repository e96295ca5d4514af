"""Runs every protocol function on random segments twice, natively and in Triton's interpreter, and compares all bytes.

    TRITON_INTERPRET=1 python -m tests.support.conformance --modules freelist,extent --rounds 10 --seed 7

A round takes a segment after a random history of operations, changes a few words in half of the cases (lists, links,
headers, entries, as in a corrupted segment), draws arguments that are mostly valid, and calls one function on two
copies. Results and every byte must agree. The first call that differs is printed with the arguments that repeat it.
"""

import argparse
import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import triton
import triton.language as tl

import tests.support.loaded  # noqa: F401 - for the stamps of tests
from nanokv.device.kernels.frame import FIRST_ANSWER, FRAME_WORDS, answer, arg
from nanokv.device.machines.native_code import native_function
from nanokv.device.machines.native_compiler import CPU_VOCABULARY
from nanokv.device.memory import native as memory_native
from nanokv.device.memory.retarget import retarget
from nanokv.device.segment.world_table import World, open_world
from tests.support.random_state import ARGUMENTS, Address, Draw, Memory, corrupt, history

MODULES = (
    *("freelist", "extent", "header", "directory", "claim", "ring", "activity"),
    *(
        "checksum",
        "pins",
        "retire",
        "evict",
        "put",
        "get",
        "remove",
        "replicate",
        "put_copied",
        "reclaim",
        "host_alloc",
        "host_calls",
    ),
)


@triton.jit
def call_kernel(frame: tl.int64, function: tl.constexpr, count: tl.constexpr) -> None:
    """Call a function with `count` words of the frame and write what it returns. Only for the interpreter."""
    words = iter([arg(frame, i) for i in range(1, count + 1)])
    for i, value in enumerate(flat(function(*[taken(kind, words) for kind in kinds(function)]))):
        answer(frame, i, value)


def kinds(function: Any) -> list[Any]:
    """What a function takes: the annotation of each parameter."""
    return [function.fn.__annotations__[name] for name in inspect.signature(function.fn).parameters]


def words_of(kind: Any) -> int:
    """How many words an argument is."""
    return len(kind._fields) if kind is not World and hasattr(kind, "_fields") else 1


def taken(kind: Any, words: Iterator[Any]) -> Any:
    """An argument for Triton's interpreter, made of words."""
    if kind is World:
        return open_world(next(words))
    return kind(*islice(words, words_of(kind))) if hasattr(kind, "_fields") else next(words)


def flat(answers: Any) -> Iterator[Any]:
    """The words of what a function returned."""
    if isinstance(answers, (tuple, tl.tuple)):
        for each in answers:
            yield from flat(each)
    elif answers is not None:
        yield answers


class Copy(Memory):
    """One copy of a world's memory, and the two ways to call functions on it."""

    def native(self, function: Callable[..., Any], args: list[int | Address]) -> list[int | Address]:
        return [self.named(int(word)) for word in flat(function(*[self.resolved(a) for a in args]))]

    def interpreted(self, function: Any, args: list[int | Address], returned: int) -> list[int | Address]:
        frame = np.zeros(FRAME_WORDS, np.int64)
        frame[1 : len(args) + 1] = [self.resolved(a) for a in args]
        call_kernel[(1,)](int(frame.ctypes.data), function, len(args))
        return [self.named(int(r)) for r in frame[FIRST_ANSWER : FIRST_ANSWER + returned]]


def functions(modules: tuple[str, ...]) -> dict[str, Any]:
    """The public device functions of some modules, by name."""
    found = {}
    for name in modules:
        module = importlib.import_module(f"nanokv.device.protocol.{name}")
        for value in vars(module).values():
            if hasattr(value, "fn") and value.fn.__module__ == module.__name__:
                found[value.fn.__name__] = value
    return found


class Runner:
    """Two copies, the functions, and the rounds."""

    def __init__(self, planted: dict[str, Any] | None) -> None:
        self.one, self.two, self.origin = Copy(), Copy(), Memory()
        self._done: dict[Any, Any] = {}
        self._planted = planted

    def _native(self, function: Any) -> Callable[..., Any]:
        if self._planted is None:
            return native_function(function)
        planted = retarget(function, CPU_VOCABULARY | self._planted, lambda f: numba.njit(f, nogil=True), self._done)

        def call(*arguments: int) -> Any:
            words = iter(arguments)
            return planted(*[next(words) if words_of(kind) == 1 else taken(kind, words) for kind in kinds(function)])

        return call

    def round(self, name: str, function: Any, seed: int) -> str | None:
        """One comparison; None, or the difference."""
        rng = random.Random(f"{name}:{seed}")
        history(rng, self.origin)
        if rng.random() < 0.5:
            corrupt(rng, self.origin)
        draw = Draw(name, rng, self.origin)
        args = [getattr(draw, kind)() for kind in ARGUMENTS[name].split()]
        self.one.bytes[:] = self.origin.bytes
        self.two.bytes[:] = self.origin.bytes
        native = self.one.native(self._native(function), args)
        other = self.two.interpreted(function, args, len(native))
        if native != other:
            return f"{name}{args}: native {native}, interpreted {other}"
        differ: npt.NDArray[Any] = np.flatnonzero(self.one.bytes != self.two.bytes)
        return f"{name}{args}: bytes differ at {differ[:8].tolist()} of the copy" if len(differ) else None


@numba.njit
def swapped_select(condition: Any, yes: Any, no: Any) -> Any:
    """A planted bug."""
    return no if condition else yes


PLANTED = {"select": swapped_select, "add64": memory_native.xchg64}


def main() -> int:
    """Compare; 0 if all agree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", default=",".join(MODULES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--plant", action="store_true", help="plant bugs in the native vocabulary: they must be found")
    chosen = parser.parse_args()
    modules = tuple(chosen.modules.split(","))
    found = functions(modules)
    known = {name: len(drawn.split()) for name, drawn in ARGUMENTS.items()}
    wrong = [name for name, function in found.items() if known.get(name) != sum(map(words_of, kinds(function)))]
    if wrong:
        print(f"ARGUMENTS in tests/support/random_state.py does not say what {sorted(wrong)} take")
        return 2
    runner = Runner(PLANTED if chosen.plant else None)
    compared = 0
    for seed in range(chosen.seed, chosen.seed + chosen.rounds):
        for name, function in found.items():
            if chosen.only in (None, name):
                why = runner.round(name, function, seed)
                compared += 1
                if why:
                    print(f"DIFFERS (--modules {chosen.modules} --only {name} --seed {seed} --rounds 1): {why}")
                    return 1
    print(f"compared {compared} calls of {len(found)} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())

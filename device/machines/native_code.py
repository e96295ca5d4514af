"""Protocol functions compiled natively by numba: a call from Python takes about a microsecond.

The first process that needs them compiles them (10 to 20 s), says so, and leaves the code in the `code_cache`. What
every rank calls is compiled when its machine is made; the rest (`Entry.rare`) when it is first called.
"""

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numba
from numba import int64

import nanokv.device.segment.native_world  # noqa: F401 - what protocol functions read of a world
from nanokv.device.machines.code_cache import CodeCache, function_digest
from nanokv.device.machines.compile_progress import compile_progress
from nanokv.device.machines.native_entries import NATIVE_ENTRIES
from nanokv.device.memory import native as memory_native
from nanokv.device.memory.native_copy import copy_out
from nanokv.device.memory.retarget import retarget
from nanokv.device.memory.triton import VOCABULARY
from nanokv.device.protocol.get import read

CPU_VOCABULARY = {name: getattr(memory_native, name) for name in VOCABULARY}

# Protocol functions hold only words: nothing counts references, and only the outermost is called from Python. Without
# these options compiling takes twice as long (33 and 17 s).
_INNER = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False, "no_rewrites": True}
_OUTER = {"nogil": True, "no_cfunc_wrapper": True, "_nrt": False, "no_rewrites": True}

_compiling = threading.RLock()  # two threads need not compile the same function
_alive: list[Any] = []  # numba frees code whose compile result is gone


class _Source:
    """One device function of int64 arguments: loaded from the cache, or compiled."""

    def __init__(
        self, function: Any, arguments: int, vocabulary: Mapping[str, Any], done: dict[Any, Any], variant: str = ""
    ) -> None:
        inner = retargeted(function, vocabulary, done)
        self._plain, self._signature = inner.py_func, (int64,) * arguments
        self._cache = CodeCache(self._plain, function_digest(function), variant)

    def load(self) -> Callable[..., Any] | None:
        """The function if the cache has it."""
        result = self._cache.load(self._signature)
        return None if result is None else _callable(result)

    def compile(self) -> Callable[..., Any]:
        """Compile and keep it."""
        dispatcher = numba.njit(self._signature, **_OUTER)(self._plain)
        (result,) = dispatcher.overloads.values()
        self._cache.keep(self._signature, result)
        return _callable(result)


def retargeted(function: Any, vocabulary: Mapping[str, Any], done: dict[Any, Any]) -> Any:
    """`function` for this CPU. Only `read` copies out of a segment; what others copy goes into one."""

    def wrap(plain: Callable[..., Any]) -> Any:
        return numba.njit(plain, **_INNER)

    retarget(read, {**vocabulary, "copy_bytes": copy_out}, wrap, done)
    return retarget(function, vocabulary, wrap, done)


def _callable(result: Any) -> Callable[..., Any]:
    """The compiled code itself, past numba's choice among signatures: there is only one, and choosing costs 0.3 µs."""
    _alive.append(result)
    called: Callable[..., Any] = result.entry_point
    return called


def native_function(
    function: Any,
    arguments: int,
    done: dict[Any, Any] | None = None,
    *,
    vocabulary: Mapping[str, Any] = CPU_VOCABULARY,
    variant: str = "",
) -> Callable[..., Any]:
    """One device function of int64 arguments, compiled for this CPU and kept on disk.

    Args:
        done: see `retarget`: several calls that share it share the functions that they call.
        vocabulary: another one than the CPU's needs a `variant` of its own, the name of its folder in the cache.
    """
    with _compiling:
        source = _Source(function, arguments, vocabulary, {} if done is None else done, variant)
        return source.load() or source.compile()


class Code(dict[str, Callable[..., Any]]):
    """Each of `NATIVE_ENTRIES` as a Python callable; loaded or compiled when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._done: dict[Any, Any] = {}
        self._sources: dict[str, _Source] = {}

    def load(self, name: str) -> bool:
        """Load an entry from the cache. False: it is not there."""
        with _compiling:
            if name not in self:
                code = self._source(name).load()
                if code is not None:
                    self[name] = code
            return name in self

    def require(self, names: list[str]) -> None:
        """Load entries; compile those that the cache does not have, and say so if that takes long."""
        with _compiling:
            missing = [name for name in names if not self.load(name)]
            if missing:
                with compile_progress([NATIVE_ENTRIES[name].function for name in missing]):
                    self.update({name: self._source(name).compile() for name in missing})

    def __missing__(self, name: str) -> Callable[..., Any]:
        self.require([name])
        return self[name]

    def _source(self, name: str) -> _Source:
        if name not in self._sources:
            entry = NATIVE_ENTRIES[name]
            self._sources[name] = _Source(entry.function, entry.arguments, CPU_VOCABULARY, self._done)
        return self._sources[name]


@cache
def code() -> Code:
    """The code of this process."""
    return Code()


def compiled(*, rare: bool = False) -> Code:
    """The entries that every rank calls; compiled once per version and user, loaded once per process.

    Args:
        rare: those too that most ranks never call (v1's, repairs after a death): else they come when they are called.
    """
    code().require([name for name, entry in NATIVE_ENTRIES.items() if rare or not entry.rare])
    return code()

"""Protocol functions as native code: a call from Python takes a fraction of a microsecond.

The first process that needs them compiles them (20 to 30 s), says so, and leaves the code in the `code_cache`; others
load it in some milliseconds, without numba. What every rank calls is one file, loaded or compiled when its machine is
made; the rest (`NativeEntry.rare`) has a file for each, when it is first called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanokv.device.machines.code_cache import CodeFile
    from nanokv.device.machines.entries import NativeEntry
    from nanokv.device.machines.native_library import ObjectCode

_COMMON = "common"  # the file of what every rank calls
_FABRIC = "fabric"  # the file of what a reader on another host calls
_WIRE = "wire"  # the file of what a process calls that exchanges objects over sockets
_GPU = "gpu"  # the file of what the poller of a segment on a GPU calls
_compiling = threading.RLock()  # two threads need not compile the same function
_done: dict[str, dict[Any, Any]] = {}  # by variant, the functions that this process has compiled: see `retarget`

NativeFunction = Callable[..., Any]


def native_function(
    function: Any,
    *,
    vocabulary: Mapping[str, Any] | None = None,
    variant: str = "",
) -> NativeFunction:
    """One device function of words, and of named tuples of words, compiled for this CPU and kept on disk.

    Args:
        vocabulary: another one than the CPU's needs a `variant` of its own, the name of its folder in the cache.
    """
    from nanokv.device.machines.code_cache import CodeFile, function_digest

    with _compiling:
        raw = function.fn
        name = f"{raw.__module__}.{raw.__qualname__}".replace("<", "").replace(">", "")
        file = CodeFile(name, function_digest(function), variant)
        code = file.load()
        if code is None:
            from nanokv.device.machines.native_compiler import CPU_VOCABULARY, Callee, compile_functions

            functions = {raw.__name__: Callee(function)}
            code = compile_functions(functions, _done.setdefault(variant, {}), vocabulary or CPU_VOCABULARY)
            file.keep(code)
        return code.load()[raw.__name__]


class CompiledEntries(dict[str, NativeFunction]):
    """Each function of a table of `native_entries` as a Python callable; loaded or compiled when it is asked for.

    Args:
        common: the file of those that are not rare.
        entries: the table, `NATIVE_ENTRIES` by default. It brings numba: only code that is compiled needs it.
    """

    def __init__(self, common: str = _COMMON, entries: Callable[[], Mapping[str, NativeEntry]] | None = None) -> None:
        super().__init__()
        self._common = common
        self._entries = entries or _entries
        self._files: set[str] = set()  # of the cache, that are loaded

    def load(self, name: str) -> bool:
        """Load an entry from the cache. False: it is not there."""
        with _compiling:
            return name in self or (self._load(self._common) and name in self) or self._load(name)

    def require_common(self) -> None:
        """Load what every rank calls, or compile it, and say so if that takes long."""
        with _compiling:
            if not self._load(self._common):
                self._compile({self._common: self._common_names()})

    def require_all(self) -> None:
        """Load all entries, or compile them, and say so if that takes long."""
        with _compiling:
            missing = {} if self._load(self._common) else {self._common: self._common_names()}
            missing |= {name: [name] for name, entry in self._entries().items() if entry.rare and not self.load(name)}
            self._compile(missing)

    def __missing__(self, name: str) -> NativeFunction:
        with _compiling:
            if not self.load(name):
                self._compile({name: [name]} if self._entries()[name].rare else {self._common: self._common_names()})
        return self[name]

    def _load(self, file: str) -> bool:
        """Load a file of the cache, unless this process has; False: it is not there."""
        if file not in self._files:
            code = _file(file).load()
            if code is None:
                return False
            self._add(file, code)
        return True

    def _compile(self, files: dict[str, list[str]]) -> None:
        """Compile entries into files of the cache. `files`: the names of each file's entries."""
        from nanokv.device.machines.compile_progress import compile_progress
        from nanokv.device.machines.native_compiler import Callee, compile_functions

        entries = self._entries()
        with compile_progress([entries[name].function for names in files.values() for name in names]):
            for file, names in files.items():
                wanted = {name: entries[name] for name in names}
                functions = {name: Callee(entry.function, entry.objects, entry.whole) for name, entry in wanted.items()}
                code = compile_functions(functions, _done.setdefault("", {}))
                _file(file).keep(code)
                self._add(file, code)

    def _common_names(self) -> list[str]:
        return [name for name, entry in self._entries().items() if not entry.rare]

    def _add(self, file: str, code: ObjectCode) -> None:
        self.update(code.load())
        self._files.add(file)


def _file(name: str) -> CodeFile:
    """A file of the cache. A world needs it; `import nanokv.cache.cache` is spared LLVM's import, 20 ms."""
    from nanokv.device.machines.code_cache import CodeFile

    return CodeFile(name)


def _entries() -> dict[str, NativeEntry]:
    from nanokv.device.machines.native_entries import NATIVE_ENTRIES

    return NATIVE_ENTRIES


def _fabric_entries() -> dict[str, NativeEntry]:
    from nanokv.device.machines.native_entries import FABRIC_ENTRIES

    return FABRIC_ENTRIES


def _gpu_entries() -> dict[str, NativeEntry]:
    from nanokv.device.machines.native_entries import GPU_ENTRIES

    return GPU_ENTRIES


def _wire_entries() -> dict[str, NativeEntry]:
    from nanokv.device.machines.native_entries import WIRE_ENTRIES

    return WIRE_ENTRIES


@cache
def code() -> CompiledEntries:
    """The code of this process."""
    return CompiledEntries()


@cache
def fabric_code() -> CompiledEntries:
    """The code of a process that reads segments of other hosts."""
    return CompiledEntries(_FABRIC, _fabric_entries)


@cache
def wire_code() -> CompiledEntries:
    """The code of a process that exchanges objects with others over sockets."""
    return CompiledEntries(_WIRE, _wire_entries)


@cache
def gpu_code() -> CompiledEntries:
    """The code of a process whose segment lies on a GPU."""
    return CompiledEntries(_GPU, _gpu_entries)


def compiled(*, rare: bool = False) -> CompiledEntries:
    """The entries that every rank calls; compiled once per version and user, loaded once per process.

    Args:
        rare: those too that most ranks never call (v1's, repairs after a death): else they come when they are called.
    """
    if rare:
        code().require_all()
    else:
        code().require_common()
    return code()

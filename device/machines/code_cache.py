"""Compiled code on disk: a folder per digest of the sources, shared by all installs and processes of a user.

numba keys its own cache by the path and the file of the outermost function. Here the folder's name is a digest of every
file that is compiled, of the compilers and of the CPU; and each file states the digest of the functions that were
compiled as they were loaded, so that sources that change under a running process lend their digest to nothing. A second
clone of the same version therefore compiles nothing, and stale code is never loaded. Files are written beside their
place and renamed (by numba), so processes may write at the same time: they write the same.
"""

import hashlib
import logging
import os
import platform
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
import triton.language as tl
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.registry import cpu_target

from nanokv.errors import HeapUnavailable, InvalidArgument

DEVICE = Path(__file__).parents[1]
COMPILED_ROOMS = ("memory", "segment", "protocol", "native")  #: nothing else of `device/` is compiled for a CPU
VARIABLE = "NANOKV_CACHE_DIR"
_log = logging.getLogger("nanokv.code_cache")


def source_digest(device: Path = DEVICE) -> str:
    """A digest of everything that the code depends on: the files of COMPILED_ROOMS, the compilers and the CPU."""
    digest = hashlib.blake2b(digest_size=10)
    for room in COMPILED_ROOMS:
        for path in sorted((device / room).rglob("*.py")):
            digest.update(path.relative_to(device).as_posix().encode() + path.read_bytes())
    digest.update((device / "machines" / "native_code.py").read_bytes())  # the options of the compiler
    versions = (numba.__version__, llvmlite.__version__, np.__version__, platform.python_version())
    digest.update(repr((versions, cpu_target.target_context.codegen().magic_tuple())).encode())
    return digest.hexdigest()


def function_digest(function: Any) -> bytes:
    """A digest of a device function as it was loaded: bytecode and constants, its own and those of all it calls."""
    digest = hashlib.blake2b(digest_size=16)
    seen = set()

    def add(raw: Any) -> None:
        seen.add(raw)
        code = raw.__code__
        digest.update(repr((raw.__module__, code.co_qualname, code.co_code, code.co_consts, code.co_names)).encode())
        for name in code.co_names:
            value = raw.__globals__.get(name)
            if isinstance(value, tl.constexpr):
                digest.update(repr(value.value).encode())
            elif hasattr(value, "fn") and value.fn not in seen:
                add(value.fn)

    add(function.fn)
    return digest.digest()


@cache
def _digest() -> str:
    return source_digest()


def _roots() -> list[Path]:
    """Where the folder may be, the best first."""
    named = os.environ.get(VARIABLE)
    if named:
        return [Path(named) / "nanokv"]
    home = os.environ.get("XDG_CACHE_HOME")
    # other users can write to the temporary folder: ours there is named for the user, and must belong to them
    shared = Path(tempfile.gettempdir()) / f"nanokv-{os.getuid() if hasattr(os, 'getuid') else 'code'}"
    return [(Path(home) if home else Path("~/.cache").expanduser()) / "nanokv", shared]


def cache_directory() -> Path:
    """The folder of the compiled code, made if it is not there: the first that can be written, else be read.

    Raises:
        InvalidArgument: NANOKV_CACHE_DIR names a folder that can neither be made nor read.
        HeapUnavailable: it names none, and no other folder can be made.
    """
    why = []
    readable = []
    for root in _roots():
        path = root / _digest()
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(exist_ok=True)
            if hasattr(os, "getuid") and root.stat().st_uid not in {os.getuid(), 0} and not os.environ.get(VARIABLE):
                raise PermissionError(f"{root} belongs to another user")
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            why.append(f"{root}: {error.strerror or error}")
            readable += [path] if path.is_dir() and os.environ.get(VARIABLE) else []
            continue
        return path
    if readable:
        return readable[0]
    text = f"no folder for compiled code ({'; '.join(why)}); set {VARIABLE} to one that can be written"
    raise InvalidArgument(text) if os.environ.get(VARIABLE) else HeapUnavailable(text)


class _Place:
    """numba's locator of one function's files."""

    def __init__(self, folder: Path, stamp: bytes, function: Any) -> None:
        self._folder, self._stamp = folder, stamp
        self._py_file = function.__code__.co_filename

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> bytes:
        return self._stamp

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(exist_ok=True)


def _implementation(folder: Path, stamp: bytes) -> type[CompileResultCacheImpl]:
    class Implementation(CompileResultCacheImpl):  # type: ignore[misc]
        def __init__(self, function: Any) -> None:
            self._lineno = function.__code__.co_firstlineno
            self._locator = _Place(folder, stamp, function)
            name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
            self._filename_base = name

    return Implementation


class CodeCache(FunctionCache):  # type: ignore[misc]
    """The file of one compiled function.

    Args:
        function: the plain Python function that numba compiles.
        stamp: `function_digest` of the device function that it was made from.
        variant: code of the same functions over another vocabulary has a folder of its own.
    """

    def __init__(self, function: Any, stamp: bytes, variant: str = "") -> None:
        self.folder = cache_directory() / variant
        self._impl_class = _implementation(self.folder, stamp)
        super().__init__(function)

    def load(self, signature: Any) -> Any | None:
        """The compiled function, or None if it has to be compiled."""
        try:
            return self.load_overload(signature, cpu_target.target_context)
        except Exception as error:  # unpickling a damaged file may raise anything
            _log.warning("compiled code in %s is damaged, and compiled again: %r", self.folder, error)
            return None

    def keep(self, signature: Any, result: Any) -> None:
        """Write the compiled function. If that fails, the code works in this process only, with a warning."""
        try:
            self.save_overload(signature, result)
        except OSError as error:
            _warn_once(
                f"compiled code cannot be kept in {self.folder} ({error}): each process compiles; set {VARIABLE}"
            )


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)

"""Protocol functions compiled natively by numba: a call from Python takes about a microsecond.

The first process that needs them compiles them (some tens of seconds) and leaves the code in a cache directory:
`NANOKV_CACHE_DIR`, else the user's cache directory, else the temporary one. numba keys its cache only by the file of
the outermost function; here the directory's name is a digest of every file that is compiled and of the versions of the
compilers, so that stale code is never loaded.
"""

import hashlib
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import int64

from nanokv.device.machines.entries import ENTRIES
from nanokv.device.memory import native as memory_native
from nanokv.device.memory.retarget import retarget
from nanokv.device.memory.triton import VOCABULARY

DEVICE = Path(__file__).parents[1]
COMPILED_ROOMS = ("memory", "segment", "protocol")  #: nothing else of `device/` is compiled for a CPU


def source_digest(device: Path = DEVICE) -> str:
    """A digest of everything that the compiled code depends on: the files of COMPILED_ROOMS and the compilers."""
    digest = hashlib.blake2b(digest_size=10)
    for room in COMPILED_ROOMS:
        for path in sorted((device / room).rglob("*.py")):
            digest.update(path.relative_to(device).as_posix().encode() + path.read_bytes())
    for version in (
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        platform.python_version(),
        platform.machine(),
    ):
        digest.update(version.encode())
    return digest.hexdigest()


def cache_directory() -> Path:
    """The folder of the compiled code: the first candidate that can be written.

    Raises:
        OSError: none can be written.
    """
    named = os.environ.get("NANOKV_CACHE_DIR")
    if named:
        roots = [Path(named)]
    else:
        home = os.environ.get("XDG_CACHE_HOME")
        roots = [Path(home) if home else Path("~/.cache").expanduser(), Path(tempfile.gettempdir())]
    for root in roots:
        path = root / "nanokv" / source_digest()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(path, os.W_OK):
            return path
    raise OSError(f"no writable directory for compiled code among {[str(r) for r in roots]}; set NANOKV_CACHE_DIR")


_compiling = threading.RLock()  # numba's cache directory is global; and two threads need not compile the same function


def native_function(function: Any, arguments: int, done: dict[Any, Any] | None = None) -> Any:
    """One device function of int64 arguments, compiled for this CPU and cached on disk."""
    vocabulary = {name: getattr(memory_native, name) for name in VOCABULARY}
    with _compiling:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(cache_directory())
        try:
            inner = retarget(function, vocabulary, lambda f: numba.njit(f, nogil=True), done)
            return numba.njit((int64,) * arguments, nogil=True, cache=True)(inner.py_func)
        finally:
            numba.config.CACHE_DIR = before


def compiled() -> dict[str, Callable[..., Any]]:
    """Each of `entries.ENTRIES` as a Python callable; compiled once per machine, loaded once per process."""
    with _compiling:
        return _compiled()


@cache
def _compiled() -> dict[str, Callable[..., Any]]:
    done: dict[Any, Any] = {}
    return {name: _direct(native_function(each.function, each.arguments, done)) for name, each in ENTRIES.items()}


def _direct(function: Any) -> Callable[..., Any]:
    """The compiled code itself, past numba's choice among signatures: there is only one, and choosing costs 0.3 µs."""
    (only,) = function.overloads.values()
    called: Callable[..., Any] = only.entry_point
    return called

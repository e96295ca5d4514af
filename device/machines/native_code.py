"""The CPU machine: the protocol functions, compiled natively by numba, as calls of about a microsecond from Python.

The first process that needs them compiles them (some tens of seconds) and leaves the code in a cache directory:
`NANOKV_CACHE_DIR`, else the user's cache directory, else the temporary one. numba keys its cache by the file of the
outermost function alone; here the directory's name is a digest of every file of the protocol and of the versions of the
compilers, so that a change anywhere is seen.
"""

import hashlib
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
import numpy as np
from numba import int64

from nanokv.device.memory import native as memory_native
from nanokv.device.memory.retarget import retarget
from nanokv.device.memory.triton import VOCABULARY
from nanokv.device.protocol import activity, directory, get, header, pins, put, reclaim, remove, ring

DEVICE = Path(__file__).parents[1]
COMPILED_ROOMS = ("memory", "segment", "protocol")  #: of `device/`: nothing else of it is compiled for a CPU

# entry point -> (device function, number of arguments); all arguments are 64-bit integers
ENTRIES: dict[str, tuple[Any, int]] = {
    "begin": (put.begin, 7),
    "describe": (header.describe, 11),
    "seal_payload": (put.seal_payload, 16),
    "finish": (put.finish, 5),
    "commit": (put.commit, 4),
    "abort": (put.abort, 4),
    "enter": (activity.enter, 2),
    "leave": (activity.leave, 3),
    "put": (put.put, 15),
    "lookup": (get.lookup, 3),
    "lookup_described": (get.lookup_described, 3),
    "read": (get.read, 10),
    "verify": (get.verify, 8),
    "get": (get.get, 6),
    "validate": (get.validate, 4),
    "touch": (get.touch, 4),
    "find": (directory.find, 3),
    "remove": (remove.remove, 3),
    "remove_slot": (remove.remove_slot, 4),
    "pin": (pins.pin, 4),
    "unpin": (pins.unpin, 5),
    "asleep": (ring.asleep, 1),
    "drain": (ring.drain, 5),
    "snapshots": (reclaim.snapshots, 6),
    "give_up": (reclaim.give_up, 5),
    "release": (reclaim.release, 4),
    "adopt_slot": (reclaim.adopt_slot, 3),
    "joining": (reclaim.joining, 3),
    "detach_rest": (reclaim.detach_rest, 2),
    "detach_class": (reclaim.detach_class, 4),
    "push_extents": (reclaim.push_extents, 5),
    "walk_pages": (reclaim.walk_pages, 5),
    "walk_slots": (reclaim.walk_slots, 4),
    "in_flight": (activity.in_flight, 3),
    "install": (reclaim.install, 9),
    "state_of": (reclaim.state_of, 3),
    "kill_slot": (reclaim.kill_slot, 5),
    "announce_slot": (reclaim.announce_slot, 5),
    "drop_pin": (reclaim.drop_pin, 5),
    "clear_intent": (reclaim.clear_intent, 4),
    "recount": (pins.recount, 4),
}


def source_digest(device: Path = DEVICE) -> str:
    """A digest of all that the compiled code depends on: the rooms that it is compiled from, and the compilers."""
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
    """Where the compiled code lies: the first of the candidates that can be written."""
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


class Compiled(NamedTuple):
    """The protocol functions as Python callables. See the functions of the same names in `device/`."""

    begin: Callable[..., Any]
    describe: Callable[..., Any]
    seal_payload: Callable[..., Any]
    finish: Callable[..., Any]
    commit: Callable[..., Any]
    abort: Callable[..., Any]
    enter: Callable[..., Any]
    leave: Callable[..., Any]
    put: Callable[..., Any]
    lookup: Callable[..., Any]
    lookup_described: Callable[..., Any]
    read: Callable[..., Any]
    verify: Callable[..., Any]
    get: Callable[..., Any]
    validate: Callable[..., Any]
    touch: Callable[..., Any]
    find: Callable[..., Any]
    remove: Callable[..., Any]
    remove_slot: Callable[..., Any]
    pin: Callable[..., Any]
    unpin: Callable[..., Any]
    asleep: Callable[..., Any]
    drain: Callable[..., Any]
    snapshots: Callable[..., Any]
    give_up: Callable[..., Any]
    release: Callable[..., Any]
    adopt_slot: Callable[..., Any]
    joining: Callable[..., Any]
    detach_rest: Callable[..., Any]
    detach_class: Callable[..., Any]
    push_extents: Callable[..., Any]
    walk_pages: Callable[..., Any]
    walk_slots: Callable[..., Any]
    in_flight: Callable[..., Any]
    install: Callable[..., Any]
    state_of: Callable[..., Any]
    kill_slot: Callable[..., Any]
    announce_slot: Callable[..., Any]
    drop_pin: Callable[..., Any]
    clear_intent: Callable[..., Any]
    recount: Callable[..., Any]


_compiling = threading.RLock()  # numba's cache directory is a global, and two threads need not compile the same


def native_function(function: Any, arguments: int, done: dict[Any, Any] | None = None) -> Any:
    """One device function, compiled for this CPU, and cached on disk."""
    vocabulary = {name: getattr(memory_native, name) for name in VOCABULARY}
    with _compiling:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(cache_directory())
        try:
            inner = retarget(function, vocabulary, lambda f: numba.njit(f, nogil=True), done)
            return numba.njit((int64,) * arguments, nogil=True, cache=True)(inner.py_func)
        finally:
            numba.config.CACHE_DIR = before


def compiled() -> Compiled:
    """All entry points; compiled once a machine, loaded once a process."""
    with _compiling:
        return _compiled()


@cache
def _compiled() -> Compiled:
    done: dict[Any, Any] = {}
    return Compiled(**{name: native_function(function, n, done) for name, (function, n) in ENTRIES.items()})

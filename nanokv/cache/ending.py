"""The end of a cache: by `close`, when nothing refers to it any more, and in a child of a fork.

The threads of a cache refer to its parts, never to the cache, so a cache that was dropped without `close` is collected
and its parts are closed. They are closed by a thread of their own: what drops a cache may be the garbage collector, in
a thread that holds any lock.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NoReturn, Protocol

from nanokv.errors import Forked, NanoKVError
from nanokv.heap.base import Heap


class Gone:
    """Stands in for a part of a cache that cannot be used any more: every use raises.

    Calls that were under way in other threads have the part itself, which lives until they end.
    """

    def __init__(self, error: Callable[[], NanoKVError]) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error()

    def __call__(self, *args: object) -> NoReturn:
        raise self._error()

    def __getitem__(self, index: object) -> NoReturn:
        raise self._error()


class OwnedCache(Protocol):
    """A cache, as this module sees it."""

    def disown(self, process: int) -> None:
        """Give up, in a child of a fork, a cache that belongs to its parent, `process`."""
        ...


def end_when_dropped(cache: OwnedCache, ends: ExitStack, heap: Heap) -> "weakref.finalize[..., OwnedCache]":
    """Close `ends` when the cache is dropped, and disown it in children of a fork. `detach` ends the first."""
    end = weakref.finalize(cache, _drop, ends, heap, os.getpid())
    end.atexit = False  # the heap leaves its world by itself at the end of the process
    _made[cache] = os.getpid()
    return end


def refuse_fork(process: int) -> None:
    """Raise Forked unless this is `process`, the one that made what is asked for."""
    if os.getpid() != process:
        raise forked(process)


def disown(part: object, process: int) -> None:
    """Let every use of a part raise Forked, whoever refers to it."""
    attributes = vars(part)
    attributes.update(dict.fromkeys(attributes, Gone(partial(forked, process))))


def forked(process: int) -> Forked:
    """The error of a cache that a child inherited from its parent, `process`."""
    return Forked(
        f"this cache was made in process {process}, of which this one ({os.getpid()}) is a fork: attach by name, as a "
        "rank of its own, in the child"
    )


def _drop(ends: ExitStack, heap: Heap, process: int) -> None:
    if os.getpid() != process:
        return
    threading.Thread(target=ends.close, name=f"nanokv-closing-{heap.rank}").start()
    warnings.warn(f"rank {heap.rank} of world {heap.name!r} was dropped without close", ResourceWarning, stacklevel=2)


_made: "weakref.WeakKeyDictionary[OwnedCache, int]" = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    for cache, process in list(_made.items()):
        cache.disown(process)


os.register_at_fork(after_in_child=_after_fork)

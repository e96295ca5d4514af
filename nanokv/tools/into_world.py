"""`nanokv load`: a file into a world of processes whose ranks are all dead, or into a new one.

A world that lives takes objects from its ranks only: each operation is counted under a rank's name, and comes to an end
with that rank's process. A tool has no such name. So it becomes all ranks of a world that has none, loads, and leaves
as a crash would: the memory stays, and the ranks that come take it over (`on_stale="recover"`).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from nanokv.arguments import integer
from nanokv.cache.cache import NanoKVCache
from nanokv.device.segment.layout import MAX_RANKS
from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.process_heap import ProcessHeap
from nanokv.heap.shm_tools import inspect, list_worlds
from nanokv.saved.load import load
from nanokv.saved.reading import open_saved
from nanokv.saved.save import Progress, no_progress
from nanokv.types import Loaded


def load_into(path: Path, name: str, progress: Progress = no_progress) -> tuple[Loaded, bool]:
    """Load a file into the world `name`: (what was done, whether the world is new).

    A new world is made as the one was that the file was saved from: its ranks, sizes and options.

    Raises:
        HeapUnavailable: a rank of that world is alive; or there is not enough memory for a new one.
        InvalidArgument, FileUnusable, SegmentCorrupt, OutOfMemory, ReuseViolation: as `NanoKVCache.load`. If an error
            comes while objects are put, a new world is removed; another one keeps what was put, beside what it had.
    """
    with open_saved(path) as file:  # before anything is made
        stated = {**file.options, "guests": None}  # of a new one: by default
    is_new = name not in list_worlds()
    ranks: list[int] | None = None
    if not is_new:
        info = inspect(name)
        if any(info.alive):
            raise HeapUnavailable(
                f"a rank of world {name!r} is alive, and only ranks can put: let one call cache.load({str(path)!r})"
            )
        stated = info.options
        ranks = [rank for rank, absent in enumerate(info.absent) if not absent]
    with ExitStack() as ends:
        caches = _attach_all(name, stated, ranks, ends, keep=not is_new)
        with open_saved(path) as file:
            loaded = load(file, caches[0].engine, None, progress)
        for cache in caches:
            cache.flush()
            _keep(cache, True)
    return loaded, is_new


def _keep(cache: NanoKVCache, keep: bool) -> None:
    """Let the world stay when this rank leaves, or go with its last rank."""
    assert isinstance(cache.engine.heap, ProcessHeap)
    cache.engine.heap.leaves_its_world = keep


def _attach_all(
    name: str, stated: Mapping[str, Any], ranks: Sequence[int] | None, ends: ExitStack, *, keep: bool
) -> list[NanoKVCache]:
    """Every rank of a world, in this process; of an elastic one only `ranks`, if any."""
    try:
        world_size = integer("world_size", stated.get("world_size"), 1, MAX_RANKS)
        asked: dict[str, Any] = {**stated, "name": name, "on_stale": "recover", "heap": "shm"}
        make = partial(NanoKVCache, **asked)
        signature(make).bind(rank=0)  # a size may be missing
    except (InvalidArgument, TypeError) as error:
        raise InvalidArgument(f"no world can be made of the options {dict(stated)!r}: {error}") from None

    def attach(rank: int) -> NanoKVCache:
        cache = make(rank=rank)
        _keep(cache, keep)
        ends.callback(cache.close)
        return cache

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(attach, ranks or range(world_size)))

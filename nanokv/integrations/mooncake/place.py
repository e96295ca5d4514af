"""The store that a master's address names, as a NanoKV world of this host: who is in it, and with which segments.

Clients that give the same address and tenant meet in one elastic world. No master has to run: clients allocate by
themselves, and each tells the name of its segment in an object of the world (`segment_key`).

The first client decides how large the segments are: all segments of a world are alike, in address space; memory they
take only as they are written. A later client that asks for another size gets the same, and a warning.
"""

import logging
import os
import random
import time
from typing import Any, NamedTuple

import torch
import xxhash

from nanokv.arguments import size as parsed_size
from nanokv.cache import NanoKVCache
from nanokv.device.segment.layout import SIZE_CLASSES
from nanokv.errors import HeapUnavailable, NanoKVError, RankTaken, SegmentCorrupt
from nanokv.heap.shm_tools import inspect

logger = logging.getLogger(__name__)

SEGMENT_VARIABLE = "NANOKV_MOONCAKE_SEGMENT"
RANKS_VARIABLE = "NANOKV_MOONCAKE_RANKS"
_DEFAULT_SEGMENT, _DEFAULT_RANKS = 1 << 30, 16
_LEAST_SEGMENT, _MOST_PAGES, _LEAST_PAGE = 1 << 20, 1 << 20, 4096
_BYTES_PER_OBJECT = 64 << 10  #: of address space; at least `_LEAST_OBJECTS`
_LEAST_OBJECTS = 16 << 10
_PORTS = (12300, 14300)
_TRIES = 8
_FRESH = 0.05  #: seconds for which the list of segments is believed
PRIVATE = b"\0nanokv:"  #: what the keys of the store's own objects begin with


class Asked(NamedTuple):
    """What a client asks for."""

    hostname: str
    master: str
    tenant: str
    segment: int  #: bytes; 0: no segment of its own


def segment_key(rank: int) -> bytes:
    """The key of the object that names a rank's segment."""
    return PRIVATE + b"segment:%d" % rank


def world_name(master: str) -> str:
    """The name of the world of a master's address."""
    return f"mooncake-{xxhash.xxh3_64_hexdigest(master.encode())}"


class Segments:
    """The segments of a store, by rank: those of living clients that gave one."""

    def __init__(self, world: NanoKVCache) -> None:
        self._world = world
        self._names: dict[int, str] = {}
        self._until = 0.0

    def names(self) -> dict[int, str]:
        """Per rank the name of its segment, at most `_FRESH` seconds old, or nearly."""
        now = time.monotonic()
        if now >= self._until:
            self._names = self._read()
            self._until = now + _FRESH
        return self._names

    def forget(self) -> None:
        """Read them anew the next time: a client has gone."""
        self._until = 0.0

    def rank_of(self, name: str) -> int | None:
        """The rank whose segment has a name."""
        return next((rank for rank, known in self.names().items() if known == name), None)

    def _read(self) -> dict[int, str]:
        found = {}
        for rank in self._world.members():
            told = self._world.get(segment_key(rank), None)
            if told is not None:
                found[rank] = told.numpy().tobytes().decode()
        return found

    def announce(self, name: str) -> None:
        """Tell the name of this rank's segment, in place of what an earlier process of this rank may have told."""
        key, told = segment_key(self._world.rank), torch.frombuffer(bytearray(name.encode()), dtype=torch.uint8)
        if key in self._world:
            self._world.remove(key)
        from nanokv.terms import Hold

        self._world.put(key, told, preferred_segment=self._world.rank, hold=Hold(priority="kept"))
        self.forget()

    def withdraw(self) -> None:
        """Take that back: nobody puts anything there any more."""
        key = segment_key(self._world.rank)
        if key in self._world:
            self._world.remove(key)
        self.forget()


def join(asked: Asked) -> NanoKVCache:
    """Join the world of a store, or make it.

    Raises:
        InvalidArgument: a variable of the environment is wrong.
        HeapUnavailable: no rank is free, or there is no shared memory.
    """
    name, error = world_name(asked.master), HeapUnavailable("not tried")
    for _ in range(_TRIES):
        try:
            return _attach(name, asked)
        except RankTaken:
            raise
        except HeapUnavailable as refused:  # another client has just made the world, with other sizes
            error = refused
    raise error


def _attach(name: str, asked: Asked) -> NanoKVCache:
    shape = _existing(name) or _planned(asked.segment)
    if asked.segment and asked.segment != shape["heap_bytes"]:
        logger.warning(
            "NanoKV: a segment of %d bytes was asked for, those of this store have %d: the first client decides, "
            "or the variable %s",
            asked.segment,
            shape["heap_bytes"],
            SEGMENT_VARIABLE,
        )
    common = shape | {
        "name": name,
        "namespace": "" if asked.tenant == "default" else asked.tenant,
        "elastic": True,
        "on_stale": "replace",
        "heap_options": {"lazy": True},
    }
    for rank in range(shape["world_size"]):
        try:
            return NanoKVCache(rank=rank, **common)
        except RankTaken:
            continue
    raise RankTaken(f"all {shape['world_size']} clients that store {name!r} can have are there: see {RANKS_VARIABLE}")


def _existing(name: str) -> dict[str, Any] | None:
    """The geometry that the living clients of a store have; None without one."""
    try:
        found = inspect(name)
    except (HeapUnavailable, SegmentCorrupt):
        return None
    if not any(found.alive):
        return None
    return {each: found.options[each] for each in (*_planned(0), "shards", "ring_slots")}


def _planned(segment: int) -> dict[str, Any]:
    """The geometry of a new store, for a client that wants so many bytes."""
    given = os.environ.get(SEGMENT_VARIABLE)
    nbytes = parsed_size(SEGMENT_VARIABLE, given) if given else segment or _DEFAULT_SEGMENT
    nbytes = max(nbytes, _LEAST_SEGMENT)
    page = _LEAST_PAGE
    while nbytes // page > _MOST_PAGES:
        page *= 2
    pages = nbytes // page
    return {
        "heap_bytes": pages * page,
        "page_bytes": page,
        "world_size": int(os.environ.get(RANKS_VARIABLE) or _DEFAULT_RANKS),
        "max_objects": max(nbytes // _BYTES_PER_OBJECT, _LEAST_OBJECTS),
        "size_classes": _size_classes(pages),
    }


def _size_classes(pages: int) -> list[int]:
    """Powers of two, and one page for what lies behind a value: values mostly have a power of two of bytes.

    The classes that are left lie between the largest ones, where half a run is most to lose.
    """
    powers = [1, *((1 << exponent) + 1 for exponent in range(SIZE_CLASSES) if (1 << exponent) < pages)]
    between = [3 * (power - 1) // 2 + 1 for power in powers[:1:-1]]
    found = {*powers, *between[: max(SIZE_CLASSES - len(powers) - 1, 0)], pages}
    return sorted(count for count in found if count <= pages)


def named(hostname: str, taken: list[str]) -> str:
    """The name of a client: its host and port. Without a port one of Mooncake's range that no other client has."""
    if ":" in hostname:
        return hostname
    ports = list(range(*_PORTS))
    random.shuffle(ports)
    return next(name for port in ports if (name := f"{hostname}:{port}") not in taken)


def leave(world: NanoKVCache, seconds: float) -> None:
    """Leave a store. What lies in this client's segment goes with it, as when a client of Mooncake leaves.

    Readers in other processes that hold objects there are waited for `seconds`; after that the segment stays.
    """
    try:
        world.leave("drop", timeout=seconds)
    except NanoKVError as error:
        logger.warning("NanoKV: the segment stays, because it is in use: %s", error)
        world.close()

"""The store that a master's address names, as a NanoKV world of this host: who is in it, and with which segments.

Clients that give the same address meet in one elastic world, in which each tenant has keys of its own. No master has to
run: clients allocate by themselves, and each tells the name of its segment in an object of the world, which all tenants
see and none can name (`Segments`).

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

from nanokv.allocation.terms import Hold, terms_of
from nanokv.arguments import size as parsed_size
from nanokv.cache.cache import NanoKVCache
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import SIZE_CLASSES
from nanokv.errors import HeapUnavailable, NanoKVError, RankTaken, SegmentCorrupt
from nanokv.heap.shm_tools import inspect, taken_by
from nanokv.heap.world_file import directory
from nanokv.keys.hashing import Hasher
from nanokv.types import KeyDigest

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
_NAMESPACE = "\0mooncake segments"  #: of the names of segments: no tenant can have a NUL


class Setup(NamedTuple):
    """What a client asks for."""

    hostname: str
    master: str
    tenant: str
    segment: int  #: bytes; 0: no segment of its own


def world_name(master: str) -> str:
    """The name of the world of a master's address."""
    return f"mooncake-{xxhash.xxh3_64_hexdigest(master.encode())}"


class Segments:
    """The segments of a store, by rank: those of living clients of any tenant that gave one."""

    def __init__(self, world: NanoKVCache) -> None:
        self._world = world
        self._hash = Hasher(_NAMESPACE)
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
            told = self._world.engine.single.get(self._key(rank))
            if isinstance(told, torch.Tensor):
                found[rank] = told.numpy().tobytes().decode()
        return found

    def _key(self, rank: int) -> KeyDigest:
        return self._hash(b"%d" % rank)

    def announce(self, name: str) -> None:
        """Tell the name of this rank's segment, in place of what an earlier process of this rank may have told.

        Raises:
            HeapUnavailable: the segment has no room for its name.
        """
        rank, told = self._world.rank, torch.frombuffer(bytearray(name.encode()), dtype=torch.uint8)
        self.withdraw()
        status = self._world.engine.single.put(
            self._key(rank), told, rank, terms_of(Hold(priority="kept"), self._hash.group)
        )
        if status:
            raise HeapUnavailable(f"the segment of {name!r} cannot be told: {Status(status).name}")
        self.forget()

    def withdraw(self) -> None:
        """Take that back: nobody puts anything there any more."""
        self._world.engine.allocation.remove(self._key(self._world.rank))
        self.forget()


def check_memory(world: NanoKVCache, segments: Segments) -> None:
    """Refuse one more segment for which the folder of worlds has no memory: who writes there would die of SIGBUS.

    Segments take memory as they are written, so what the others have still to take counts too.

    Raises:
        HeapUnavailable: there is too little.
    """
    at, geometry = world.engine.geometry.offsets, world.engine.geometry
    payload, rest = at["heap_limit"] - at["heap_base"], geometry.segment_bytes - (at["heap_limit"] - at["heap_base"])
    taken = max(taken_by(world.engine.heap.name) - geometry.world_size * rest, 0)
    folder = os.statvfs(directory())
    free, wanted = folder.f_bavail * folder.f_frsize, (len(segments.names()) + 1) * payload - taken
    if wanted > free:
        raise HeapUnavailable(
            f"{directory()} has {free} bytes left, and the segments of this store would take {wanted} more: take a "
            "smaller global_segment_size, or enlarge the folder (in a container --shm-size)"
        )


def join(setup: Setup) -> NanoKVCache:
    """Join the world of a store, or make it.

    Raises:
        InvalidArgument: a variable of the environment is wrong.
        HeapUnavailable: no rank is free, or there is no shared memory.
    """
    name, error = world_name(setup.master), HeapUnavailable("not tried")
    for _ in range(_TRIES):
        try:
            return _attach(name, setup)
        except RankTaken:
            raise
        except HeapUnavailable as refused:  # another client has just made the world, with other sizes
            error = refused
    raise error


def _attach(name: str, setup: Setup) -> NanoKVCache:
    shape = _existing(name) or _planned(setup.segment)
    if setup.segment and setup.segment != shape["heap_bytes"]:
        logger.warning(
            "NanoKV: a segment of %d bytes was asked for, those of this store have %d: the first client decides, "
            "or the variable %s",
            setup.segment,
            shape["heap_bytes"],
            SEGMENT_VARIABLE,
        )
    common = shape | {
        "name": name,
        "namespace": "" if setup.tenant == "default" else setup.tenant,
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

"""Where an object of a world lies, from the headers of its segments: for `nanokv key`."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nanokv.allocation.terms import PRIORITIES
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.last_access import is_leased, time_of
from nanokv.device.segment.layout import DEAD, FLAG_LABEL, key_checks, unpack
from nanokv.device.segment.views import SegmentView
from nanokv.dtypes import dtype_name
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.host_poller.index import key_of
from nanokv.keys.hashing import Hasher, shown_tag, tag_of
from nanokv.keys.identity import Identity

_PRIORITY_NAMES = {value: name for name, value in PRIORITIES.items()}
STATES = ("RESERVED", "WRITING", "READY", "DEAD")


@dataclass(frozen=True)
class FoundObject:
    """A header slot that has a key."""

    rank: int  #: whose segment holds the object
    identity: str  #: the tag of its identity (`nanokv.keys.identity`), hexadecimal; zeros: none
    slot: int
    state: str
    pins: int
    epoch: int
    bytes: int
    pages: int
    payload_off: int  #: bytes from the segment's base
    dtype: str | None  #: None: raw bytes
    shape: list[int] | None
    producer: int  #: the rank that wrote it
    idle_seconds: float  #: since the last put, get or touch
    priority: str  #: "low", "normal", "high" or "kept"
    leased: bool  #: until its first read, or its time is over
    seconds_left: float | None  #: until its owner removes it; None: it has no time to live

    def as_dict(self) -> dict[str, Any]:
        """The object as plain data."""
        return asdict(self)

    def lines(self, size: Callable[[int], str]) -> Iterator[tuple[str, str]]:
        """Labels and texts for people. `size`: bytes as text."""
        yield "identity", shown_tag(int(self.identity, 16))
        yield "where", f"rank {self.rank}, slot {self.slot}, payload at {self.payload_off:#x}"
        yield "state", f"{self.state}, pins: {self.pins}, epoch: {self.epoch}, written by rank {self.producer}"
        yield "size", f"{size(self.bytes)} ({self.bytes} bytes), pages: {self.pages}"
        yield "content", "raw bytes" if self.dtype is None else f"{self.dtype} {self.shape}"
        yield "last used", f"{self.idle_seconds:.1f} s ago"
        lease = ", leased until it is read" if self.leased else ""
        life = "" if self.seconds_left is None else f", removed in {self.seconds_left:.1f} s"
        yield "held", f"priority {self.priority}{lease}{life}"


def find_key(
    world: InspectedWorld, key: str, namespace: str = "", identity: Identity | None = None
) -> list[FoundObject]:
    """All header slots that have this key and are not free, by rank. While a key is replaced there may be two.

    Raises:
        InvalidArgument: the namespace cannot be one.
    """
    digest = np.array(Hasher(namespace, identity)(key), np.int64).view(np.uint64)
    found = []
    for rank, view in enumerate(world.views):
        headers = view.headers
        same = (headers["key_hash"] == digest[0]) & (key_checks(headers) == digest[1]) & (headers["epoch"] > 0)
        for slot in np.flatnonzero(same).tolist():
            each = _object(view, rank, slot)
            if each.state != STATES[DEAD.value] or each.pages:
                found.append(each)
    return found


def _object(view: SegmentView, rank: int, slot: int) -> FoundObject:
    header, descriptor, word = view.headers[slot].copy(), view.descriptors[slot].copy(), int(view.states[slot])
    producer, _ = producer_of(header["producer"])
    dtype, ndim = (int(unpack("FORMAT", name, int(descriptor["format"]))) for name in ("dtype", "ndim"))
    state = unpack("STATE", "state", word)
    now = now_ns()
    until = int(view.labels[slot]["until"]) if int(header["flags"]) & FLAG_LABEL.value else 0
    return FoundObject(
        rank=rank,
        identity=f"{tag_of(key_of(header)):08x}",
        slot=slot,
        state=STATES[state] if state < len(STATES) else str(state),
        pins=unpack("STATE", "pins", word),
        epoch=unpack("STATE", "epoch", word),
        bytes=int(header["bytes_total"]),
        pages=int(header["n_pages"]),
        payload_off=int(header["payload_base"]),
        dtype=dtype_name(dtype) if dtype else None,
        shape=descriptor["dims"][:ndim].tolist() if dtype else None,
        producer=int(producer),
        idle_seconds=max(now - int(time_of(header["last_access"])), 0) / 1e9,
        priority=_PRIORITY_NAMES[unpack("ACCESS", "priority", int(header["last_access"]))],
        leased=is_leased(int(header["last_access"]), now),
        seconds_left=(until - now) / 1e9 if until else None,
    )

"""What a member does when another one asks: the handlers of its server."""

import json
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from nanokv.allocation.generations import raise_to
from nanokv.cache.cache import NanoKVCache
from nanokv.cluster.generations import message, parse
from nanokv.cluster.kept import numbers_of
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.replies import Handler
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.pull_message import BadMessage
from nanokv.cluster.pulling import Puller
from nanokv.cluster.removal_message import MOST_REMOVED
from nanokv.cluster.uses import MOST_USES
from nanokv.device.machines.records import Place
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import EPOCH_MASK, OBJ_HEADER, WORD
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import Report, check_segments
from nanokv.heap.base import Heap
from nanokv.keys.digests import Digests

HEADERS_AT_ONCE = 16384  #: headers of one answer
_HEADERS = struct.Struct("<qq")  # a rank, and the first slot
QUICK = b"quick"  #: the body of a FSCK that leaves the checksums out
_DIGEST_WORDS, _USE_WORDS = 2, 3


def headers_question(rank: int, first: int) -> bytes:
    """The body of a HEADERS: the header arena of a rank, from a slot on."""
    return _HEADERS.pack(rank, first)


class Handlers:
    """The handlers of one member, for its world.

    Args:
        puller: of puts over a link; None: there is none.
        stats: what it tells of itself.
    """

    def __init__(self, world: NanoKVCache, puller: Puller | None, stats: Callable[[], Mapping[str, Any]]) -> None:
        engine = world.engine
        self._allocation, self._machine, self._geometry = engine.allocation, engine.machine, engine.geometry
        self._stats, self._heap = stats, engine.heap
        self._puller = puller
        self._checking: _InThread | None = None

    def handlers(self) -> Mapping[int, Handler]:
        """The handlers, by the kind of message."""
        pulls = {} if self._puller is None else {Kind.PULL: self._puller.handle, Kind.OVER: self._over}
        return pulls | {
            Kind.REMOVE: self._remove,
            Kind.USED: self._used,
            Kind.STATS: self._tell_stats,
            Kind.FSCK: self._fsck,
            Kind.GENERATION: self._generation,
            Kind.HEADERS: self._headers,
        }

    def _remove(self, sender: Sender, body: bytes) -> bytes:
        words = _words(body, _DIGEST_WORDS)
        if len(words) > MOST_REMOVED:
            raise BadMessage(f"a message has at most {MOST_REMOVED} keys, not {len(words)}")
        return self._allocation.remove_each(Digests.own(words)).tobytes()

    def _headers(self, sender: Sender, body: bytes) -> bytes:
        if len(body) != _HEADERS.size:
            raise BadMessage(f"{len(body)} bytes name no headers")
        rank, first = _HEADERS.unpack(body)
        if not (0 <= rank < self._geometry.world_size and 0 <= first <= self._geometry.hdr_count):
            raise BadMessage(f"rank {rank} has no header {first}")
        control = self._machine.control(rank)[0]
        used = min(int(control["hdr_head"]), self._geometry.hdr_count)
        count = max(min(HEADERS_AT_ONCE, used - first), 0)
        at = self._geometry.offsets["hdr_base"] + first * OBJ_HEADER.size
        words = self._machine.look(rank, at, np.dtype(np.int64), count * OBJ_HEADER.size // WORD)
        return np.int64(used).tobytes() + words.tobytes()

    def _over(self, sender: Sender, body: bytes) -> bytes:
        assert self._puller is not None
        return bytes(self._puller.over(sender, numbers_of(body)))

    def _used(self, sender: Sender, body: bytes) -> None:
        uses, now = _words(body, _USE_WORDS), now_ns()
        if len(uses) > MOST_USES:
            raise BadMessage(f"a message has at most {MOST_USES} uses, not {len(uses)}")
        most = np.array([self._geometry.world_size, self._geometry.hdr_count, EPOCH_MASK.value + 1])
        if ((uses < 0) | (uses >= most)).any():
            raise BadMessage("a use is of no rank, slot or epoch of this node")
        for use in uses.tolist():
            self._machine.touch(Place(*use), now)

    def _generation(self, sender: Sender, body: bytes) -> bytes:
        place, number = parse(body)
        return message(place, raise_to(self._machine, place, number))

    def _tell_stats(self, sender: Sender, body: bytes) -> bytes:
        return json.dumps(self._stats()).encode()

    def _fsck(self, sender: Sender, body: bytes) -> "_InThread":
        if body not in (b"", QUICK):
            raise BadMessage("a check is quick, or not")
        if self._checking is not None and not self._checking.is_done:
            raise BadMessage("a check is under way")
        self._checking = _InThread(lambda: json.dumps(self._check(body == QUICK).as_dict()).encode())
        return self._checking

    def _check(self, quick: bool) -> Report:
        heap = self._heap
        views = [SegmentView(_host_bytes(heap, rank), heap.geometry) for rank in range(heap.world_size)]
        return check_segments(views, mode="device", quiescent=None, alive=heap.alive, quick=quick)


class _InThread:
    """An answer that takes long: a `Pending`."""

    rest = 0.001

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._pool = ThreadPoolExecutor(1, "nanokv-cluster-fsck")
        self._future = self._pool.submit(work)
        self._pool.shutdown(wait=False)

    @property
    def is_done(self) -> bool:
        """Whether there is an answer."""
        return self._future.done()

    def poll(self) -> bytes | None:
        """The answer, once there is one."""
        return self._future.result() if self._future.done() else None

    def abandon(self) -> None:
        """Let it end for nobody."""


def _host_bytes(heap: Heap, rank: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    raw = heap.host_view(rank)
    found: np.ndarray[tuple[int], np.dtype[np.uint8]] = heap.segment(rank).cpu().numpy() if raw is None else raw
    return found


def _words(body: bytes, each: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    if len(body) % (each * WORD):
        raise BadMessage(f"{len(body)} bytes are no rows of {each} words")
    return np.frombuffer(body, np.int64).reshape(-1, each).copy()

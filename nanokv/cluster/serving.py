"""What a member does when another one asks: the handlers of its server."""

import json
import time
from collections.abc import Mapping

import numpy as np

from nanokv.cache import NanoKVCache
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.replies import Handler
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.pull_message import BadMessage
from nanokv.cluster.pulling import Puller
from nanokv.device.machines.records import Place
from nanokv.device.segment.layout import WORD
from nanokv.digests import Digests

_DIGEST_WORDS, _USE_WORDS = 2, 3


class Serving:
    """The handlers of one member, for its world."""

    def __init__(self, world: NanoKVCache, puller: Puller) -> None:
        self._allocation, self._machine, self._geometry = world._allocation, world._machine, world._geometry
        self._stats = world.stats
        self._puller = puller

    def handlers(self) -> Mapping[int, Handler]:
        """By the kind of message."""
        return {
            Kind.PULL: self._puller.handle,
            Kind.REMOVE: self._remove,
            Kind.USED: self._used,
            Kind.STATS: self._tell_stats,
        }

    def _remove(self, sender: Sender, body: bytes) -> bytes:
        words = _words(body, _DIGEST_WORDS)
        return self._allocation.remove_each(Digests.own(words)).tobytes()

    def _used(self, sender: Sender, body: bytes) -> None:
        now = time.time_ns()
        for rank, slot, epoch in _words(body, _USE_WORDS).tolist():
            if 0 <= rank < self._geometry.world_size and 0 <= slot < self._geometry.hdr_count:
                self._machine.touch(Place(rank, slot, epoch & 0xFFFFFFFF), now)

    def _tell_stats(self, sender: Sender, body: bytes) -> bytes:
        return json.dumps(self._stats()).encode()


def _words(body: bytes, each: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    if len(body) % (each * WORD):
        raise BadMessage(f"{len(body)} bytes are no rows of {each} words")
    return np.frombuffer(body, np.int64).reshape(-1, each).copy()

"""Bare transfers over the link of a member, without objects: what each round of a get cannot be faster than."""

import ctypes
from collections.abc import Sequence
from ctypes import CFUNCTYPE, byref, c_int, c_void_p
from typing import Any

import numpy as np

from nanokv.cluster.cluster import NanoKVCluster
from nanokv.cluster.links.nixl import NixlLink
from nanokv.device.fabric.records import ENDED
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import Words

SECONDS = 30.0
_WRITE, _SUCCESS, _IN_PROGRESS = 1, 0, 1
_ENDED = int(ENDED.value)
_CREATE = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
_ADD = CFUNCTYPE(c_int, c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64)
_POST = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
_TWO = CFUNCTYPE(c_int, c_void_p, c_void_p)
_ONE = CFUNCTYPE(c_int, c_void_p)


class TransferFailed(Exception):
    """A bare transfer did not end well."""


class Bare:
    """Reads from, and writes to, memory of another node, each time another part: objects lie in other places too.

    Each transfer is made anew.

    Args:
        cluster: whose link is used.
        node: the other node. here: registered memory of this process (an address).
        there: addresses of the other's memory. place_bytes: at each of them.
    """

    def __init__(self, cluster: NanoKVCluster, node: str, here: int, there: Sequence[int], place_bytes: int) -> None:
        link = cluster.member.link
        assert isinstance(link, NixlLink)
        self._link, self.here, self.there, self._next, self._part = link, here, there, 0, place_bytes
        self._made: dict[tuple[int, int], Words] = {}
        self._peer = link.peer(cluster.member.nodes[node].world().peer)
        self._read_rows = fabric_code()["nixl_read_rows"]

    def _rows(self, nbytes: int) -> Words:
        """ROWs of the next parts. They are made once: what is timed is NIXL."""
        start, parts = self._next, -(-nbytes // self._part)
        self._next = (start + parts) % len(self.there)
        if (nbytes, start) not in self._made:
            rows = [
                (self.here + at, self.there[(start + i) % len(self.there)], min(self._part, nbytes - at))
                for i, at in enumerate(range(0, nbytes, self._part))
            ]
            self._made[nbytes, start] = np.array(rows, np.int64)
        return self._made[nbytes, start]

    def read(self, nbytes: int, times: int = 1) -> None:
        """Read so many bytes, `times` times, one after the other, in native code."""
        rows = self._rows(nbytes)
        with self._link.lane(self._peer) as lane:
            at, address, count = lane.aim(self._peer, SECONDS), rows.ctypes.data, len(rows)
            for _ in range(times):
                if self._read_rows(at, address, count) != _ENDED:
                    raise TransferFailed(f"a read of {nbytes} bytes")

    def write(self, nbytes: int) -> None:
        """Write so many bytes."""
        with self._link.lane(self._peer) as lane, self._link.reading_alone():
            lane.aim(self._peer, SECONDS)
            self._write(lane.record[0], nbytes)

    def _write(self, row: Any, nbytes: int) -> None:
        agent, here, there, request = int(row["agent"]), int(row["here"]), int(row["there"]), c_void_p()
        for one in (here, there):
            _ONE(int(row["clear"]))(one)
        add = _ADD(int(row["add"]))
        for mine, theirs, size in self._rows(nbytes).tolist():
            add(here, mine, size, 0)
            add(there, theirs, size, 0)
        peer, options = int(row["peer"]), int(row["options"])
        status = _CREATE(int(row["create"]))(agent, _WRITE, here, there, peer, byref(request), options)
        if status == _SUCCESS:
            status = _POST(int(row["post"]))(agent, request, None)
        look = _TWO(int(row["status"]))
        while status == _IN_PROGRESS:
            status = look(agent, request)
        _TWO(int(row["release"]))(agent, request)
        _ONE(int(row["destroy"]))(request)
        if status != _SUCCESS:
            raise TransferFailed(f"a write of {nbytes} bytes: NIXL answered {status}")

"""A reader on another host: production code (`nanokv.cluster.rounds`) over the device functions of `device/fabric`.

It sees the segments by transfers only; all else that it touches is its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from nanokv.check.protocol.model.simulated_link import SimulatedLink, afar
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.rounds import LinkRounds
from nanokv.cluster.workspace import Workspace
from nanokv.device.fabric import fetches, rounds
from nanokv.device.fabric.records import LOOK_LINE, WORK
from nanokv.device.machines.records import Descriptor
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import MAX_DIMS, OBJ_HEADER, WORD
from nanokv.device.sim.simulation import private_word

_FUNCTIONS = {
    "ask_buckets": rounds.ask_buckets,
    "ask_headers": rounds.ask_headers,
    "take_headers": rounds.take_headers,
    "place_each": fetches.place_each,
    "ask_bytes": rounds.ask_bytes,
    "take_descriptors": rounds.take_descriptors,
    "ask_again": rounds.ask_again,
    "take_again": rounds.take_again,
}
_OK = int(Status.OK)
_BYTES = OBJ_HEADER.offsets["bytes_total"] // WORD
_TIMEOUT = 1e9
_ROOM = 1 << 12  #: words for the bytes of a pass


class Location(NamedTuple):
    """Where an object lies, as a reader knows it from a look at its header."""

    key: int
    owner: int
    slot: int
    header: tuple[int, ...]  #: its words


class Answer(NamedTuple):
    """What a reader is told about a key. After OK all of it holds."""

    status: int  #: of the protocol, or GONE
    location: Location
    nbytes: int
    descriptor: Descriptor
    words: Any  #: int64: the bytes


class _Rounds(LinkRounds):
    """The rounds with device functions in plain Python."""

    def __init__(self, link: SimulatedLink, code: dict[str, Any]) -> None:
        self._link, self._code = link, cast(Any, code)


class RemoteReader:
    """One thread of a process on another host, which reads from a small world.

    Args:
        gap: lines, and bytes, that its transfers read over.
    """

    def __init__(self, world: SmallWorld, *, gap: tuple[int, int] = (0, 0)) -> None:
        simulation, geometry, segments = world.simulation, world.geometry, world.segments
        self._code = {name: simulation.host_function(function) for name, function in _FUNCTIONS.items()}
        link = SimulatedLink(simulation)
        self._rounds, self._workspace = _Rounds(link, self._code), Workspace(link)
        for name, value in zip(("gap", "byte_gap"), gap, strict=True):
            private_word(self._workspace.work + WORK.offsets[name]).value = value
        bases = [afar(base) for base in segments.bases]
        controls = [bytes(view.raw[:LOOK_LINE]) for view in segments.views()]
        self._node = RemoteWorld("owner", 0, geometry, bases, controls, checksum=segments.checksum)
        self._table = geometry.world_table(0, 0, bases, checksum=segments.checksum)
        self._node.table = segments.announced(self._table)
        self._bytes = np.zeros(_ROOM, np.int64)

    def get(self, *keys: int) -> list[Answer]:
        """Four rounds."""
        fetches = self._workspace.fetches
        for fetch, key in zip(fetches, keys, strict=False):
            fetch["key_hash"], fetch["key_check"] = digest(key)
        self._rounds.locate(self._node, self._workspace, len(keys), _TIMEOUT)
        return self._fetched(keys)

    def get_at(self, *locations: Location) -> list[Answer]:
        """The last two rounds, for objects whose location is known."""
        for fetch, location in zip(self._workspace.fetches, locations, strict=False):
            fetch["key_hash"], fetch["key_check"] = digest(location.key)
            fetch["status"], fetch["owner"], fetch["slot"] = _OK, location.owner, location.slot
            fetch["header"] = location.header
        return self._fetched([location.key for location in locations])

    def _fetched(self, keys: Sequence[int]) -> list[Answer]:
        """Fetch as `RemoteGets._fetch_some` does."""
        workspace, count = self._workspace, len(keys)
        fetches = workspace.fetches[:count]
        if (fetches["status"] == _OK).any():
            room = self._code["place_each"](self._node.table, workspace.work, count)
            assert room <= self._bytes.nbytes
            workspace.into(_Room(int(self._bytes.ctypes.data)))
            self._rounds.fetch(self._node, workspace, count, _TIMEOUT)
        return [self._answer(key, fetch) for key, fetch in zip(keys, fetches, strict=True)]

    def _answer(self, key: int, fetch: Any) -> Answer:
        header = tuple(fetch["header"].tolist())
        nbytes, start = header[_BYTES], int(fetch["dst"]) // WORD
        words = self._bytes[start : start + nbytes // WORD].copy() if nbytes and fetch["status"] == _OK else None
        assert len(fetch["what"]) == 1 + MAX_DIMS
        location = Location(key, int(fetch["owner"]), int(fetch["slot"]), header)
        return Answer(int(fetch["status"]), location, nbytes, tuple(fetch["what"].tolist()), words)


class _Room(NamedTuple):
    """A room as `staging.Room`, for a workspace."""

    address: int

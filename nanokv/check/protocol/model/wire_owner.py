"""An owner's end of the wire: the production loop (`device/wire/owner`) over one connection, in simulated memory.

The other end is a script: it sends frames, and is given what came back. What it sends may come torn, in pieces, or be
cut in the middle, after which the connection ends (`native_calls`). A MAC is zeros here, and right (`tests/wire` has
real ones): but each frame has its number.
"""

from collections.abc import Generator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nanokv.check.protocol.model.native_calls import SimulatedSocket
from nanokv.check.protocol.model.remote_gets import shape
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.check.report import CheckFailure
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD
from nanokv.device.wire.records import (
    CONNECTION,
    END,
    EXISTS,
    FRAME_ROOM,
    GET,
    GO,
    GONE,
    GOT,
    GOT_THEM,
    HEAD,
    HOSTED,
    KEY,
    MAC,
    OFFER,
    PULLS_ROOM,
    PUT,
    PUT_DONE,
    READING,
    REMOVE,
    SERVE,
    STATUSES,
    STREAMING,
    WANTED,
)
from nanokv.dtypes import DTYPE_BYTES

_SOCKET = 3
_SIZES = {int(PUT_DONE.value): PULLED.size, int(GO.value): PULLED.size, int(STATUSES.value): WORD}
Script: TypeAlias = Generator[bytes, bytes, Any]  #: sends frames; is given what comes back


class WireOwner:
    """One connection of an owner, in one execution.

    Args:
        rank: of the process, whose objects come into the segment of rank 0.
    """

    def __init__(self, world: SmallWorld, rank: int = 0) -> None:
        from nanokv.device.wire import owner  # which takes numba

        self._world, self._socket = world, SimulatedSocket(world.simulation)
        world.sockets[_SOCKET] = self._socket
        self._rooms = [np.zeros(nbytes // WORD, np.int64) for nbytes in (FRAME_ROOM, FRAME_ROOM, PULLS_ROOM)]
        self._connection, self._box = np.zeros(1, CONNECTION.dtype), np.zeros(1, SERVE.dtype)
        self._sizes = np.array([0, *DTYPE_BYTES], np.int64)
        for name, room in zip(("input", "output", "pulls"), self._rooms, strict=True):
            self._connection[name] = room.ctypes.data
        self._box["connections"], self._box["sizes"] = self._connection.ctypes.data, self._sizes.ctypes.data
        self._connection["fd"] = _SOCKET
        self._box["serves"], self._box["most"] = 1, world.geometry.max_object_bytes
        names = ("attend", "go_on", "give_up")
        table, box, connection = world.segments.table(rank), self._box.ctypes.data, self._connection.ctypes.data
        self._attend, self._go_on, self._give_up = (
            partial(world.simulation.host_function(getattr(owner, name)), table, box, connection) for name in names
        )

    @property
    def _state(self) -> int:
        return int(self._connection["state"][0])

    def talk(self, script: Script, *, cut: bool = False) -> Any:
        """Do what a script asks: what it returns; None: the connection has ended before.

        Args:
            cut: what it sends may end in the middle of anything, and the connection with it.
        """
        simulation, said = self._world.simulation, next(script)
        try:
            while True:
                ends = cut and simulation.decide(2) == 1
                if ends:  # in the middle: of a head, of records, of the bytes of an object, of a MAC
                    said = said[: len(said) * simulation.decide(8) // 8 // WORD * WORD]
                self._socket.comes(said, last=ends)
                self._turns()
                if self._state == GONE.value:
                    return None
                heard = self._socket.heard()
                if not heard:
                    raise CheckFailure("what was sent whole is not answered")
                said = script.send(heard)
        except StopIteration as stop:
            return stop.value
        finally:
            if not simulation.current or not simulation.current.killed:
                self._connection["state"] = GONE.value if self._state != HOSTED.value else self._state
                self._give_up()
                self._world.ended()

    def _turns(self) -> None:
        """Let the loop attend to the connection until it waits for more."""
        while self._state != GONE.value and (
            self._socket.is_ready or self._state not in (READING.value, STREAMING.value)
        ):
            if self._state == HOSTED.value:  # its host has looked for room, and found none
                self._go_on()
            else:
                self._attend()
        self._world.ended()


# --- what another host says, and what it makes of the answers ---------------------------------
def _frame(kind: Any, number: int, records: Any, payload: bytes = b"") -> bytes:
    head = np.zeros(1, HEAD.dtype)
    head["kind"], head["count"], head["number"], head["payload"] = kind.value, len(records), number, len(payload)
    return bytes(head.tobytes() + records.tobytes() + payload + bytes(MAC))


def _records(answer: bytes, kind: Any, number: int) -> Words:
    """The records of an answer that is one frame: int64 [n, words of one]."""
    head = np.frombuffer(answer[: HEAD.size], HEAD.dtype)[0]
    found, count, size = int(head["kind"]), int(head["count"]), _SIZES[int(kind.value)]
    if (found, int(head["number"]), len(answer)) != (kind.value, number, HEAD.size + count * size + MAC):
        raise CheckFailure(f"frame {number} is of kind {found}, number {head['number']}, with {len(answer)} bytes")
    return np.frombuffer(answer[HEAD.size : -MAC], np.int64).reshape(count, -1)


def _statuses(answer: bytes, kind: Any, number: int) -> list[Status]:
    return [Status(status) for status in _records(answer, kind, number)[:, 0].tolist()]


def _objects(world: SmallWorld, offered: tuple[tuple[int, int], ...], version: int) -> tuple[Any, list[bytes]]:
    """PULLs of objects, (key, words) each, and their bytes."""
    pulls, payloads = np.zeros(len(offered), PULL.dtype), []
    for pull, (key, words) in zip(pulls, offered, strict=True):
        pull["key_hash"], pull["key_check"] = digest(key)
        pull["nbytes"], pull["what"], pull["rank"] = words * WORD, shape(key, version, words), -1
        payloads.append(world.payload(key, version, words).tobytes()[: words * WORD])
    return pulls, payloads


def brings(world: SmallWorld, *objects: tuple[int, int], version: int = 1, times: int = 1) -> Script:
    """A put whose bytes are in its question: the statuses. `times`: how often the same frame is sent."""
    pulls, payloads = _objects(world, objects, version)
    said = _frame(PUT, 1, pulls, b"".join(payloads))
    answer = yield said
    for _ in range(times - 1):
        yield said
        raise CheckFailure("a frame that was sent again is answered")
    return _statuses(answer, PUT_DONE, 1)


def offers(world: SmallWorld, *objects: tuple[int, int], version: int = 1) -> Script:
    """A put whose bytes go straight into pages: the statuses."""
    pulls, payloads = _objects(world, objects, version)
    go = _statuses((yield _frame(OFFER, 1, pulls)), GO, 1)
    wanted = b"".join(payload for payload, status in zip(payloads, go, strict=True) if status == Status.OK)
    return _statuses((yield wanted + _frame(END, 2, pulls[:0])), PUT_DONE, 2)


def gets(world: SmallWorld, *keys: int) -> Script:
    """A get of objects of any size: (status, version) of each."""
    wanted = np.zeros(len(keys), WANTED.dtype)
    wanted["key_hash"], wanted["key_check"] = np.array([digest(key) for key in keys], np.int64).T
    wanted["room"], wanted["any_size"] = world.geometry.max_object_bytes, 1
    answer = yield _frame(GET, 1, wanted)
    head = np.frombuffer(answer[: HEAD.size], HEAD.dtype)[0]
    if head["kind"] != GOT_THEM.value or head["count"] != len(keys):
        raise CheckFailure(f"a GET is answered by a frame of kind {head['kind']} about {head['count']} keys")
    at = HEAD.size + len(keys) * GOT.size
    gots = np.frombuffer(answer[HEAD.size : at], GOT.dtype)
    statuses = np.frombuffer(answer[-MAC - len(keys) * WORD : -MAC], np.int64).tolist()
    found = []
    for key, got, status in zip(keys, gots, statuses, strict=True):
        brought = int(got["nbytes"]) if got["status"] == Status.OK else 0
        words, at = np.frombuffer(answer[at : at + brought], np.int64), at + brought
        version = 0
        if status == Status.OK:
            version = world.check(key, words)
            if tuple(got["what"].tolist()) != shape(key, version, len(words)):
                raise CheckFailure(f"I4: a get of key {key} has version {version} and the descriptor {got['what']}")
        found.append((Status(status), version))
    if at + len(keys) * WORD + MAC != len(answer):
        raise CheckFailure(f"an answer of {len(answer)} bytes has its statuses at {at}")
    return found


def asks(kind: Any, *keys: int) -> Script:
    """Whether objects exist, or their removal: a status for each key. kind: EXISTS or REMOVE."""
    records = np.zeros(len(keys), KEY.dtype)
    records["hash"], records["check"] = np.array([digest(key) for key in keys], np.int64).T
    return _statuses((yield _frame(kind, 1, records)), STATUSES, 1)


removes, finds = partial(asks, REMOVE), partial(asks, EXISTS)

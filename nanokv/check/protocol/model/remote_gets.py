"""Gets from another host, each of whose answers is checked as it comes.

An answer OK must be one object of the key that was READY at some time during the get: its bytes, size and descriptor.
An object that was READY all the while must be answered OK or TORN. Nothing is corrupt here.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from nanokv.check.protocol.model.remote_reader import Answer, Location, RemoteReader
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.check.report import CheckFailure
from nanokv.device.fabric.judging import DOUBTFUL, GONE
from nanokv.device.machines.records import Descriptor
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import (
    D_DIMS,
    DESC_BYTES,
    DTYPE_SHIFT,
    H_KEY_HASH,
    H_STATE,
    LOW32,
    MAX_DIMS,
    NDIM_SHIFT,
    READY,
    WORD,
    unpack,
)
from nanokv.device.sim.memory import Watch
from nanokv.dtypes import DTYPE_BYTES

_DTYPES = [code for code, size in enumerate(DTYPE_BYTES, 1) if size == WORD]
_BEFORE = -1  #: as the step since when an object is READY
_GONE = int(GONE.value)
_NOT_THERE = (Status.MISS, Status.NOT_READY, int(DOUBTFUL.value))


def shape(key: int, version: int, words: int) -> Descriptor:
    """The descriptor of an object, which no other one has: the key by the dtype, the version by the long dimension.

    `version` is 1 to 7, `words` not 1.
    """
    dims = [1] * MAX_DIMS
    dims[version - 1] = words
    return (_DTYPES[key // 2] << DTYPE_SHIFT.value | MAX_DIMS << NDIM_SHIFT.value, *dims)


def _version_in(dims: Sequence[int]) -> int:
    """The version of the `shape` with these dimensions."""
    return next((at for at, length in enumerate(dims, 1) if length != 1), 0)


def put_shaped(world: SmallWorld, key: int, version: int, words: int = 2, *, rank: int = 0) -> Status:
    """Put an object with its `shape` into the segment of rank 0."""
    source, what = world.payload(key, version, words), shape(key, version, words)
    answer = world.machine(rank).put(0, digest(key), source.ctypes.data, words * WORD, what, world.now())
    world.ended()
    return Status(answer)


class _Life(NamedTuple):
    """An object that is READY from one step of the execution on, and until another one; None: it still is."""

    key: int
    version: int
    since: int
    until: int | None = None


class _Lives:
    """Which objects were READY when, in the order of an execution."""

    def __init__(self, world: SmallWorld) -> None:
        self._world = world
        self._now: dict[int, _Life] = {}  # by the address of the STATE word
        self._past: list[_Life] = []
        memory, geometry = world.simulation.memory, world.geometry
        for rank, base in enumerate(world.segments.bases):
            for slot in range(geometry.hdr_count):
                state = base + geometry.header_offset(slot) + H_STATE.value
                note = partial(self._note, state, slot, rank)
                note(0, memory.newest(state), since=_BEFORE)
                memory.watched[state] = partial(_both, memory.watched[state], note)

    def _note(self, state: int, slot: int, rank: int, old: int, new: int, since: int | None = None) -> None:
        """A STATE word is written."""
        now = self._world.simulation.steps
        was = self._now.get(state)
        is_ready = unpack("STATE", "state", new) == READY.value
        if was is not None and not is_ready:
            self._past.append(self._now.pop(state)._replace(until=now))
        elif was is None and is_ready:
            newest, world = self._world.simulation.memory.newest, self._world
            key = newest(state - H_STATE.value + H_KEY_HASH.value)
            dims_at = world.address("desc_base", rank) + slot * DESC_BYTES.value + D_DIMS.value
            version = _version_in([newest(dims_at + at * WORD) for at in range(MAX_DIMS)])
            self._now[state] = _Life(key, version, now if since is None else since)

    def during(self, key: int, begin: int) -> list[_Life]:
        """The lives of a key that were READY at some time from a step on until now."""
        lives = [life for life in self._past if life.until is not None and life.until >= begin]
        return [life for life in (*lives, *self._now.values()) if life.key == key]


def _both(one: Watch, other: Watch, old: int, new: int) -> None:
    one(old, new)
    other(old, new)


class RemoteGets:
    """The gets of one execution by one reader, made when the tasks are spawned.

    Args:
        may_go: whether another segment may come to lie where the reader's card says.
    """

    def __init__(self, world: SmallWorld, reader: RemoteReader, *, may_go: bool = False) -> None:
        self._world, self._reader, self._may_go = world, reader, may_go
        self._lives = _Lives(world)

    def get(self, *keys: int) -> list[tuple[int, int]]:
        """Read objects: (status, version) of each."""
        begin = self._world.simulation.steps
        return self._checked(self._reader.get(*keys), begin)

    def locate(self, key: int) -> Location | None:
        """Where an object lies that a get found, or None."""
        begin = self._world.simulation.steps
        answers = self._reader.get(key)
        self._checked(answers, begin)
        return answers[0].location if answers[0].status == Status.OK else None

    def get_at(self, *locations: Location) -> list[tuple[int, int]]:
        """Read objects whose location is known: (status, version) of each."""
        begin = self._world.simulation.steps
        return self._checked(self._reader.get_at(*locations), begin)

    def _checked(self, answers: list[Answer], begin: int) -> list[tuple[int, int]]:
        self._world.ended()
        return [(answer.status, self._check(answer, begin)) for answer in answers]

    def _check(self, answer: Answer, begin: int) -> int:
        """The version that was read, or 0."""
        key, lives = answer.location.key, self._lives.during(answer.location.key, begin)
        in_order = self._world.simulation.memory.name == "sc"
        if answer.status == Status.OK:
            version = self._version(key, answer)
            if in_order and version not in [life.version for life in lives]:
                raise CheckFailure(f"I4: version {version} of key {key} was not READY during the get: {lives}")
            return version
        if answer.status == Status.TORN or (answer.status == _GONE and self._may_go):
            return 0
        there = [life for life in lives if life.until is None and life.since <= (begin if in_order else _BEFORE)]
        if there or answer.status not in _NOT_THERE:
            raise CheckFailure(f"a get of key {key} is answered {answer.status}; it was there all the while: {there}")
        return 0

    def _version(self, key: int, answer: Answer) -> int:
        """The version of which descriptor, size and bytes are."""
        kind, *dims = answer.descriptor
        version = _version_in(dims)
        words = self._world.versions.get(key, {}).get(version)
        if words is None or (kind & LOW32.value, *dims) != shape(key, version, words):
            raise CheckFailure(f"I4: a get of key {key} has the descriptor {answer.descriptor}")
        if answer.nbytes != words * WORD:
            raise CheckFailure(f"I4: a get of key {key} has the shape of version {version}, and {answer.nbytes} bytes")
        if words and (read := self._world.check(key, answer.words)) != version:
            raise CheckFailure(f"I4: a get of key {key} has the shape of version {version}, and the bytes of {read}")
        return version

"""Gets across hosts: where an object lies, its bytes in registered memory of this process, and what they are."""

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from nanokv.cluster.card import WorldId
from nanokv.cluster.counts import MemberCounts
from nanokv.cluster.fetched import FetchedObjects, Got, Kinds
from nanokv.cluster.links.base import Link, LinkLost, State
from nanokv.cluster.locations import Locations
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.rounds import Rounds, TransferLate, wait_for
from nanokv.cluster.staging import Room, Staging
from nanokv.cluster.statuses import is_one_of
from nanokv.cluster.workspace import MOST_KEYS, SMALL, Workspace
from nanokv.device.fabric.judging import DOUBTFUL, GONE, UNFIT
from nanokv.device.fabric.records import FETCH
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import (
    DTYPE_MASK,
    DTYPE_SHIFT,
    EPOCH_MASK,
    EPOCH_SHIFT,
    HEAP_CTL,
    MAX_DIMS,
    OBJ_HEADER,
    WORD,
)
from nanokv.errors import PeerLost
from nanokv.keys.hashing import Hasher
from nanokv.types import Key, KeyDigest

# --- transfers from one node at a time: passes of rounds, and single copies ---
# What is given up may go on: its memory is kept, and no other read uses it (`staging`).
MOST_LATE = 16  #: reads from one node that were given up and have not ended: their memory is kept, so no more begin
_SCANNED = 16384  #: headers of one transfer
T = TypeVar("T")

_EPOCH_SHIFT, _EPOCH_MASK = EPOCH_SHIFT.value, EPOCH_MASK.value
_USE_WORDS = 3  #: of a use: see `uses`
TRIES = 16  #: how often a read begins anew because the object was replaced meanwhile
_OK, _MISS, _TORN, _CORRUPT = int(Status.OK), int(Status.MISS), int(Status.TORN), int(Status.CORRUPT)
_GONE, _DOUBTFUL = int(GONE.value), int(DOUBTFUL.value)
_AGAIN = (_TORN, int(Status.BUSY), _DOUBTFUL)
_NOT_AT_ONCE = (int(UNFIT.value), int(Status.SIZE))
_DTYPE: int = DTYPE_MASK.value << DTYPE_SHIFT.value
_STATUS, _OWNER, _SLOT, _DST, _WHAT = (
    FETCH.offsets[name] // WORD for name in ("status", "owner", "slot", "dst", "what")
)
_STATE = (FETCH.offsets["header"] + OBJ_HEADER.offsets["state"]) // WORD
_NBYTES = (FETCH.offsets["header"] + OBJ_HEADER.offsets["bytes_total"]) // WORD
_HEADER_BYTES = OBJ_HEADER.offsets["bytes_total"] // WORD


class _Gone(LinkLost):
    """Another segment lies where the card says."""


class RemoteGets:
    """The gets of one process from other nodes.

    All methods raise PeerLost if the node cannot be reached, or does not answer within `timeout` seconds per round, or
    what is left of them (`patience`).
    """

    def __init__(
        self,
        link: Link,
        rounds: Rounds,
        staging: Staging,
        locations: Locations,
        counts: MemberCounts,
        hasher: Hasher,
        timeout: float,
    ) -> None:
        self._link, self._staging, self._timeout = link, staging, timeout
        self.rounds = rounds  #: of transfers, over the link
        self._locations, self._counts, self._hasher, self._kinds = locations, counts, hasher, Kinds()
        self._code = fabric_code()
        self.note_use: Callable[[str, tuple[int, int, int]], None] = lambda node, use: None
        self.note_uses: Callable[[str, Words], None] = lambda node, uses: None

    # --- one ---
    def get(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | int:
        """See `Gets`. What is given up may still be written, so nothing goes `into` memory of the caller."""
        for _ in range(TRIES):
            found = self._pass(node, patience, self._get_once, key)
            if isinstance(found, Got) or found not in _AGAIN:
                return found
        return _CORRUPT if found == _DOUBTFUL else _MISS

    def _get_once(self, world: RemoteWorld, workspace: Workspace, key: KeyDigest) -> Got | int:
        words = workspace.words
        words[0], words[1] = key
        words[_DST] = 0
        workspace.into(None)
        if self.rounds.get_one(world, workspace, SMALL, workspace.timeout):
            return self._got_one(world, workspace)
        workspace.timeout = self._timeout  # it has answered: its bytes have their time, whatever others took
        status: int = words[_STATUS]
        return status if status != _OK else self._fetch_one(world, workspace)

    def _fetch_one(self, world: RemoteWorld, workspace: Workspace) -> Got | int:
        """The object that was located."""
        words = workspace.words
        nbytes: int = words[_NBYTES]
        words[_DST] = 0
        workspace.into(None if nbytes <= SMALL else self._staging.room(nbytes))
        self.rounds.fetch(world, workspace, 1, workspace.timeout)
        return self._got_one(world, workspace)

    def _got_one(self, world: RemoteWorld, workspace: Workspace) -> Got | int:
        """What the last round says: the object, or why there is none."""
        words, room = workspace.words, workspace.room
        status: int = words[_STATUS]
        if status != _OK:
            return _checked(status)
        nbytes = self._note_one(world, words)
        data = ctypes.string_at(workspace.small, nbytes) if room is None else room.view(nbytes)
        return Got(nbytes, tuple(words[_WHAT : _WHAT + 1 + MAX_DIMS]), data)

    def _note_one(self, world: RemoteWorld, words: memoryview) -> int:
        """Count the object of a workspace' first FETCH, and note its use. Returns its bytes."""
        self.note_use(world.name, (words[_OWNER], words[_SLOT], words[_STATE] >> _EPOCH_SHIFT & _EPOCH_MASK))
        nbytes: int = words[_NBYTES]
        self._counts.read(1, nbytes)
        return nbytes

    def get_at_once(
        self, node: Node, key: Key, patience: Patience, into: torch.Tensor | None = None
    ) -> torch.Tensor | int | None:
        """See `Gets`."""
        if into is None:
            digest = self._hasher(key)
            nbytes = self._locations.size_of(digest)
            return self._kinds.read(
                nbytes if nbytes <= SMALL else 0,
                lambda made: self._get_into(node, digest, patience, made, exact=True),
                lambda: self.get_known(node, digest, patience) or self.get(node, digest, patience),
            )
        return self._get_into(node, key, patience, into, exact=False)

    def _get_into(
        self, node: Node, key: Key, patience: Patience, into: torch.Tensor, *, exact: bool
    ) -> torch.Tensor | int | None:
        """Read an object of a tensor's kind by one native call; or why there is none; None: Python must look at it.

        exact: bytes without a dtype and a shape do not suit.
        """
        for _ in range(TRIES):
            status = self._pass(node, patience, self._get_into_once, key, into, exact)
            if status not in _AGAIN:
                break
        if status == _OK:
            return into
        return None if status in _NOT_AT_ONCE or status in _AGAIN else status

    def _get_into_once(
        self, world: RemoteWorld, workspace: Workspace, key: Key, into: torch.Tensor, exact: bool
    ) -> int:
        workspace.into(None)
        status = self.rounds.get_into(world, workspace, key, into, workspace.timeout)
        if status == _OK:
            if exact and not workspace.words[_WHAT] & _DTYPE:
                return int(Status.SIZE)
            self._note_one(world, workspace.words)
        return _checked(status)

    def get_known(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | None:
        """An object that lies where the table of locations says, in two rounds; None: it does not (any more)."""
        found = self._pass(node, patience, self._get_known_once, key)
        return found if isinstance(found, Got) else None

    def _get_known_once(self, world: RemoteWorld, workspace: Workspace, key: KeyDigest) -> Got | int:
        words = workspace.words
        words[0], words[1] = key
        return self._fetch_one(world, workspace) if self._locations.recall(world, workspace, 1) else _MISS

    def is_known(self, node: Node, key: KeyDigest, patience: Patience) -> bool:
        """Whether an object lies where the table of locations says, by one look at its header."""
        return self._pass(node, patience, self._is_known_once, key)

    def _is_known_once(self, world: RemoteWorld, workspace: Workspace, key: KeyDigest) -> bool:
        words = workspace.words
        words[0], words[1] = key
        if not self._locations.recall(world, workspace, 1):
            return False
        self.rounds.look(world, workspace, 1, workspace.timeout)
        return words[_STATUS] == _OK

    # --- many ---
    def find_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """A status for each key (int64 [n, 2]): OK, MISS, NOT_READY or CORRUPT."""
        return self._each(node, keys, patience, self._find_some)

    def find_known_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """OK for each key whose object lies where the table of locations says, by one look at its header; else MISS."""

        def some(world: RemoteWorld, workspace: Workspace, some_keys: Words) -> Words:
            if (self._find_some(world, workspace, some_keys, known=True) == _OK).any():
                self.rounds.look(world, workspace, len(some_keys), workspace.timeout)
            return workspace.fetches["status"][: len(some_keys)].copy()

        return self._each(node, keys, patience, some, once=True)

    def get_each(
        self,
        node: Node,
        keys: Words,
        patience: Patience,
        take: Callable[[Words, FetchedObjects], None],
        *,
        known: bool = False,
    ) -> Words:
        """A status for each key. `take` gets the numbers of those that a pass has read, and their objects.

        known: only where the table of locations says, in two rounds; MISS for what is not there.
        """

        def some(world: RemoteWorld, workspace: Workspace, which: Words) -> Words:
            statuses = self._fetch_some(world, workspace, keys[which], known)
            good = np.flatnonzero(statuses == _OK)
            if len(good):
                fetches = workspace.fetches[: len(which)]
                sizes, starts = fetches["header"][good, _HEADER_BYTES], fetches["dst"][good]
                take(which[good], FetchedObjects(workspace.room, sizes, starts, fetches["what"][good]))
            return statuses

        return self._each(node, keys, patience, some, whole=False, once=known)

    def get_into_each(
        self, node: Node, keys: Words, patience: Patience, targets: Words, what: What, *, known: bool = False
    ) -> Words:
        """A status for each key: the bytes of objects of one size, dtype and shape go to addresses in host memory.

        SIZE: the object is of others. A `what` of format 0 has any dtype and shape. known: as for `get_each`.
        """

        def some(world: RemoteWorld, workspace: Workspace, which: Words) -> Words:
            statuses = self._fetch_some(world, workspace, keys[which], known)
            places = targets[which]
            self._code["copy_each"](workspace.work, len(which), places.ctypes.data, what.nbytes, what.address)
            copied: Words = workspace.fetches["status"][: len(which)]
            return np.where(statuses == _OK, copied, statuses)

        return self._each(node, keys, patience, some, whole=False, once=known)

    def _find_some(self, world: RemoteWorld, workspace: Workspace, keys: Words, known: bool = False) -> Words:
        count, fetches = len(keys), workspace.fetches
        fetches["key_hash"][:count], fetches["key_check"][:count] = keys[:, 0], keys[:, 1]
        if known:
            self._locations.recall(world, workspace, count)
        else:
            self.rounds.locate(world, workspace, count, workspace.timeout)
            workspace.timeout = self._timeout  # as in `_get_once`
        return fetches["status"][:count].copy()

    def _fetch_some(self, world: RemoteWorld, workspace: Workspace, keys: Words, known: bool) -> Words:
        if not (self._find_some(world, workspace, keys, known) == _OK).any():
            return workspace.fetches["status"][: len(keys)].copy()
        room = self._code["place_each"](world.table, workspace.work, len(keys))
        workspace.into(self._staging.room(max(room, 1)))
        self.rounds.fetch(world, workspace, len(keys), workspace.timeout)
        statuses: Words = workspace.fetches["status"][: len(keys)].copy()
        uses = np.empty((len(keys), _USE_WORDS), np.int64)
        good, nbytes = self._code["uses_of"](workspace.work, len(keys), uses.ctypes.data)
        if good < len(keys) and (statuses == _GONE).any():
            _checked(_GONE)
        self._counts.read(good, nbytes)
        self.note_uses(world.name, uses[:good])
        return statuses

    def _each(
        self,
        node: Node,
        keys: Words,
        patience: Patience,
        some: Callable[..., Words],
        *,
        whole: bool = True,
        once: bool = False,
    ) -> Words:
        """Passes over all keys; and, but for `once`, again over those whose objects were replaced meanwhile.

        `some` is given their numbers, or (`whole`) the keys themselves.
        """
        statuses, again = np.full(len(keys), _TORN, np.int64), np.arange(len(keys))
        for _ in range(1 if once else TRIES):
            for which in _slices(again):
                statuses[which] = self._pass(node, patience, some, keys[which] if whole else which)
            again = np.flatnonzero(is_one_of(statuses, _AGAIN))
            if not len(again):
                return statuses
        statuses[statuses == _DOUBTFUL] = _CORRUPT
        statuses[is_one_of(statuses, _AGAIN)] = _MISS
        return statuses

    # --- transfers ---
    def _pass(self, node: Node, patience: Patience, work: Callable[..., T], *arguments: Any) -> T:
        """Four rounds, or two, with one of the members of a node; with the next one if that is lost.

        work: called with the world of that member, a workspace whose `timeout` is that of a round, and `arguments`.
        """
        late_ones = self._staging.late_of(node.number)
        if late_ones >= MOST_LATE:
            raise PeerLost(f"node {node.name} does not answer: {late_ones} reads that were given up have not ended")
        first: PeerLost | None = None  # why the first member was lost: those after it have less time
        for _ in range(max(len(node.cards), 1)):
            timeout = patience.left(node.name)
            world, workspace = node.world(), self._staging.workspace()
            workspace.timeout, begun = timeout, time.monotonic()
            try:
                answer = work(world, workspace, *arguments)
            except TransferLate as late:
                self._staging.keep(late.is_over, workspace, node=node.number)
                patience.waited(begun)
                node.lost(world, str(late))
                first = first or PeerLost(f"node {node.name} cannot be reached: {late}")
            except LinkLost as error:
                self._staging.give(workspace)
                node.lost(world, str(error))
                first = first or PeerLost(f"node {node.name} was lost: {error}")
            except BaseException:
                self._staging.give(workspace)
                raise
            else:
                self._staging.give(workspace)
                return answer
        raise first or PeerLost(f"node {node.name} was lost")

    def headers(self, node: Node, rank: int) -> Iterator[tuple[WorldId, int, Words]]:
        """The header arena of a rank as it is now, in parts: whose it is, the first slot, int64 [n, 8].

        A header may be torn: other words may be of another epoch than STATE.
        """
        world = node.world()
        at, base = world.geometry.offsets["hdr_base"], world.bases[rank]
        head = self._copy(node, world, base + HEAP_CTL.offsets["hdr_head"], WORD)
        used = min(int(head.view(np.int64)[0]), world.geometry.hdr_count)
        for first in range(0, used, _SCANNED):
            count = min(_SCANNED, used - first)
            raw = self._copy(node, world, base + at + first * OBJ_HEADER.size, count * OBJ_HEADER.size)
            yield world.id, first, raw.view(np.int64).reshape(count, -1)

    def _copy(self, node: Node, world: RemoteWorld, there: int, nbytes: int) -> npt.NDArray[np.uint8]:
        room, one = self._staging.room(nbytes), np.ones(1, np.int64)
        try:
            self._move(world, one * room.address, one * there, one * nbytes, room)
        except (LinkLost, TransferLate) as error:
            node.lost(world, str(error))
            raise PeerLost(f"node {node.name}: {error}") from None
        return room.view(nbytes)

    def _move(self, world: RemoteWorld, here: Words, there: Words, nbytes: Words, room: Room) -> None:
        """One transfer into a room. Raises LinkLost and TransferLate, and keeps the room then."""
        transfer = self._link.read(world.peer, here, there, nbytes)
        if not wait_for(transfer, self._timeout):
            self._staging.keep(lambda: transfer.state() != State.MOVING, room)
            raise TransferLate(world.name, self._timeout, lambda: True)
        state = transfer.state()
        transfer.release()
        if state == State.FAILED:
            raise LinkLost(f"the transfer from node {world.name} has failed")


def _checked(status: int) -> int:
    if status == _GONE:
        raise _Gone("another segment lies where its card says, or none")
    return status


def _slices(numbers: Any) -> Iterator[Any]:
    return (numbers[i : i + MOST_KEYS] for i in range(0, len(numbers), MOST_KEYS))

"""The owner's side of puts from other nodes: it claims the keys, reads the producer's memory, commits, and answers.

A producer that is silent delays its own objects only. One that dies before its bytes are here leaves nothing: what was
begun for it is given up when the transfer has ended. What ends too late for the producer is given up too: the producer
clears its ticket before it lets its caller change the bytes, and the owner reads the ticket after the bytes.
"""

import threading
import time
from collections.abc import Callable

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.cluster.links.base import Link, LinkLost, State, Transfer
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.pull_message import NEEDS_CARD, BadMessage, Question, Records, answer_of
from nanokv.cluster.relative_terms import absolute
from nanokv.cluster.rounds import wait_for
from nanokv.cluster.staging import Staging
from nanokv.device.fabric.pulls import BAD_RANK, BAD_SIZE
from nanokv.device.fabric.records import LOOK_LINE, ROW
from nanokv.device.machines.base import Machine
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import Place, Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import NanoKVError, PeerLost
from nanokv.transfer.descriptors import shape_of
from nanokv.types import KeyDigest

_OK, _FULL, _LOST, _INVALID = (int(Status[name]) for name in ("OK", "FULL", "LOST", "INVALID"))
_TICKET_SECONDS = 1.0
_USUAL_SECONDS, _USUAL_BYTES_A_SECOND = 0.001, 2.5e8  #: a pull has ended by then, unless something is amiss
_SOON = 0.001  #: seconds
_NO_PEER = -1
_HOME = -1  #: of PULL.rank


class Pull:
    """One question under way: a `Pending` of the server of messages.

    What finds no room is begun again when the others are committed, and may be evicted.
    """

    def __init__(self, puller: "Puller", question: Question, peer: int) -> None:
        self._puller, self._question, self._peer = puller, question, peer
        now = time.monotonic()
        self._ends = now + question.timeout
        self._usual_end = now + _USUAL_SECONDS + int(question.pulls["nbytes"].sum()) / _USUAL_BYTES_A_SECOND
        self._lot = question.pulls
        self._which = np.arange(len(question.pulls))
        self._transfer: Transfer | None = puller.begin(self._lot, question, peer)
        self._late = False

    @property
    def rest(self) -> float:
        """See `Pending`. Over TCP bytes move only while they are asked for."""
        return 0.0 if time.monotonic() < self._usual_end else _SOON

    def poll(self) -> bytes | None:
        """The answer, once there is one."""
        if self._transfer is not None:
            state = self._transfer.state()
            if state == State.MOVING:
                if time.monotonic() < self._ends:
                    return None
                self.abandon()
                raise PeerLost("the bytes did not come in time")
            self._transfer.release()
            well = state == State.DONE and self._puller.is_awaited(self._question, self._peer)
        else:
            well = True
        self._puller.end(self._lot, well=well)
        self._question.pulls[self._which] = self._lot
        full = self._lot["status"] == _FULL
        if not well or full.all() or not full.any():
            return answer_of(self._question.pulls)
        self._which = self._which[full]
        self._lot = self._question.pulls[self._which]
        self._transfer = self._puller.begin(self._lot, self._question, self._peer)
        return None

    def abandon(self) -> None:
        """Give up: what was begun is freed when the transfer can write no more."""
        if self._transfer is not None and not self._late:
            self._late = True
            self._puller.keep(self._lot, self._transfer)


class Puller:
    """Pulls into the segments of one world, whose process this is.

    Args:
        bases: the address of each rank's segment in this process.
        note: called with the ranks that get objects, as `ProducerAllocation.note_owner`.
    """

    def __init__(
        self,
        machine: Machine,
        allocation: Allocation,
        link: Link,
        staging: Staging,
        wake: Callable[[int], None],
    ) -> None:
        self._machine, self._allocation, self._link, self._staging = machine, allocation, link, staging
        self._geometry: Geometry = machine.geometry
        self._wake = wake
        self._code = fabric_code()
        self._lock = threading.Lock()
        self._peers: dict[str, tuple[int, int, bytes]] = {}  # by member: incarnation, number of the peer, card
        self._late: list[tuple[Records, Transfer]] = []

    def handle(self, sender: Sender, body: bytes) -> Pull | bytes:
        """Begin what a producer asks for; or ask for its card.

        Raises:
            BadMessage: the question contradicts itself, or asks for what cannot be. Nothing was begun.
            LinkLost: its memory cannot be reached. Nothing was begun.
        """
        self.look_at_late()
        question = self._checked(Question.unpacked(body))
        if question.brought:
            return Pull(self, question, _NO_PEER)
        peer = self._peer_of(sender, question.card)
        if peer is not None:
            try:
                return Pull(self, question, peer)
            except LinkLost:  # a read that was late has let the peer go
                self.forget(sender.id, sender.incarnation)
        if not question.card:
            return NEEDS_CARD
        peer = self._peer_of(sender, question.card)
        assert peer is not None
        return Pull(self, question, peer)

    def _checked(self, question: Question) -> Question:
        pulls, most, table = question.pulls, self._geometry.max_object_bytes, self._machine.table_address
        fault = self._code["fault_of_pulls"](table, pulls.ctypes.data, len(pulls), most)
        if fault == BAD_SIZE.value:
            raise BadMessage(f"an object has 0 to {most} bytes")
        if fault == BAD_RANK.value:
            raise BadMessage(f"this node has the ranks 0 to {self._geometry.world_size - 1}")
        if not _are_described(pulls):
            raise BadMessage("the dtype and shape of an object do not make its size")
        return question

    def _peer_of(self, sender: Sender, card: bytes) -> int | None:
        """The number of a producer's process; None: it has sent no card."""
        with self._lock:
            incarnation, peer, known = self._peers.get(sender.id, (0, 0, b""))
            if sender.incarnation != incarnation and incarnation:
                self._link.disconnect(peer)
                known = b""
            if not card and not known:
                return None
            if card and card != known:
                peer = self._link.connect(card)
                self._peers[sender.id] = sender.incarnation, peer, card
            return peer

    def forget(self, member: str, incarnation: int) -> None:
        """Let go of a producer that has left the cluster, or of its process that cannot be reached."""
        with self._lock:
            known = self._peers.get(member)
            if known is None or known[0] != incarnation:
                return
            del self._peers[member]
        self._link.disconnect(known[1])

    # --- the steps of a pull ---
    def begin(self, pulls: Records, question: Question, peer: int) -> Transfer | None:
        """Claim, allocate, and begin the transfer; None: the bytes are here, or there are none."""
        self._claim(pulls)
        if question.brought:
            self._copy(pulls, question.brought)
            return None
        table = self._machine.table_address
        looks, rows = np.empty(len(pulls), np.int64), np.empty((len(pulls), len(ROW.fields)), np.int64)
        count = self._code["rows_of_pulls"](table, pulls.ctypes.data, len(pulls), looks.ctypes.data, rows.ctypes.data)
        if not count:
            return None
        here, there, nbytes = (np.ascontiguousarray(rows[:count, k]) for k in range(3))
        try:
            return self._link.read(peer, here, there, nbytes)
        except LinkLost:
            self.end(pulls, well=False)
            raise

    def _claim(self, pulls: Records) -> None:
        """Claim the keys, and allocate: STATUS tells of which."""
        self._choose_ranks(pulls)
        allocation = self._allocation
        if not isinstance(allocation, ProducerAllocation) or allocation.have_memory(pulls["rank"], pulls["nbytes"]):
            self._code["begin_each"](self._machine.table_address, pulls.ctypes.data, len(pulls))
        else:
            pulls["status"] = _FULL  # each by itself
        for i in np.flatnonzero(pulls["status"] == _FULL).tolist():
            self._begin_again(pulls[i : i + 1])
        self._set_terms(pulls)

    def _copy(self, pulls: Records, brought: bytes) -> None:
        """Copy the bytes of what was claimed. Their sources are within `brought`."""
        start = np.frombuffer(brought, np.uint8).ctypes.data
        self._code["copy_pulls"](self._machine.table_address, pulls.ctypes.data, len(pulls), start)

    def _choose_ranks(self, pulls: Records) -> None:
        for i in np.flatnonzero(pulls["rank"] == _HOME).tolist():
            key = KeyDigest(int(pulls["key_hash"][i]), int(pulls["key_check"][i]))
            pulls["rank"][i] = self._allocation.owner_of(key, None)

    def _begin_again(self, pull: Records) -> None:
        """Make room, as a put from the host does."""
        row = pull[0]
        key = KeyDigest(int(row["key_hash"]), int(row["key_check"]))
        try:
            begun = self._allocation.begin(
                key, int(row["nbytes"]), int(row["rank"]), tuple(row["what"].tolist()), plan=True
            )
        except NanoKVError:
            return
        place = begun.place
        pull["status"], pull["slot"], pull["epoch"], pull["payload"] = (
            begun.status,
            place.slot,
            place.epoch,
            place.payload,
        )

    def _set_terms(self, pulls: Records) -> None:
        """Give the objects their terms, whose times count from now."""
        has_terms = (pulls["access"] | pulls["group"] | pulls["until"]) != 0
        now = now_ns()
        for i in np.flatnonzero(has_terms & (pulls["status"] == _OK)).tolist():
            row = pulls[i]
            place = Place(int(row["rank"]), int(row["slot"]), int(row["epoch"]))
            self._machine.set_terms(place, absolute(Terms(*(int(row[name]) for name in Terms._fields)), now))

    def is_awaited(self, question: Question, peer: int) -> bool:
        """Whether the producer still waits, so that its bytes have not changed since it asked."""
        room = self._staging.room(LOOK_LINE)
        line = room.view(LOOK_LINE).view(np.uint64)
        line[0] = 0
        one = np.ones(1, np.int64)
        try:
            transfer = self._link.read(peer, one * room.address, one * question.ticket, one * LOOK_LINE)
        except LinkLost:
            return False
        if not wait_for(transfer, _TICKET_SECONDS):
            self._staging.keep(lambda: transfer.state() != State.MOVING, room)
            return False
        done = transfer.state() == State.DONE
        transfer.release()
        return done and int(line[0]) == question.number

    def end(self, pulls: Records, *, well: bool) -> None:
        """Commit what was begun, or give it up."""
        ranks = self._code["end_each"](self._machine.table_address, pulls.ctypes.data, len(pulls), int(well))
        for rank in range(self._geometry.world_size):
            if ranks >> min(rank, 62) & 1:
                self._wake(rank)

    def keep(self, pulls: Records, transfer: Transfer) -> None:
        """Keep what was begun until its transfer can write no more."""
        with self._lock:
            self._late.append((pulls, transfer))

    def look_at_late(self) -> None:
        """Give up what was kept, where the transfer has ended."""
        with self._lock:
            late, self._late = self._late, []
        for pulls, transfer in late:
            if transfer.state() == State.MOVING:
                self.keep(pulls, transfer)
            else:
                transfer.release()
                self.end(pulls, well=False)

    @property
    def late(self) -> int:
        """How many pulls were given up whose transfers have not ended."""
        self.look_at_late()
        return len(self._late)


def _are_described(pulls: Records) -> bool:
    """Whether dtypes and shapes suit the sizes; most batches have one of each."""
    sizes, descriptors = pulls["nbytes"], pulls["what"]
    if len(pulls) > 1 and (sizes == sizes[0]).all() and (descriptors == descriptors[0]).all():
        sizes, descriptors = sizes[:1], descriptors[:1]
    pairs = set(zip(map(tuple, descriptors.tolist()), sizes.tolist(), strict=True))
    return all(shape_of(descriptor, nbytes) is not None for descriptor, nbytes in pairs)

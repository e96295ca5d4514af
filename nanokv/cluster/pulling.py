"""The owner's side of puts from other nodes: it claims the keys, reads the producer's memory, commits, and answers.

A producer that is silent delays its own objects only. One that dies before its bytes are here leaves nothing: what was
begun for it is given up when the transfer has ended. What ends too late for the producer is given up too: the producer
clears its ticket before it lets its caller change the bytes, and the owner reads the ticket after the bytes.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.cluster.links.base import Link, LinkLost, State, Transfer
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.pull_message import NEEDS_CARD, BadMessage, Question, Records, answer_of
from nanokv.cluster.relative_terms import absolute
from nanokv.cluster.staging import Room, Staging
from nanokv.device.fabric.pulls import BAD_RANK, BAD_SIZE
from nanokv.device.fabric.records import LOOK_LINE, ROW
from nanokv.device.machines.base import Machine
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import Place, Terms, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import WORD
from nanokv.errors import NanoKVError, PeerLost
from nanokv.transfer.descriptors import shape_of
from nanokv.types import KeyDigest

_OK, _FULL, _LOST, _INVALID = (int(Status[name]) for name in ("OK", "FULL", "LOST", "INVALID"))
_TICKET_SECONDS = 1.0
_USUAL_SECONDS, _USUAL_BYTES_A_SECOND = 0.001, 2.5e8  #: a pull has ended by then, unless something is amiss
_SOON = 0.001  #: seconds
_TURN = 0.002  #: seconds of the server's thread that one question has at a time
_CLAIMED_AT_ONCE, _LOOKED_AT_ONCE = 32, 8  #: objects, of those that are claimed, or for which room is made
_NO_PEER = -1
_HOME = -1  #: of PULL.rank
_FIRST_ADDRESS, _LAST_ADDRESS = 4096, (1 << 63) - 1
_LONGEST_WAIT = 24 * 3600.0  #: seconds
_LOOK_AGAIN = 0.2  #: seconds between two looks at transfers that were given up
_MOST_CANCELLED = 1 << 16  #: questions that their producers have given up, and that are remembered

Step = Callable[[], bytes | None]


class Pull:
    """One question under way: a `PendingReply`.

    What finds no room is begun again when the others are committed, and may be evicted. The server's thread does this
    in small steps, between which it takes other messages: a full node has time for everybody.
    """

    def __init__(self, puller: "Puller", sender: Sender, question: Question, peer: int) -> None:
        self._puller, self._sender, self._question, self._peer = puller, sender, question, peer
        now = time.monotonic()
        self._ends, self._room_ends = now + question.timeout, now + question.timeout / 2
        self._usual_end = now + _USUAL_SECONDS + int(question.pulls["nbytes"].sum()) / _USUAL_BYTES_A_SECOND
        self._lot = question.pulls
        self._which = np.arange(len(question.pulls))
        self._claimed, self._full = 0, list[int]()
        self._transfer: Transfer | None = None
        self._line: Room | None = None
        self._ticket_ends, self._failures = 0.0, 0
        self._is_open, self._is_late = True, False
        self._step: Step = self._claim

    @property
    def rest(self) -> float:
        """See `Pending`. Over TCP bytes move only while they are asked for."""
        return 0.0 if self._transfer is None or time.monotonic() < self._usual_end else _SOON

    def poll(self) -> bytes | None:
        """The answer, once there is one."""
        try:
            while True:
                step = self._step
                answer = step()
                if answer is not None:
                    self._close()
                    return answer
                if self._step == step:
                    return None
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give up: what was begun is freed when the transfer can write no more."""
        if not self._is_open:
            return
        transfer, self._transfer = self._transfer, None
        if transfer is None:
            self._puller.end(self._lot, well=False)
        elif self._line is not None:  # the bytes are here, and only the ticket is not
            self._puller.keep_line(transfer, self._line)
            self._puller.end(self._lot, well=False)
        else:
            self._is_late = True
            self._puller.keep(self._lot, transfer, self._sender, self._question.number)
        self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            if not self._is_late:
                self._puller.ended(self._sender, self._question.number)

    # --- room ---
    def _claim(self) -> bytes | None:
        end = time.monotonic() + _TURN
        while self._claimed < len(self._lot):
            first = self._claimed
            self._claimed = min(first + _CLAIMED_AT_ONCE, len(self._lot))
            self._puller.claim(self._lot[first : self._claimed])
            if time.monotonic() > end and self._claimed < len(self._lot):
                return None
        self._full = np.flatnonzero(self._lot["status"] == _FULL).tolist()[::-1]
        self._step = self._make_room
        return None

    def _make_room(self) -> bytes | None:
        """Make room as a put from the host. Where that takes long, what has no room by half of the time has none."""
        now = time.monotonic()
        end = now + _TURN
        while self._full and now < self._room_ends:
            i = self._full.pop()
            self._puller.begin_again(self._lot[i : i + 1])
            now = time.monotonic()
            if now > end and len(self._full) % _LOOKED_AT_ONCE == _LOOKED_AT_ONCE - 1:
                return None
        self._puller.set_terms(self._lot)
        self._step = self._begin
        return None

    # --- bytes ---
    def _begin(self) -> bytes | None:
        brought = self._question.brought
        if brought:
            self._puller.copy(self._lot, brought)
            return self._end(well=True)
        rows = self._puller.rows_of(self._lot)
        if rows is None:
            return self._end(well=True)
        try:
            self._transfer = self._puller.read(self._peer, *rows)
        except LinkLost as error:
            if not self._question.card:
                return self._needs_card()
            self._reach_again(str(error))
            return None
        self._step = self._await_bytes
        return None

    def _await_bytes(self) -> bytes | None:
        assert self._transfer is not None
        state = self._transfer.state()
        if state == State.MOVING:
            if time.monotonic() < self._ends:
                return None
            raise PeerLost("the bytes did not come in time")
        self._transfer.release()
        self._transfer = None
        if state == State.DONE:
            self._step = self._look_at_ticket
        else:
            self._reach_again("the transfer of the bytes has failed")
            self._step = self._begin
        return None

    def _look_at_ticket(self) -> bytes | None:
        """Whether the producer still waits, so that its bytes have not changed since it asked."""
        self._line = self._puller.line()
        one = np.ones(1, np.int64)
        try:
            self._transfer = self._puller.read(
                self._peer, one * self._line.address, one * self._question.ticket, one * LOOK_LINE
            )
        except LinkLost as error:
            self._line = None
            self._reach_again(str(error))
            return None
        self._ticket_ends = time.monotonic() + _TICKET_SECONDS
        self._step = self._await_ticket
        return None

    def _await_ticket(self) -> bytes | None:
        assert self._transfer is not None and self._line is not None
        state = self._transfer.state()
        if state == State.MOVING:
            if time.monotonic() < self._ticket_ends:
                return None
            raise PeerLost("whether the producer still waits is not known")
        self._transfer.release()
        line, self._transfer, self._line = self._line, None, None
        if state == State.FAILED:
            self._reach_again("its ticket cannot be read")
            self._step = self._look_at_ticket
            return None
        number = int(line.view(LOOK_LINE).view(np.uint64)[0])
        return self._end(well=number == self._question.number)

    def _reach_again(self, why: str) -> None:
        """The link has failed, or has let go of the producer for the sake of another call: the same step once more.

        Raises:
            LinkLost: that has happened too often, or the time is over.
        """
        self._failures += 1
        if self._failures > self._puller.failures or time.monotonic() > self._ends:
            raise LinkLost(f"the bytes could not be read from {self._sender.id}, and nothing was stored: {why}")
        self._peer = self._puller.reach_again(self._sender, self._question.card)

    def _needs_card(self) -> bytes:
        """Ask for the card of the link anew. Of this question nothing is left; what a round before has stored is."""
        self._puller.forget(self._sender.id, self._sender.incarnation)
        self._puller.end(self._lot, well=False)
        if len(self._which) == len(self._question.pulls):
            return NEEDS_CARD
        self._lot["status"][self._lot["status"] == _LOST] = _FULL
        self._question.pulls[self._which] = self._lot
        return answer_of(self._question.pulls)

    def _end(self, *, well: bool) -> bytes | None:
        self._puller.end(self._lot, well=well)
        self._question.pulls[self._which] = self._lot
        full = self._lot["status"] == _FULL
        if not well or full.all() or not full.any():
            return answer_of(self._question.pulls)
        self._which = self._which[full]
        self._lot, self._claimed = self._question.pulls[self._which], 0
        self._lot["status"] = _INVALID
        self._step = self._claim
        return None


class _Producer:
    """What the owner knows of one producer's process."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.peer, self.card, self.has_left = _NO_PEER, b"", False
        self.active: set[int] = set()  # numbers of questions under way, those too that were given up and still move
        self.cancelled: dict[int, None] = {}  # those that it has given up, the oldest first


class Puller:
    """Pulls into the segments of one world, whose process this is.

    Args:
        wake: called with the ranks that get objects, if their pollers sleep.
        failures: how often the link may fail for one question before that is given up.
        watches: whether a thread looks at transfers that were given up; else `look_at_late` alone does.
    """

    def __init__(
        self,
        machine: Machine,
        allocation: Allocation,
        link: Link,
        staging: Staging,
        wake: Callable[[int], None],
        *,
        failures: int = 3,
        watches: bool = True,
    ) -> None:
        self.failures, self._watches = failures, watches
        self._machine, self._allocation, self._link, self._staging = machine, allocation, link, staging
        self._geometry: Geometry = machine.geometry
        self._wake = wake
        self._code = fabric_code()
        self._lock = threading.RLock()
        self.producers: dict[str, _Producer] = {}  #: by member
        self._late: list[tuple[Records, Transfer, Sender, int]] = []
        self._looker: threading.Thread | None = None
        self._closed = threading.Event()

    def handle(self, sender: Sender, body: bytes) -> Pull | bytes:
        """Begin what a producer asks for; or ask for its card.

        Raises:
            BadMessage: the question contradicts itself, asks for what cannot be, or was given up. Nothing was begun.
            LinkLost: its memory cannot be reached. Nothing was begun.
        """
        question = self._checked(Question.unpacked(body))
        peer = _NO_PEER if question.brought else self._peer_of(sender, question.card)
        if peer is None:
            return NEEDS_CARD
        with self._lock:
            known = self._producer(sender)
            if question.number in known.cancelled:
                raise BadMessage(f"question {question.number} was given up by who has asked it")
            if question.number in known.active:
                raise BadMessage(f"question {question.number} is under way")
            known.active.add(question.number)
        return Pull(self, sender, question, peer)

    def over(self, sender: Sender, numbers: Sequence[int]) -> list[bool]:
        """Whether this node reads no byte, nor ever will, for each question that a producer has given up."""
        self.look_at_late()
        with self._lock:
            known = self._producer(sender)
            for number in numbers:
                if number not in known.active:
                    known.cancelled[number] = None
            while len(known.cancelled) > _MOST_CANCELLED:
                del known.cancelled[next(iter(known.cancelled))]
            return [number not in known.active for number in numbers]

    def _checked(self, question: Question) -> Question:
        pulls, most, table = question.pulls, self._geometry.max_object_bytes, self._machine.table_address
        fault = self._code["fault_of_pulls"](table, pulls.ctypes.data, len(pulls), most)
        if fault == BAD_SIZE.value:
            raise BadMessage(f"an object has 0 to {most} bytes")
        if fault == BAD_RANK.value:
            raise BadMessage(f"this node has the ranks 0 to {self._geometry.world_size - 1}")
        if not _are_described(pulls):
            raise BadMessage("the dtype and shape of an object do not make its size")
        if ((pulls["access"] < 0) | (pulls["until"] < 0)).any():
            raise BadMessage("the terms of an object are none")
        if not 0 < question.timeout <= _LONGEST_WAIT:
            raise BadMessage(f"nobody waits for {question.timeout} s")
        if not question.brought:
            self._check_addresses(question)
        pulls["status"] = _INVALID
        for name in ("slot", "epoch", "payload"):
            pulls[name] = 0
        return question

    @staticmethod
    def _check_addresses(question: Question) -> None:
        """The link compares addresses with the memory in its card; but for those with which its sums would overflow."""
        sources, sizes = question.pulls["source"], question.pulls["nbytes"]
        if ((sizes > 0) & ((sources < _FIRST_ADDRESS) | (sources > _LAST_ADDRESS - sizes))).any():
            raise BadMessage("the bytes of an object lie at no address")
        if not _FIRST_ADDRESS <= question.ticket <= _LAST_ADDRESS - LOOK_LINE or question.ticket % WORD:
            raise BadMessage("a ticket lies at no address")

    # --- producers ---
    def _producer(self, sender: Sender) -> _Producer:
        """What is known of a producer's process. The caller has the lock."""
        known = self.producers.get(sender.id)
        if known is None or known.incarnation != sender.incarnation:
            if known is not None and known.peer != _NO_PEER:
                self._link.disconnect(known.peer)
            known = self.producers[sender.id] = _Producer(sender.incarnation)
        known.has_left = False
        return known

    def _peer_of(self, sender: Sender, card: bytes) -> int | None:
        """The number of a producer's process; None: it has sent no card."""
        with self._lock:
            known = self._producer(sender)
            if card and card != known.card:
                known.peer = self._link.connect(card)
                known.card = card
            return known.peer if known.card else None

    def reach_again(self, sender: Sender, card: bytes) -> int:
        """The number that a producer's process has after the link has failed. Raises LinkLost: it cannot be reached."""
        with self._lock:
            known = self._producer(sender)
            known.card = card or known.card
            if not known.card:
                raise LinkLost(f"the card of {sender.id} is not known")
            known.peer = self._link.connect(known.card)
            return known.peer

    def forget(self, member: str, incarnation: int) -> None:
        """Let go of a producer that has left the cluster, or of its process that cannot be reached."""
        with self._lock:
            known = self.producers.get(member)
            if known is None or known.incarnation != incarnation:
                return
            peer, known.peer, known.card = known.peer, _NO_PEER, b""
        if peer != _NO_PEER:
            self._link.disconnect(peer)

    def left(self, member: str, incarnation: int) -> None:
        """A producer has left the cluster: nothing of it is kept, once nothing moves any more."""
        self.forget(member, incarnation)
        with self._lock:
            known = self.producers.get(member)
            if known is not None and known.incarnation == incarnation:
                known.has_left = True
                if not known.active:
                    del self.producers[member]

    def ended(self, sender: Sender, number: int) -> None:
        """A question is over."""
        with self._lock:
            known = self.producers.get(sender.id)
            if known is not None and known.incarnation == sender.incarnation:
                known.active.discard(number)
                if known.has_left and not known.active:
                    del self.producers[sender.id]

    # --- the steps of a pull ---
    def claim(self, pulls: Records) -> None:
        """Claim the keys, and allocate: STATUS tells of which."""
        self._choose_ranks(pulls)
        allocation = self._allocation
        if not isinstance(allocation, ProducerAllocation) or allocation.have_memory(pulls["rank"], pulls["nbytes"]):
            self._code["begin_each"](self._machine.table_address, pulls.ctypes.data, len(pulls))
        else:
            pulls["status"] = _FULL  # each by itself

    def rows_of(self, pulls: Records) -> tuple[Words, Words, Words] | None:
        """Where the bytes of what was claimed go, whence, and how many; None: there are none."""
        table = self._machine.table_address
        looks, rows = np.empty(len(pulls), np.int64), np.empty((len(pulls), len(ROW.fields)), np.int64)
        count = self._code["rows_of_pulls"](table, pulls.ctypes.data, len(pulls), looks.ctypes.data, rows.ctypes.data)
        if not count:
            return None
        here, there, nbytes = (np.ascontiguousarray(rows[:count, k]) for k in range(3))
        return here, there, nbytes

    def read(self, peer: int, here: Words, there: Words, nbytes: Words) -> Transfer:
        """Begin a transfer from a producer. Raises as `Link.read`."""
        return self._link.read(peer, here, there, nbytes)

    def line(self) -> Room:
        """Room for a ticket, zeroed."""
        room = self._staging.room(LOOK_LINE)
        room.view(LOOK_LINE)[:] = 0
        return room

    def copy(self, pulls: Records, brought: bytes) -> None:
        """Copy the bytes of what was claimed. Their sources are within `brought`."""
        start = np.frombuffer(brought, np.uint8).ctypes.data
        self._code["copy_pulls"](self._machine.table_address, pulls.ctypes.data, len(pulls), start)

    def _choose_ranks(self, pulls: Records) -> None:
        for i in np.flatnonzero(pulls["rank"] == _HOME).tolist():
            key = KeyDigest(int(pulls["key_hash"][i]), int(pulls["key_check"][i]))
            pulls["rank"][i] = self._allocation.owner_of(key, None)

    def begin_again(self, pull: Records) -> None:
        """Make room for one, as a put from the host does."""
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

    def set_terms(self, pulls: Records) -> None:
        """Give the objects their terms, whose times count from now."""
        has_terms = (pulls["access"] | pulls["group"] | pulls["until"]) != 0
        now = now_ns()
        for i in np.flatnonzero(has_terms & (pulls["status"] == _OK)).tolist():
            row = pulls[i]
            place = Place(int(row["rank"]), int(row["slot"]), int(row["epoch"]))
            self._machine.set_terms(place, absolute(Terms(*(int(row[name]) for name in Terms._fields)), now))

    def end(self, pulls: Records, *, well: bool) -> None:
        """Commit what was begun, or give it up."""
        ranks = self._code["end_each"](self._machine.table_address, pulls.ctypes.data, len(pulls), int(well))
        for rank in range(self._geometry.world_size):
            if ranks >> min(rank, 62) & 1:
                self._wake(rank)

    # --- what was given up ---
    def keep(self, pulls: Records, transfer: Transfer, sender: Sender, number: int) -> None:
        """Keep what was begun until its transfer can write no more."""
        with self._lock:
            self._late.append((pulls, transfer, sender, number))
            if self._watches and self._looker is None and not self._closed.is_set():
                self._looker = threading.Thread(target=self._look_on, name="nanokv-cluster-late", daemon=True)
                self._looker.start()

    def keep_line(self, transfer: Transfer, line: Room) -> None:
        """Keep the room of a ticket, likewise."""
        self._staging.keep(lambda: transfer.state() != State.MOVING, line)

    def _look_on(self) -> None:
        while not self._closed.wait(_LOOK_AGAIN):
            self.look_at_late()
            with self._lock:
                if not self._late:
                    self._looker = None
                    return

    def look_at_late(self) -> None:
        """Give up what was kept, where the transfer has ended. From any thread."""
        with self._lock:
            ended = [each for each in self._late if each[1].state() != State.MOVING]
            self._late = [each for each in self._late if all(each is not one for one in ended)]
        for pulls, transfer, sender, number in ended:
            transfer.release()
            self.end(pulls, well=False)
            self.ended(sender, number)

    @property
    def late(self) -> int:
        """How many pulls were given up whose transfers have not ended."""
        self.look_at_late()
        return len(self._late)

    def close(self) -> None:
        """End the thread. What still moves is left as it is. Idempotent."""
        self._closed.set()
        looker = self._looker
        if looker is not None:
            looker.join()


def _are_described(pulls: Records) -> bool:
    """Whether dtypes and shapes suit the sizes; most batches have one of each."""
    sizes, descriptors = pulls["nbytes"], pulls["what"]
    if len(pulls) > 1 and (sizes == sizes[0]).all() and (descriptors == descriptors[0]).all():
        sizes, descriptors = sizes[:1], descriptors[:1]
    pairs = set(zip(map(tuple, descriptors.tolist()), sizes.tolist(), strict=True))
    return all(shape_of(descriptor, nbytes) is not None for descriptor, nbytes in pairs)

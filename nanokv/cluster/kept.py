"""Memory that was offered to a node which has not answered as it should: kept until that node reads it no more.

Whoever was asked to pull may still do so, and memory that is given back, and perhaps unmapped, must not be read. So the
node is asked, now and then, whether the question is over; what it says so of, it takes no more either, should the
question itself come late. From a node that has left the cluster nothing is heard: what was kept for it goes a while
after.
"""

import logging
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from nanokv.cluster.card import Card
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.pull_message import BadMessage
from nanokv.cluster.wire.ways import Ways
from nanokv.errors import CacheClosed, PeerLost

_log = logging.getLogger("nanokv.cluster")

MOST_BYTES = 1 << 30  #: kept for one member; then nothing more is offered to it
MOST_NUMBERS = 4096  #: of one message
_AGAIN = 0.5  #: seconds between two questions
_GONE = 60.0  #: seconds after which a member that has left has no transfer that is under way
_WORD = 8


def numbers_message(numbers: Sequence[int]) -> bytes:
    """The question whether questions are over."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def numbers_of(body: bytes) -> list[int]:
    """The numbers in a `numbers_message`.

    Raises:
        BadMessage: it is no such message.
    """
    if not body or len(body) % _WORD or len(body) > MOST_NUMBERS * _WORD:
        raise BadMessage(f"{len(body)} bytes are no numbers of questions")
    found = list(struct.unpack(f"<{len(body) // _WORD}Q", body))
    if 0 in found:
        raise BadMessage("the number of a question is not 0")
    return found


class _Offer(NamedTuple):
    nbytes: int
    memory: Any


class _OfMember(dict[int, _Offer]):
    """What is kept for one member, by the number of the question."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        self.gone: float | None = None  # when it had left

    @property
    def nbytes(self) -> int:
        """How many bytes these are."""
        return sum(offer.nbytes for offer in list(self.values()))


class Kept:
    """Keeps the offers of one process that other members may still read.

    Attributes:
        members: by the incarnation of the member.
    """

    def __init__(self, ways: Ways, timeout: float) -> None:
        self._ways, self._timeout = ways, timeout
        self.members: dict[int, _OfMember] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def check_room(self, to: Card) -> None:
        """Raises PeerLost: so much is kept for a member already that it is offered nothing."""
        known = self.members.get(to.incarnation)
        if known and known.nbytes >= MOST_BYTES:
            raise PeerLost(f"node {to.node} has not answered puts of {known.nbytes} bytes, which it may still read")

    def add(self, to: Card, number: int, nbytes: int, memory: Any) -> None:
        """Keep the memory of a question that a member may still be reading."""
        with self._lock:
            self.members.setdefault(to.incarnation, _OfMember(to))[number] = _Offer(nbytes, memory)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="nanokv-cluster-kept", daemon=True)
                self._thread.start()

    def left(self, incarnation: int) -> None:
        """A member has left the cluster."""
        with self._lock:
            if incarnation in self.members:
                self.members[incarnation].gone = time.monotonic()

    @property
    def nbytes(self) -> int:
        """Bytes of their objects."""
        with self._lock:
            return sum(known.nbytes for known in self.members.values())

    def close(self) -> None:
        """Ask nobody any more. Idempotent."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_AGAIN):
            with self._lock:
                asked = [(known, list(known)[:MOST_NUMBERS]) for known in self.members.values()]
            for known, numbers in asked:
                over = self._over(known, numbers)
                with self._lock:
                    for number in over:
                        known.pop(number, None)
            with self._lock:
                for incarnation in [each for each, known in self.members.items() if not known]:
                    del self.members[incarnation]
                if not self.members:
                    self._thread = None
                    return

    def _over(self, known: _OfMember, numbers: list[int]) -> list[int]:
        """Which questions of a member are over."""
        if known.gone is not None:
            return numbers if time.monotonic() - known.gone > _GONE else []
        try:
            body = self._ways.ask(known.card, Kind.OVER, numbers_message(numbers), self._timeout)
        except (Unanswered, Refused, CacheClosed) as error:
            _log.debug("whether puts are over is asked again: %s", error)
            return []
        if len(body) != len(numbers):
            return []
        return [number for number, is_over in zip(numbers, body, strict=True) if is_over]

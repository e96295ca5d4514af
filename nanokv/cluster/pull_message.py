"""The messages of a put to another node: what the producer asks its owner to pull, and what the owner answers.

question: HEAD | the producer's card of the link | PULL records | bytes
answer:   PULLED records, one per PULL; or NEEDS_CARD: the owner does not have the producer's card (any more)

A question that brings the bytes of its objects, few as they are, needs no card and no ticket: nobody can change them.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.cluster.statuses import is_one_of
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.protocol.status import Status
from nanokv.device.segment.record import Field, Record

Records = npt.NDArray[Any]

NEEDS_CARD = b"card"
_STATUSES = tuple(map(int, Status))
MOST_PULLS = 256  #: of one message
MOST_BROUGHT = 60 * 1024  #: bytes of objects in one message: with so many PULLs they are a message of the wire
HEAD = Record(
    "PullHead",
    8,
    [
        Field("pulls", "<u4", "how many PULL records"),
        Field("card", "<u4", "bytes of the card of the link"),
        Field("ticket", "<u8", "the producer's address of the line whose first word is `number` as long as it waits"),
        Field("number", "<u8", "of this question, never 0"),
        Field("timeout_us", "<u8", "how long the producer waits"),
        Field("brought", "<u8", "bytes of the objects; 0: they are to be read from the sources"),
    ],
)


class BadMessage(Exception):
    """A message contradicts itself."""


class Question(NamedTuple):
    """What a producer asks for."""

    pulls: Records  #: PULL [n]
    card: bytes
    ticket: int
    number: int
    timeout: float  #: seconds
    brought: bytes = b""

    def packed(self) -> bytes:
        """The message as bytes."""
        head = (len(self.pulls), len(self.card), self.ticket, self.number, int(self.timeout * 1e6), len(self.brought))
        return b"".join((np.array([head], HEAD.dtype).tobytes(), self.card, self.pulls.tobytes(), self.brought))

    @staticmethod
    def unpacked(body: bytes) -> "Question":
        """The message that `packed` made bytes of.

        Raises:
            BadMessage: it is no such message.
        """
        if len(body) < HEAD.size:
            raise BadMessage(f"a question has at least {HEAD.size} bytes, not {len(body)}")
        count, card, ticket, number, timeout, brought = np.frombuffer(body, HEAD.dtype, 1)[0].item()
        records, end = HEAD.size + card, HEAD.size + card + count * PULL.size
        if not 0 < count <= MOST_PULLS or len(body) != end + brought:
            raise BadMessage(f"{count} pulls, a card of {card} bytes and {brought} bytes do not make {len(body)} bytes")
        if not number:
            raise BadMessage("the number of a question is not 0")
        pulls = np.frombuffer(body, PULL.dtype, count, records).copy()
        return Question(pulls, body[HEAD.size : records], ticket, number, timeout / 1e6, body[end:]).checked()

    def checked(self) -> "Question":
        """This question.

        Raises:
            BadMessage: the objects are not within the bytes that it brings.
        """
        sizes, sources = self.pulls["nbytes"], self.pulls["source"]
        if self.brought and ((sources < 0) | (sizes < 0) | (sources > len(self.brought) - sizes)).any():
            raise BadMessage(f"an object is not within the {len(self.brought)} bytes of its question")
        return self


def answer_of(pulls: Records) -> bytes:
    """The answer about PULLs, after the owner has ended them."""
    found = np.zeros(len(pulls), PULLED.dtype)
    for name in ("status", "rank", "slot", "epoch", "payload"):
        found[name] = pulls[name]
    return found.tobytes()


def answered(body: bytes, count: int) -> Records:
    """PULLED [count].

    Raises:
        BadMessage: the answer is about another number of PULLs, or says what no answer does.
    """
    if len(body) != count * PULLED.size:
        raise BadMessage(f"an answer about {count} pulls has {count * PULLED.size} bytes, not {len(body)}")
    found = np.frombuffer(body, PULLED.dtype)
    if not is_one_of(found["status"], _STATUSES).all():
        raise BadMessage("an answer about pulls has a status that is none")
    return found

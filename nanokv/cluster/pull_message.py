"""The messages of a put to another node: what the producer asks its owner to pull, and what the owner answers.

question: HEAD | the producer's card of the link | PULL records
answer:   PULLED records, one per PULL
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.fabric.records import PULL
from nanokv.device.segment.record import Field, Record

Records = npt.NDArray[Any]

MOST_PULLS = 4096  #: of one message
HEAD = Record(
    "PullHead",
    8,
    [
        Field("pulls", "<u4", "how many PULL records"),
        Field("card", "<u4", "bytes of the card of the link"),
        Field("ticket", "<u8", "the producer's address of the line whose first word is `number` as long as it waits"),
        Field("number", "<u8", "of this question, never 0"),
        Field("timeout_us", "<u8", "how long the producer waits"),
    ],
)
PULLED = Record(
    "Pulled",
    8,
    [
        Field("status", "<i4", "OK; or why there is no object"),
        Field("rank", "<i4", "the rank whose segment has it"),
        Field("slot", "<i8", "header slot"),
        Field("epoch", "<i8", "of the header"),
        Field("payload", "<i8", "offset of its first page"),
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

    def packed(self) -> bytes:
        """As bytes."""
        head = np.zeros(1, HEAD.dtype)
        head["pulls"], head["card"], head["ticket"] = len(self.pulls), len(self.card), self.ticket
        head["number"], head["timeout_us"] = self.number, int(self.timeout * 1e6)
        return head.tobytes() + self.card + self.pulls.tobytes()

    @staticmethod
    def unpacked(body: bytes) -> "Question":
        """Of `packed`.

        Raises:
            BadMessage: it is no such message.
        """
        if len(body) < HEAD.size:
            raise BadMessage(f"a question has at least {HEAD.size} bytes, not {len(body)}")
        head = np.frombuffer(body, HEAD.dtype, 1)[0]
        count, card = int(head["pulls"]), int(head["card"])
        if not 0 < count <= MOST_PULLS or len(body) != HEAD.size + card + count * PULL.size:
            raise BadMessage(f"{count} pulls and a card of {card} bytes do not make {len(body)} bytes")
        records = np.frombuffer(body, np.uint8)[HEAD.size + card :].copy().view(PULL.dtype)
        if not head["number"]:
            raise BadMessage("the number of a question is not 0")
        timeout = int(head["timeout_us"]) / 1e6
        return Question(records, body[HEAD.size : HEAD.size + card], int(head["ticket"]), int(head["number"]), timeout)


def answer_of(pulls: Records) -> bytes:
    """The answer about PULLs, after the owner has ended them."""
    found = np.zeros(len(pulls), PULLED.dtype)
    for name in ("status", "rank", "slot", "epoch", "payload"):
        found[name] = pulls[name]
    return found.tobytes()


def answered(body: bytes, count: int) -> Records:
    """PULLED [count].

    Raises:
        BadMessage: the answer is about another number of PULLs.
    """
    if len(body) != count * PULLED.size:
        raise BadMessage(f"an answer about {count} pulls has {count * PULLED.size} bytes, not {len(body)}")
    return np.frombuffer(body, PULLED.dtype)

"""The bytes of a message: a header, a body that is opaque here, and a MAC over both.

    0   u8   version
    1   u8   form: question, told, answer, error, event, beat or hello
    2   u16  kind: chosen by the sender, names the handler
    4   u64  number: of a question, and of its answer; of an event, from 1
    12  u64  incarnation of the sender
    20  u64  incarnation of the addressee; 0: any
    28  64 bytes   the sender's id, UTF-8, filled up with zeros
    92  64 bytes   the addressee's id; empty: all who follow the sender
    156 the body
    ... 16 bytes   HMAC-SHA256 of all that precedes it, cut to half

Integers are little-endian. The form keeps an answer from being taken for a question, and the addressee a question from
being taken by another member.
"""

import hmac
import struct
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from nanokv.arguments import integer
from nanokv.errors import InvalidArgument

VERSION = 1
BODY_LIMIT = 1 << 20  #: bytes
ID_LIMIT = 64  #: bytes of a member's id
ANY = 0  #: as the addressee's incarnation: whichever runs now
MAC_BYTES = 16
SHORTEST_SECRET = 16  #: bytes

_HEADER = struct.Struct(f"<BBHQQQ{ID_LIMIT}s{ID_LIMIT}s")
HEADER_BYTES = _HEADER.size
MESSAGE_LIMIT = HEADER_BYTES + BODY_LIMIT + MAC_BYTES  #: bytes
_U16, _U64 = (1 << 16) - 1, (1 << 64) - 1


class Form(IntEnum):
    """What a message is for."""

    QUESTION = 1
    TOLD = 2  #: as a question, and no answer is wanted
    ANSWER = 3
    ERROR = 4  #: in place of an answer; the body is a short text
    EVENT = 5
    BEAT = 6  #: of a publisher; its number is that of the last event
    HELLO = 7  #: the first message of a connection: who connects has the secret. No answer


class Reason(StrEnum):
    """Why a message was refused."""

    TRUNCATED = "too short to be a message"
    OVERSIZED = "longer than a message may be"
    VERSION = "of another version"
    MAC = "wrong MAC"
    MALFORMED = "authentic, and not a message"
    ADDRESSEE = "for another member, or another incarnation of this one"
    OLD_INCARNATION = "from an incarnation of its sender that a newer one has followed"
    REPLAYED = "taken before"
    TOO_OLD = "so far behind later ones that it may have been taken before"
    UNEXPECTED = "nobody waits for it here"


class Rejected(Exception):
    """A message that is not to be used."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Sender(NamedTuple):
    """A member: its id, and which run of it. A later run of the same member has a larger incarnation, whatever clocks
    say (`Membership.next_incarnation`)."""

    id: str
    incarnation: int


class Message(NamedTuple):
    """A message whose MAC is right."""

    form: Form
    kind: int
    number: int
    sender: Sender
    to: Sender
    body: bytes


EVERYBODY = Sender("", ANY)  #: the addressee of events


class Seal:
    """Makes messages of one member, and opens those for it.

    Args:
        secret: the cluster's, at least 16 bytes.
        me: this member; EVERYBODY: one that only listens to events.

    Raises:
        InvalidArgument: the secret is too short, or the member's id or incarnation is none.
    """

    def __init__(self, secret: bytes, me: Sender) -> None:
        if not isinstance(secret, bytes) or len(secret) < SHORTEST_SECRET:
            raise InvalidArgument(f"the secret must be at least {SHORTEST_SECRET} bytes")
        self.me = me
        if me != EVERYBODY:
            self.me = Sender(me.id, integer("incarnation", me.incarnation, 1, _U64))
            check_id("the member's id", me.id)
        self._keyed = hmac.new(secret, digestmod="sha256")  # a copy is made faster than a new one

    def seal(self, form: Form, kind: int, number: int, to: Sender, body: bytes) -> bytes:
        """A message of this member.

        Raises:
            InvalidArgument: the kind is not 0 to 65535, or the body not bytes, or longer than 1 MiB.
        """
        if not isinstance(body, bytes) or len(body) > BODY_LIMIT:
            raise InvalidArgument(f"a body must be bytes, at most {BODY_LIMIT}")
        kind, me = integer("kind", kind, 0, _U16), self.me
        header = _HEADER.pack(
            VERSION, form, kind, number, me.incarnation, to.incarnation, _packed(me.id), _packed(to.id)
        )
        return b"".join((header, body, self._mac(header + body)))

    def open(self, data: bytes) -> Message:
        """The message that these bytes are, if it is authentic and for this member.

        Raises:
            Rejected: otherwise.
        """
        if len(data) < HEADER_BYTES + MAC_BYTES:
            raise Rejected(Reason.TRUNCATED)
        if len(data) > MESSAGE_LIMIT:
            raise Rejected(Reason.OVERSIZED)
        if data[0] != VERSION:
            raise Rejected(Reason.VERSION)
        if not hmac.compare_digest(self._mac(memoryview(data)[:-MAC_BYTES]), data[-MAC_BYTES:]):
            raise Rejected(Reason.MAC)
        message = _parsed(data)
        if message.to.id != self.me.id or message.to.incarnation not in (ANY, self.me.incarnation):
            raise Rejected(Reason.ADDRESSEE)
        return message

    def _mac(self, covered: bytes | memoryview) -> bytes:
        made = self._keyed.copy()
        made.update(covered)
        return made.digest()[:MAC_BYTES]


def check_id(name: str, value: object) -> None:
    """Raise InvalidArgument unless the value can be a member's id: 1 to 32 bytes of UTF-8 without a zero."""
    try:
        if isinstance(value, str) and 1 <= len(value.encode()) <= ID_LIMIT and "\0" not in value:
            return
    except UnicodeEncodeError:
        pass
    raise InvalidArgument(f"{name} must be a string of 1 to {ID_LIMIT} bytes of UTF-8, not {value!r}")


def _parsed(data: bytes) -> Message:
    _, form, kind, number, incarnation, to_incarnation, sender, to = _HEADER.unpack_from(data)
    try:
        return Message(
            Form(form),
            kind,
            number,
            Sender(_unpacked(sender), incarnation),
            Sender(_unpacked(to), to_incarnation),
            data[HEADER_BYTES:-MAC_BYTES],
        )
    except ValueError:  # no such form, or an id that is not UTF-8: the sender has a bug, or is no NanoKV
        raise Rejected(Reason.MALFORMED) from None


@lru_cache(4096)
def _packed(name: str) -> bytes:
    return name.encode()


@lru_cache(4096)
def _unpacked(name: bytes) -> str:
    return name.rstrip(b"\0").decode()

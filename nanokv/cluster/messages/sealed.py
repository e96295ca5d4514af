"""The bytes of an event: a header, a body that is opaque here, and a MAC over both.

    0   u8   version
    1   u8   form: event or beat
    2   u64  number: of an event, from 1; a beat has that of the last event
    10  u64  incarnation of the sender
    18  64 bytes   the sender's id, UTF-8, filled up with zeros
    82  the body
    ... 16 bytes   HMAC-SHA256 of all that precedes it, cut to half

Integers are little-endian. Questions and answers go over the wire, which has frames of its own.

With `seal="all"` there is no MAC, and header and body are enciphered:

    0   u8   another version
    1   16 bytes   random, of this run of the sender; the key is HMAC-SHA256 of them under the cluster's secret
    17  u64  messages that the sender has sealed before this one: the nonce
    25  header and body, enciphered by AES-256-GCM, and its tag, which covers the 25 bytes too

A run has a key of its own, so no nonce is used twice, whatever becomes of incarnations. Who learns the secret later can
read what was recorded: there is no handshake by which a key could be one of this hour.
"""

import hmac
import secrets
import struct
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nanokv.arguments import integer
from nanokv.cluster.seals import ALL, HEADS
from nanokv.errors import InvalidArgument

VERSION, ENCIPHERED = 2, 3
BODY_LIMIT = 1 << 20  #: bytes
ID_LIMIT = 64  #: bytes of a member's id
MAC_BYTES = 16
SHORTEST_SECRET = 16  #: bytes

_FRONT = struct.Struct("<B16sQ")  # of what is enciphered
_NONCE = struct.Struct(">4xQ")
_HEADER = struct.Struct(f"<BBQQ{ID_LIMIT}s")
HEADER_BYTES = _HEADER.size
MESSAGE_LIMIT = HEADER_BYTES + BODY_LIMIT + MAC_BYTES  #: bytes; what is enciphered has _FRONT.size more
_SENDERS = 4096  #: whose keys are kept
_U64 = (1 << 64) - 1


class Form(IntEnum):
    """What a message is for. Stored in messages: never renumber them."""

    EVENT = 5
    BEAT = 6  #: of a publisher; its number is that of the last event


class Reason(StrEnum):
    """Why a message was refused."""

    TRUNCATED = "too short to be a message"
    OVERSIZED = "longer than a message may be"
    VERSION = "of another version"
    MAC = "wrong MAC"
    MALFORMED = "authentic, and not a message"
    OLD_INCARNATION = "from an incarnation of its sender that a newer one has followed"
    REPLAYED = "taken before"
    UNEXPECTED = "of a sender that nobody follows here"


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
    number: int
    sender: Sender
    body: bytes


class Seal:
    """Makes messages, and opens them.

    Args:
        secret: the cluster's, at least 16 bytes. seal: as of `ClusterOptions`.

    Raises:
        InvalidArgument: the secret is too short.
    """

    def __init__(self, secret: bytes, seal: str = HEADS) -> None:
        if not isinstance(secret, bytes) or len(secret) < SHORTEST_SECRET:
            raise InvalidArgument(f"the secret must be at least {SHORTEST_SECRET} bytes")
        self._keyed = hmac.new(secret, digestmod="sha256")  # a copy is made faster than a new one
        self._cipher = _Cipher(secret) if seal == ALL else None
        self._version = VERSION if self._cipher is None else ENCIPHERED

    def seal(self, form: Form, number: int, sender: Sender, body: bytes) -> bytes:
        """A message of a member.

        Raises:
            InvalidArgument: the body is not bytes, or longer than 1 MiB.
        """
        if not isinstance(body, bytes) or len(body) > BODY_LIMIT:
            raise InvalidArgument(f"a body must be bytes, at most {BODY_LIMIT}")
        plain = _HEADER.pack(self._version, form, number, sender.incarnation, sender.id.encode()) + body
        return plain + self._mac(plain) if self._cipher is None else self._cipher.enciphered(plain)

    def open(self, data: bytes) -> Message:
        """The message that these bytes are, if it is authentic.

        Raises:
            Rejected: otherwise.
        """
        front = 0 if self._cipher is None else _FRONT.size
        if len(data) < front + HEADER_BYTES + MAC_BYTES:
            raise Rejected(Reason.TRUNCATED)
        if len(data) > front + MESSAGE_LIMIT:
            raise Rejected(Reason.OVERSIZED)
        if data[0] != self._version:
            raise Rejected(Reason.VERSION)
        if self._cipher is not None:
            plain = self._cipher.deciphered(data)
        elif hmac.compare_digest(self._mac(memoryview(data)[:-MAC_BYTES]), data[-MAC_BYTES:]):
            plain = data[:-MAC_BYTES]
        else:
            raise Rejected(Reason.MAC)
        _, form, number, incarnation, sender = _HEADER.unpack_from(plain)
        try:
            return Message(Form(form), number, Sender(_unpacked(sender), incarnation), plain[HEADER_BYTES:])
        except ValueError:  # no such form, or an id that is not UTF-8: the sender has a bug, or is no NanoKV
            raise Rejected(Reason.MALFORMED) from None

    def _mac(self, covered: bytes | memoryview) -> bytes:
        made = self._keyed.copy()
        made.update(covered)
        return made.digest()[:MAC_BYTES]


class _Cipher:
    """Enciphers messages of one run, and deciphers those of all. One thread at a time makes them."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._salt, self._count = secret, secrets.token_bytes(16), 0
        self._of = lru_cache(_SENDERS)(self._made)

    def _made(self, salt: bytes) -> AESGCM:
        return AESGCM(hmac.digest(self._secret, b"nanokv events\0" + salt, "sha256"))

    def enciphered(self, plain: bytes) -> bytes:
        front = _FRONT.pack(ENCIPHERED, self._salt, self._count)
        nonce = _NONCE.pack(self._count)
        self._count += 1
        return front + self._of(self._salt).encrypt(nonce, plain, front)

    def deciphered(self, data: bytes) -> bytes:
        """Raises Rejected: nobody who knows the secret has made it."""
        front = data[: _FRONT.size]
        _, salt, count = _FRONT.unpack(front)
        try:
            return self._of(salt).decrypt(_NONCE.pack(count), memoryview(data)[_FRONT.size :], front)
        except InvalidTag:
            raise Rejected(Reason.MAC) from None


def checked_sender(name: object, incarnation: object) -> Sender:
    """A member.

    Raises:
        InvalidArgument: its id or incarnation is none.
    """
    found = integer("incarnation", incarnation, 1, _U64)
    check_id("the member's id", name)
    assert isinstance(name, str)
    return Sender(name, found)


def check_id(name: str, value: object) -> None:
    """Raise InvalidArgument unless the value can be a member's id: 1 to 32 bytes of UTF-8 without a zero."""
    try:
        if isinstance(value, str) and 1 <= len(value.encode()) <= ID_LIMIT and "\0" not in value:
            return
    except UnicodeEncodeError:
        pass
    raise InvalidArgument(f"{name} must be a string of 1 to {ID_LIMIT} bytes of UTF-8, not {value!r}")


@lru_cache(4096)
def _unpacked(name: bytes) -> str:
    return name.rstrip(b"\0").decode()

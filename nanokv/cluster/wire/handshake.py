"""How two members agree on the keys of a connection.

    asker -> owner   HELLO    purpose, asker's id and incarnation, owner's id and incarnation, 32 random bytes, X25519
                              public key, HMAC-SHA256 of all that under the cluster's secret
    owner -> asker   WELCOME  32 random bytes, X25519 public key, HMAC-SHA256 of HELLO and that

Both derive the keys of the two directions by HKDF-SHA256 from what X25519 gives, with a salt that only who knows the
secret can make of both messages.

Guarantees
- Each end has shown that it knows the secret, that it means this incarnation of the other, and that it is there now:
  the other's random bytes are in what it has sealed.
- Both ends have the same seal: it is in the purpose, which both have sealed. Nobody can talk them into the other one.
- A HELLO that is sent again gets another WELCOME, so keys that nobody has.
- Forward secrecy: who learns the secret later, and has recorded all bytes, has no key. The private keys of X25519 lie
  in memory of the handshake only.
"""

import hashlib
import hmac
import secrets
import struct
from typing import NamedTuple

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nanokv.cluster.messages.sealed import ID_LIMIT, Sender
from nanokv.cluster.seals import ALL, HEADS, other_seal

#: for what a connection is made; another one with each change of frames or records
FRAMES, SEALED, GUEST = b"nanokvw3", b"nanokvs1", b"nanokvg1"
OF_SEAL = {HEADS: FRAMES, ALL: SEALED}  #: by `ClusterOptions.seal`
_SEAL_OF = {purpose: seal for seal, purpose in OF_SEAL.items()}
_RANDOM = _PUBLIC = _TAG = 32
_KEY_BYTES = {FRAMES: 16, SEALED: 32, GUEST: 16}
_HELLO = struct.Struct(f"<8s{ID_LIMIT}sQ{ID_LIMIT}sQ{_RANDOM}s{_PUBLIC}s")
HELLO_BYTES, WELCOME_BYTES = _HELLO.size + _TAG, _RANDOM + _PUBLIC + _TAG


class NoHandshake(Exception):
    """The other end is no member of this cluster, or means another one than this."""


class Keys(NamedTuple):
    """The keys of a connection: of SipHash, 16 bytes each, or of AES-256 if it is sealed, 32 bytes."""

    asks: bytes  #: of what the asker sends
    answers: bytes  #: of what the owner sends


class Greeting:
    """The asker's part.

    Args:
        secret: the cluster's. me, to: who asks, and whom. purpose: FRAMES, SEALED or GUEST.

    Attributes:
        hello: the bytes to send.
    """

    def __init__(self, secret: bytes, me: Sender, to: Sender, purpose: bytes = FRAMES) -> None:
        self._secret, self._private, self._purpose = secret, X25519PrivateKey.generate(), purpose
        self._hello = _HELLO.pack(
            purpose,
            me.id.encode(),
            me.incarnation,
            to.id.encode(),
            to.incarnation,
            secrets.token_bytes(_RANDOM),
            self._private.public_key().public_bytes_raw(),
        )
        self.hello = self._hello + _tag(secret, b"hello", self._hello)

    def keys(self, welcome: bytes) -> Keys:
        """The keys, from what the owner has sent.

        Raises:
            NoHandshake: it does not know the secret.
        """
        said, tag = welcome[:-_TAG], welcome[-_TAG:]
        if not hmac.compare_digest(tag, _tag(self._secret, b"welcome", self._hello + said)):
            raise NoHandshake("who listens does not know the secret of this cluster")
        return _derived(self._secret, self._private, said[_RANDOM:], self._hello + said, self._purpose)


class Asker(NamedTuple):
    """Who has shaken hands, as the owner knows it."""

    purpose: bytes  #: FRAMES, SEALED or GUEST
    who: Sender
    keys: Keys


def welcome(secret: bytes, me: Sender, received: bytes, seal: str = HEADS) -> tuple[Asker, bytes]:
    """The owner's part: who asks, and the bytes to send.

    Args:
        seal: of this member: connections for frames are of this one, or none.

    Raises:
        NoHandshake: the asker does not know the secret, or means another member or incarnation, or has another seal.
    """
    hello, tag = received[:-_TAG], received[-_TAG:]
    purpose, sender, incarnation, to, to_incarnation, _, public = _HELLO.unpack(hello)
    if purpose not in _KEY_BYTES:
        raise NoHandshake("it speaks another version, or no language of NanoKV at all")
    if not hmac.compare_digest(tag, _tag(secret, b"hello", hello)):
        raise NoHandshake("it does not know the secret of this cluster")
    if (to.rstrip(b"\0"), to_incarnation) != (me.id.encode(), me.incarnation):
        raise NoHandshake("it means another member, or another incarnation of this one")
    if _SEAL_OF.get(purpose, seal) != seal:
        raise NoHandshake(other_seal(_SEAL_OF[purpose], seal))
    private = X25519PrivateKey.generate()
    said = secrets.token_bytes(_RANDOM) + private.public_key().public_bytes_raw()
    keys = _derived(secret, private, public, hello + said, purpose)
    asker = Asker(purpose, Sender(sender.rstrip(b"\0").decode(), incarnation), keys)
    return asker, said + _tag(secret, b"welcome", hello + said)


def _tag(secret: bytes, purpose: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, b"nanokv wire " + purpose + b"\0" + said, hashlib.sha256)


def _derived(secret: bytes, private: X25519PrivateKey, public: bytes, said: bytes, purpose: bytes) -> Keys:
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except (ValueError, InvalidKey):  # a point of low order: the other end would know the keys without its own
        raise NoHandshake("its public key is none") from None
    size = _KEY_BYTES[purpose]  # the salt has the purpose in it
    made = HKDF(SHA256(), 2 * size, _tag(secret, b"keys", said), b"nanokv wire asks, answers").derive(shared)
    return Keys(made[:size], made[size:])

"""The handshake, as its bytes and its keys are documented: taken apart by hand, and with what is wrong in it."""

import hashlib
import hmac
import os
import socket
import struct
from contextlib import closing

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.sealed import ID_LIMIT, Sender
from nanokv.cluster.wire.handshake import (
    FRAMES,
    GUEST,
    HELLO_BYTES,
    WELCOME_BYTES,
    Greeting,
    Keys,
    NoHandshake,
    welcome,
)
from nanokv.device.protocol.status import Status
from tests.support.until import until

from .conftest import ASKER, OWNER, SECONDS, SECRET, Served

HELLO = struct.Struct(f"<8s{ID_LIMIT}sQ{ID_LIMIT}sQ32s32s")
LOW_ORDER = bytes(32)  #: a point of X25519 with which all share a secret that is 0


def tag(purpose: bytes, said: bytes) -> bytes:
    """HMAC-SHA256 under the cluster's secret."""
    return hmac.digest(SECRET, b"nanokv wire " + purpose + b"\0" + said, hashlib.sha256)


def hello(public: bytes, purpose: bytes = FRAMES, to: Sender = OWNER) -> bytes:
    """A HELLO that is sealed."""
    said = HELLO.pack(
        purpose, ASKER.id.encode(), ASKER.incarnation, to.id.encode(), to.incarnation, os.urandom(32), public
    )
    return said + tag(b"hello", said)


def keys(private: X25519PrivateKey, public: bytes, said: bytes) -> Keys:
    """The keys of a connection. said: HELLO and WELCOME without their tags."""
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    made = HKDF(SHA256(), 32, tag(b"keys", said), b"nanokv wire asks, answers").derive(shared)
    return Keys(made[:16], made[16:])


def test_keys_are_those_that_are_documented() -> None:
    private = X25519PrivateKey.generate()
    sent = hello(private.public_key().public_bytes_raw())
    asker, said = welcome(SECRET, OWNER, sent)
    assert (len(sent), len(said)) == (HELLO_BYTES, WELCOME_BYTES)
    assert (asker.purpose, asker.who) == (FRAMES, ASKER)
    assert said[-32:] == tag(b"welcome", sent[:-32] + said[:-32])
    assert asker.keys == keys(private, said[32:64], sent[:-32] + said[:-32])
    assert asker.keys.asks != asker.keys.answers and {len(key) for key in asker.keys} == {16}


def test_both_ends_have_the_same_keys_each_time_others() -> None:
    seen = set()
    for purpose in (FRAMES, GUEST):
        greeting = Greeting(SECRET, ASKER, OWNER, purpose)
        for _ in range(2):  # a HELLO that is sent again gets another WELCOME
            asker, said = welcome(SECRET, OWNER, greeting.hello)
            assert greeting.keys(said) == asker.keys and asker.purpose == purpose
            seen |= set(asker.keys)
    assert len(seen) == 8


@pytest.mark.parametrize("bit", [0, 8 * 32, 8 * 64, 8 * WELCOME_BYTES - 1])
def test_a_welcome_that_was_changed_is_none(bit: int) -> None:
    greeting = Greeting(SECRET, ASKER, OWNER)
    _, said = welcome(SECRET, OWNER, greeting.hello)
    changed = bytearray(said)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(NoHandshake, match="who listens does not know the secret"):
        greeting.keys(bytes(changed))


def test_a_welcome_of_another_hello_is_none() -> None:
    _, recorded = welcome(SECRET, OWNER, Greeting(SECRET, ASKER, OWNER).hello)
    with pytest.raises(NoHandshake, match="who listens does not know the secret"):
        Greeting(SECRET, ASKER, OWNER).keys(recorded)


def test_a_hello_that_was_changed_is_none() -> None:
    sent = Greeting(SECRET, ASKER, OWNER).hello
    for at in range(8, HELLO_BYTES):
        changed = bytearray(sent)
        changed[at] ^= 1
        with pytest.raises(NoHandshake, match="it does not know the secret"):
            welcome(SECRET, OWNER, bytes(changed))


def test_a_hello_of_another_version_or_for_another_member_is_none() -> None:
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(NoHandshake, match="it speaks another version"):
        welcome(SECRET, OWNER, hello(public, b"nanokvw0"))
    for to in (Sender(OWNER.id + "0", OWNER.incarnation), Sender(OWNER.id, OWNER.incarnation - 1)):
        with pytest.raises(NoHandshake, match="it means another member, or another incarnation"):
            welcome(SECRET, OWNER, hello(public, to=to))


def test_a_key_that_all_would_know_is_none(served: Served) -> None:
    with pytest.raises(NoHandshake, match="its public key is none"):
        welcome(SECRET, OWNER, hello(LOW_ORDER))
    greeting = Greeting(SECRET, ASKER, OWNER)
    said = os.urandom(32) + LOW_ORDER
    with pytest.raises(NoHandshake, match="its public key is none"):
        greeting.keys(said + tag(b"welcome", greeting.hello[:-32] + said))
    with closing(socket.socket(socket.AF_UNIX)) as made:  # and the server goes on
        made.settimeout(SECONDS)
        made.connect(f"\0{served.server.local.removeprefix('unix:')}")
        made.sendall(hello(LOW_ORDER))
        assert made.recv(1) == b""
    until(lambda: served.server.counts == {DropReason.STRANGER: 1}, "its count")
    assert served.client().exists(np.array([[1, 2]]), SECONDS).tolist() == [int(Status.MISS)]

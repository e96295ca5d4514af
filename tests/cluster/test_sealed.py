"""The bytes of events: what is sealed is opened, and nothing else is."""

import hmac
import struct
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from nanokv.cluster.messages.sealed import (
    BODY_LIMIT,
    HEADER_BYTES,
    MAC_BYTES,
    MESSAGE_LIMIT,
    Form,
    Message,
    Reason,
    Rejected,
    Seal,
    Sender,
    checked_sender,
)
from nanokv.cluster.seals import ALL
from nanokv.errors import InvalidArgument

SECRET = b"the secret of this cluster, only"
SEAL, A = Seal(SECRET), Sender("a", 7)
CIPHER = Seal(SECRET, ALL)
EVENT = SEAL.seal(Form.EVENT, 5, A, b"body")

u64 = st.integers(0, (1 << 64) - 1)
ids = st.text(min_size=1, max_size=16).filter(lambda text: "\0" not in text and text.isprintable())


def refused(seal: Seal, data: bytes) -> Reason:
    with pytest.raises(Rejected) as rejected:
        seal.open(data)
    return rejected.value.reason


def with_mac(covered: bytes) -> bytes:
    return covered + hmac.digest(SECRET, covered, "sha256")[:MAC_BYTES]


def test_the_layout_is_as_it_is_written_down() -> None:
    parts = (2, 5, 5, 7, b"a".ljust(64, b"\0"))
    assert with_mac(struct.pack("<BBQQ64s", *parts) + b"body") == EVENT
    assert (HEADER_BYTES, MESSAGE_LIMIT) == (82, 82 + (1 << 20) + 16)


@given(st.sampled_from(Form), u64, ids, u64.filter(bool), st.binary(max_size=300))
def test_what_is_sealed_is_opened(form: Form, number: int, sender: str, incarnation: int, body: bytes) -> None:
    me = Sender(sender, incarnation)
    assert Seal(SECRET).open(SEAL.seal(form, number, me, body)) == Message(form, number, me, body)


def test_the_longest_body_is_opened() -> None:
    body = bytes(BODY_LIMIT)
    assert SEAL.open(SEAL.seal(Form.EVENT, 1, A, body)).body == body


@given(st.integers(0, len(EVENT) * 8 - 1))
def test_a_flipped_bit_is_refused(bit: int) -> None:
    data = bytearray(EVENT)
    data[bit // 8] ^= 1 << bit % 8
    assert refused(SEAL, bytes(data)) is (Reason.VERSION if bit < 8 else Reason.MAC)


@given(st.binary(max_size=400) | st.binary(min_size=HEADER_BYTES, max_size=400).map(lambda data: b"\2" + data))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert refused(SEAL, data) in (Reason.TRUNCATED, Reason.VERSION, Reason.MAC)


@given(st.binary(min_size=HEADER_BYTES - 2, max_size=400), st.sampled_from([*Form, 0, 7, 255]))
def test_authentic_bytes_raise_nothing_else(data: bytes, form: int) -> None:
    sealed = with_mac(bytes([2, form]) + data)
    try:
        assert SEAL.open(sealed).form == form
    except Rejected as rejected:
        assert rejected.reason is Reason.MALFORMED


@given(st.integers(0, len(EVENT) - 1))
def test_a_part_is_refused(length: int) -> None:
    shortest = HEADER_BYTES + MAC_BYTES
    assert refused(SEAL, EVENT[:length]) is (Reason.TRUNCATED if length < shortest else Reason.MAC)


def test_what_is_too_long_or_was_appended_is_refused() -> None:
    assert refused(SEAL, EVENT + b"x") is Reason.MAC
    assert refused(SEAL, bytes(MESSAGE_LIMIT + 1)) is Reason.OVERSIZED
    assert refused(SEAL, with_mac(EVENT[:HEADER_BYTES] + bytes(BODY_LIMIT + 1))) is Reason.OVERSIZED


def test_another_version_or_secret_is_refused() -> None:
    assert refused(SEAL, with_mac(b"\1" + EVENT[1:-MAC_BYTES])) is Reason.VERSION
    assert refused(Seal(SECRET[::-1]), EVENT) is Reason.MAC


@pytest.mark.parametrize("secret", [b"", b"short", "a string of more than 16 characters", None])
def test_a_secret_must_be_long_enough(secret: Any) -> None:
    with pytest.raises(InvalidArgument, match="secret must be at least 16 bytes"):
        Seal(secret)


@pytest.mark.parametrize("name", ["", "x" * 65, "ä" * 33, "a\0b", "\ud800", 5, None, b"a"])
def test_an_id_must_fit(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="the member's id must be"):
        checked_sender(name, 1)
    checked_sender("ä" * 32, 1)


@pytest.mark.parametrize("incarnation", [0, -1, 1 << 64, 1.0, None])
def test_an_incarnation_must_fit(incarnation: Any) -> None:
    with pytest.raises(InvalidArgument, match="incarnation must be"):
        checked_sender("a", incarnation)


@pytest.mark.parametrize("body", ["text", bytes(BODY_LIMIT + 1)])
def test_a_body_must_fit(body: Any) -> None:
    with pytest.raises(InvalidArgument):
        SEAL.seal(Form.EVENT, 1, A, body)


# --- seal="all" ---
def test_the_layout_of_what_is_enciphered() -> None:
    sender = Seal(SECRET, ALL)
    for count in range(3):
        data = sender.seal(Form.EVENT, 5, A, b"body")
        version, salt, number = struct.unpack_from("<B16sQ", data)
        assert (version, number) == (3, count)
        key = hmac.digest(SECRET, b"nanokv events\0" + salt, "sha256")
        plain = AESGCM(key).decrypt(struct.pack(">4xQ", count), data[25:], data[:25])
        assert plain == struct.pack("<BBQQ64s", 3, 5, 5, 7, b"a".ljust(64, b"\0")) + b"body"


@given(st.sampled_from(Form), u64, ids, u64.filter(bool), st.binary(max_size=300))
def test_what_is_enciphered_is_opened(form: Form, number: int, sender: str, incarnation: int, body: bytes) -> None:
    me = Sender(sender, incarnation)
    sealed = CIPHER.seal(form, number, me, body)
    assert Seal(SECRET, ALL).open(sealed) == Message(form, number, me, body)
    assert len(body) < 8 or body not in sealed


def test_the_longest_body_is_enciphered() -> None:
    body = bytes(BODY_LIMIT)
    assert CIPHER.open(CIPHER.seal(Form.EVENT, 1, A, body)).body == body
    with pytest.raises(InvalidArgument):
        CIPHER.seal(Form.EVENT, 1, A, body + b"a")


def test_no_key_and_nonce_are_used_twice() -> None:
    fronts = [Seal(SECRET, ALL).seal(Form.BEAT, 0, A, b"")[:25] for _ in range(3)]
    fronts += [CIPHER.seal(Form.BEAT, 0, A, b"")[:25] for _ in range(3)]
    assert len(set(fronts)) == 6


def test_a_changed_byte_of_what_is_enciphered_is_refused() -> None:
    data = CIPHER.seal(Form.EVENT, 5, A, b"body")
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert refused(CIPHER, changed) is (Reason.MAC if at else Reason.VERSION)
    for size in range(len(data)):
        assert refused(CIPHER, data[:size]) in (Reason.TRUNCATED, Reason.MAC)
    assert refused(Seal(SECRET[::-1], ALL), data) is Reason.MAC


def test_a_message_of_another_seal_is_refused() -> None:
    assert refused(SEAL, CIPHER.seal(Form.EVENT, 5, A, b"body" * 20)) is Reason.VERSION
    assert refused(CIPHER, SEAL.seal(Form.EVENT, 5, A, b"body" * 20)) is Reason.VERSION

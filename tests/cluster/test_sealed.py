"""The bytes of messages: what is sealed is opened, and nothing else is; no number of a sender is taken twice."""

import contextlib
import hmac
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.cluster.messages.sealed import (
    ANY,
    BODY_LIMIT,
    EVERYBODY,
    HEADER_BYTES,
    MAC_BYTES,
    MESSAGE_LIMIT,
    Form,
    Message,
    Reason,
    Rejected,
    Seal,
    Sender,
)
from nanokv.cluster.messages.server import WINDOW, Taken
from nanokv.errors import InvalidArgument

SECRET = b"the secret of this cluster, only"
A, B = Sender("a", 7), Sender("b", 9)
FROM_A, FROM_B = Seal(SECRET, A), Seal(SECRET, B)
QUESTION = FROM_A.seal(Form.QUESTION, 3, 5, B, b"body")

u64 = st.integers(0, (1 << 64) - 1)
ids = st.text(min_size=1, max_size=16).filter(lambda text: "\0" not in text and text.isprintable())


def refused(seal: Seal, data: bytes) -> Reason:
    with pytest.raises(Rejected) as rejected:
        seal.open(data)
    return rejected.value.reason


def with_mac(covered: bytes) -> bytes:
    return covered + hmac.digest(SECRET, covered, "sha256")[:MAC_BYTES]


def test_the_layout_is_as_it_is_written_down() -> None:
    parts = (1, 1, 3, 5, 7, 9, b"a".ljust(64, b"\0"), b"b".ljust(64, b"\0"))
    assert with_mac(struct.pack("<BBHQQQ64s64s", *parts) + b"body") == QUESTION
    assert (HEADER_BYTES, MESSAGE_LIMIT) == (156, 156 + (1 << 20) + 16)


@given(st.sampled_from(Form), st.integers(0, 65535), u64, ids, u64.filter(bool), ids, st.binary(max_size=300))
def test_what_is_sealed_is_opened(
    form: Form, kind: int, number: int, sender: str, incarnation: int, to: str, body: bytes
) -> None:
    me, you = Sender(sender, incarnation), Sender(to, incarnation)
    sealed = Seal(SECRET, me).seal(form, kind, number, you, body)
    assert Seal(SECRET, you).open(sealed) == Message(form, kind, number, me, you, body)


def test_the_longest_body_is_opened() -> None:
    body = bytes(BODY_LIMIT)
    assert FROM_B.open(FROM_A.seal(Form.QUESTION, 0, 1, B, body)).body == body


@given(st.integers(0, len(QUESTION) * 8 - 1))
def test_a_flipped_bit_is_refused(bit: int) -> None:
    data = bytearray(QUESTION)
    data[bit // 8] ^= 1 << bit % 8
    assert refused(FROM_B, bytes(data)) is (Reason.VERSION if bit < 8 else Reason.MAC)


@given(st.binary(max_size=400) | st.binary(min_size=HEADER_BYTES, max_size=400).map(lambda data: b"\1" + data))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert refused(FROM_B, data) in (Reason.TRUNCATED, Reason.VERSION, Reason.MAC)


@given(st.binary(min_size=HEADER_BYTES - 2, max_size=400), st.sampled_from([*Form, 0, 7, 255]))
def test_authentic_bytes_raise_nothing_else(data: bytes, form: int) -> None:
    sealed = with_mac(bytes([1, form]) + data)
    assert refused(FROM_B, sealed) in (Reason.MALFORMED, Reason.ADDRESSEE)


@given(st.integers(0, len(QUESTION) - 1))
def test_a_part_is_refused(length: int) -> None:
    shortest = HEADER_BYTES + MAC_BYTES
    assert refused(FROM_B, QUESTION[:length]) is (Reason.TRUNCATED if length < shortest else Reason.MAC)


def test_what_is_too_long_or_was_appended_is_refused() -> None:
    assert refused(FROM_B, QUESTION + b"x") is Reason.MAC
    assert refused(FROM_B, bytes(MESSAGE_LIMIT + 1)) is Reason.OVERSIZED
    assert refused(FROM_B, with_mac(QUESTION[:HEADER_BYTES] + bytes(BODY_LIMIT + 1))) is Reason.OVERSIZED


def test_another_version_secret_or_addressee_is_refused() -> None:
    assert refused(FROM_B, with_mac(b"\2" + QUESTION[1:-MAC_BYTES])) is Reason.VERSION
    assert refused(Seal(SECRET[::-1], B), QUESTION) is Reason.MAC
    assert refused(FROM_A, QUESTION) is Reason.ADDRESSEE
    assert refused(Seal(SECRET, Sender("b", 10)), QUESTION) is Reason.ADDRESSEE
    to_any = FROM_A.seal(Form.QUESTION, 3, 5, Sender("b", ANY), b"")
    assert Seal(SECRET, Sender("b", 10)).open(to_any).to == Sender("b", ANY)
    assert refused(Seal(SECRET, EVERYBODY), to_any) is Reason.ADDRESSEE


@pytest.mark.parametrize("secret", [b"", b"short", "a string of more than 16 characters", None])
def test_a_secret_must_be_long_enough(secret: Any) -> None:
    with pytest.raises(InvalidArgument, match="secret must be at least 16 bytes"):
        Seal(secret, A)


@pytest.mark.parametrize("name", ["", "x" * 65, "ä" * 33, "a\0b", "\ud800", 5, None, b"a"])
def test_an_id_must_fit(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="the member's id must be"):
        Seal(SECRET, Sender(name, 1))
    Seal(SECRET, Sender("ä" * 32, 1))


@pytest.mark.parametrize("incarnation", [0, -1, 1 << 64, 1.0, None])
def test_an_incarnation_must_fit(incarnation: Any) -> None:
    with pytest.raises(InvalidArgument, match="incarnation must be"):
        Seal(SECRET, Sender("a", incarnation))


@pytest.mark.parametrize(("kind", "body"), [(-1, b""), (65536, b""), (1, "text"), (1, bytes(BODY_LIMIT + 1))])
def test_a_kind_and_a_body_must_fit(kind: int, body: Any) -> None:
    with pytest.raises(InvalidArgument):
        FROM_A.seal(Form.QUESTION, kind, 1, B, body)


def refused_number(taken: Taken, sender: Sender, number: int) -> Reason | None:
    try:
        taken.take(sender, number)
    except Rejected as rejected:
        return rejected.reason
    return None


@given(st.lists(st.integers(1, 50) | st.integers(1, 3 * WINDOW) | u64.filter(bool), max_size=60))
def test_numbers_are_taken_once(numbers: list[int]) -> None:
    taken, known = Taken(), set[int]()
    for number in numbers:
        found = refused_number(taken, A, number)
        if number <= max(known, default=0) - WINDOW:
            assert found is Reason.TOO_OLD
        else:
            assert found is (Reason.REPLAYED if number in known else None)
            known.add(number)


def test_numbers_start_anew_with_each_incarnation_and_sender() -> None:
    taken = Taken()
    assert [refused_number(taken, sender, 1) for sender in (A, B, A)] == [None, None, Reason.REPLAYED]
    newer = Sender("a", 8)
    assert refused_number(taken, newer, 1) is None
    assert [refused_number(taken, A, number) for number in (1, 2)] == [Reason.OLD_INCARNATION] * 2
    assert refused_number(taken, newer, 2) is None


def test_a_huge_number_takes_no_memory() -> None:
    taken = Taken()
    with contextlib.suppress(Rejected):
        for number in (1, (1 << 64) - 1, 1 << 63):
            taken.take(A, number)
    assert refused_number(taken, A, (1 << 64) - 2) is None

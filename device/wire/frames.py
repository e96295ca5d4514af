"""Frames: how many bytes one has, whether its MAC is right, and how one is closed.

Guarantees: what `is_authentic` passes was written, as it is, by whoever has the key of this direction of this
connection, and is the next one that was: none is left out, sent again, or taken from elsewhere. It is read here only
from memory that no other process can write to. Frames of a sealed connection have this from their parcels
(`parcels.take`), and no MAC.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.records import PULL_BYTES
from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.unsigned import store_word
from nanokv.device.segment.layout import LOW32, WORD_BYTES
from nanokv.device.wire.records import (
    C_KEY_IN,
    C_KEY_OUT,
    C_LIBCRYPTO,
    C_MAC,
    C_SEEN,
    C_SENT,
    CALL,
    CALL_BODY,
    COVERED,
    END,
    EXISTS,
    GET,
    HEAD_BYTES,
    INLINE,
    KEY_BYTES,
    KEYS,
    MAC_BYTES,
    MORE,
    NUMBER,
    OFFER,
    PAYLOAD,
    PUT,
    RECORDS,
    REMOVE,
    WANTED_BYTES,
)
from nanokv.device.wire.siphash import sip_begin, sip_end, sip_words

NO_FRAME = tl.constexpr(-1)
KIND_BITS = tl.constexpr(32)


@triton.jit
def of(record: tl.int64, field: tl.constexpr) -> Any:
    """A word of a private record."""
    return load64(record + field, "relaxed")


@triton.jit
def put_in(record: tl.int64, field: tl.constexpr, value: tl.int64) -> None:
    """Set a word of a private record."""
    store64(record + field, value, "relaxed")


@triton.jit
def add_to(record: tl.int64, field: tl.constexpr, more: tl.int64) -> None:
    """Count in a private record."""
    store64(record + field, load64(record + field, "relaxed") + more, "relaxed")


@triton.jit
def whole_words(nbytes: tl.int64) -> Any:
    """The bytes of the whole words that hold so many."""
    return (nbytes + 7) & ~7


@triton.jit
def kind_of(frame: tl.int64) -> Any:
    """What a frame is."""
    return load64(frame, "relaxed") & LOW32


@triton.jit
def count_of(frame: tl.int64) -> Any:
    """How many records a frame has, or the kind of its message."""
    return (load64(frame, "relaxed") >> KIND_BITS) & LOW32


@triton.jit
def size_of_records(kind: tl.int64, count: tl.int64) -> Any:
    """The bytes of the records of a question."""
    each = word(0)
    if (kind == PUT) | (kind == OFFER):
        each = word(PULL_BYTES)
    elif kind == GET:
        each = word(WANTED_BYTES)
    elif (kind == REMOVE) | (kind == EXISTS):
        each = word(KEY_BYTES)
    return count * each


@triton.jit
def size_of_question(frame: tl.int64) -> Any:
    """The bytes of a question whose HEAD has come, with its MAC; NO_FRAME: it is none, and its bytes mean nothing."""
    kind, count, payload = kind_of(frame), count_of(frame), of(frame, PAYLOAD)
    most = word(0)
    if (kind == PUT) | (kind == OFFER) | (kind == GET):
        most = word(RECORDS)
    elif (kind == REMOVE) | (kind == EXISTS):
        most = word(KEYS)
    right = (count >= 1) & (count <= most)
    right = right | (kind == CALL) | ((kind == END) & (count == 0))
    room = select(kind == PUT, word(INLINE), select(kind == CALL, word(CALL_BODY), word(0)))
    right = right & (payload >= 0) & (payload <= room)
    size = word(NO_FRAME)
    if right:
        size = HEAD_BYTES + size_of_records(kind, count) + whole_words(payload) + MAC_BYTES
    return size


@triton.jit
def covered(records: tl.int64, payload: tl.int64) -> Any:
    """How many of the first bytes of a frame its MAC covers: of a payload above COVERED nothing."""
    return records + select(payload <= COVERED, whole_words(payload), word(0))


@triton.jit
def is_sealed(connection: tl.int64) -> Any:
    """Whether all that a connection carries goes in parcels."""
    return of(connection, C_LIBCRYPTO) != 0


@triton.jit
def tag_of(
    connection: tl.int64, key: tl.int64, frame: tl.int64, first: tl.int64, second: tl.int64, at: tl.int64
) -> Any:
    """The MAC of the first bytes of a frame, and of the last ones before its offset `at`: two words."""
    if is_sealed(connection):
        return word(0), word(0)
    mac = connection + C_MAC
    sip_begin(mac, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"))
    sip_words(mac, frame, first)
    sip_words(mac, frame + at - second, second)
    return sip_end(mac, word(0), first + second)


@triton.jit
def is_authentic(connection: tl.int64, frame: tl.int64, first: tl.int64, second: tl.int64, at: tl.int64) -> Any:
    """Whether a frame, whose MAC is at its offset `at`, is the next one of the other end. Then it is counted."""
    low, high = tag_of(connection, connection + C_KEY_IN, frame, first, second, at)
    differs = (low ^ load64(frame + at, "relaxed")) | (high ^ load64(frame + at + WORD_BYTES, "relaxed"))
    number = of(connection, C_SEEN) + 1
    right = (differs == 0) & (of(frame, NUMBER) == number)
    if right:
        put_in(connection, C_SEEN, number)
    return right


@triton.jit
def begin_frame(
    connection: tl.int64, frame: tl.int64, kind: tl.int64, count: tl.int64, payload: tl.int64, more: tl.int64
) -> None:
    """Write the HEAD of the next frame."""
    number = of(connection, C_SENT) + 1
    put_in(connection, C_SENT, number)
    store64(frame, kind | (count << KIND_BITS), "relaxed")
    put_in(frame, NUMBER, number)
    put_in(frame, PAYLOAD, payload)
    put_in(frame, MORE, more)


@triton.jit
def close_frame(connection: tl.int64, frame: tl.int64, first: tl.int64, second: tl.int64, at: tl.int64) -> Any:
    """Write the MAC behind a frame, at its offset `at`. Returns the bytes of the whole frame."""
    low, high = tag_of(connection, connection + C_KEY_OUT, frame, first, second, at)
    store64(frame + at, low, "relaxed")
    store64(frame + at + WORD_BYTES, high, "relaxed")
    return at + MAC_BYTES


@triton.jit
def fill_up(at: tl.int64, nbytes: tl.int64) -> None:
    """Zero what is left of the last word behind a payload of so many bytes at an address; a word of room is there."""
    if (nbytes & 7) != 0:
        store_word(at + nbytes, word(0))

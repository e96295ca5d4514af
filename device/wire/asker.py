"""The asking end: one question and its answer over a connection, each a call of native code without the lock.

A connection is used by one thread at a time. After an exchange that did not end well it is of no use: its user closes
it. Nothing of it can come later, for another connection has other keys.

Guarantees
- Bytes of the caller are read before a put returns, and never after; those of a get are written before it returns, and
  never after. So no memory is kept for anybody, and a late byte reaches nobody.
- An answer counts if its MAC is right. Bytes of a get above COVERED are not covered: they come on this connection or
  not at all, and count if the statuses behind them, which are covered, say so.
- On a sealed connection (`parcels`) all bytes are covered. If a parcel is wrong, the place where it was to go is
  zeroed; what came before it was right, and stays there, with no status that counts.
- A wait ends: when the other end has gone, at `timeout` since the last byte moved, or when `asked` is set.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.records import (
    A_EPOCH,
    A_PAYLOAD,
    A_RANK,
    A_SLOT,
    A_STATUS,
    P_EPOCH,
    P_NBYTES,
    P_PAYLOAD,
    P_RANK,
    P_SLOT,
    P_SOURCE,
    P_STATUS,
    PULL_BYTES,
)
from nanokv.device.memory.native_copy import memcpy
from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.c_calls import give_way
from nanokv.device.native.clock import monotonic_ns
from nanokv.device.native.sockets import (
    AGAIN,
    DONT_WAIT,
    INTERRUPTED,
    MORE_COMES,
    NO_SIGNAL,
    error,
    send,
)
from nanokv.device.protocol.status import INVALID, OK
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.wire.frames import (
    begin_frame,
    close_frame,
    covered,
    fill_up,
    is_authentic,
    is_sealed,
    of,
    put_in,
    whole_words,
)
from nanokv.device.wire.parcels import begin_parcel, close_parcel, put_in_parcel, take
from nanokv.device.wire.records import (
    BODY,
    BROKEN,
    C_ASKED,
    C_FD,
    C_GOING,
    C_INPUT,
    C_OUTPUT,
    C_PARCEL,
    C_SINCE,
    C_SPIN,
    C_TIMEOUT,
    CALL,
    CALLED,
    DONE,
    END,
    FORGED,
    G_NBYTES,
    G_STATUS,
    GET,
    GO,
    GOT_BYTES,
    GOT_THEM,
    HEAD_BYTES,
    IN_PARCEL,
    INLINE,
    KEY_BYTES,
    LATE,
    MAC_BYTES,
    MORE,
    OFFER,
    PAYLOAD,
    PULLED_SIZE,
    PUT,
    PUT_DONE,
    STATUSES,
    W_ANY_SIZE,
    W_ROOM,
    WANTED_BYTES,
    WRONG,
)

LOOKS_A_TURN = tl.constexpr(8)  #: of a wait that spins
LAST_STATUS = tl.constexpr(INVALID.value)


# --- bytes ------------------------------------------------------------------------------------
@triton.jit
def is_over(connection: tl.int64) -> Any:
    """Whether the wait for the next byte has an end."""
    late = monotonic_ns() - of(connection, C_SINCE) > of(connection, C_TIMEOUT)
    return late | (load64(of(connection, C_ASKED), "relaxed") != 0)


@triton.jit
def send_plain(connection: tl.int64, at: tl.int64, nbytes: tl.int64, flags: tl.int64) -> Any:
    """Send bytes as they are: DONE, BROKEN or LATE. The socket itself waits for a tenth of a second at most."""
    fd = of(connection, C_FD)
    sent = word(0)
    how = word(DONE)
    while (sent < nbytes) & (how == DONE):
        some = send(fd, at + sent, nbytes - sent, word(NO_SIGNAL) | flags)
        if some > 0:
            sent += some
            put_in(connection, C_SINCE, monotonic_ns())
        else:
            why = error()
            if (some == 0) | ((why != AGAIN) & (why != INTERRUPTED)):
                how = word(BROKEN)
            elif is_over(connection):
                how = word(LATE)
    return how


@triton.jit
def send_all(connection: tl.int64, at: tl.int64, nbytes: tl.int64, flags: tl.int64) -> Any:
    """Send bytes, in parcels if the connection is sealed. As `send_plain`."""
    if not is_sealed(connection):
        return send_plain(connection, at, nbytes, flags)
    sent = word(0)
    how = word(DONE)
    while (sent < nbytes) & (how == DONE):
        some = select(nbytes - sent < IN_PARCEL, nbytes - sent, word(IN_PARCEL))
        right = begin_parcel(connection) and put_in_parcel(connection, word(0), at + sent, some)
        if right and close_parcel(connection, some):
            sent += some
            waits = select(some < IN_PARCEL // 2, flags, word(0))  # a large one is opened while the next is made
            how = send_plain(connection, of(connection, C_PARCEL), of(connection, C_GOING), waits)
        else:
            how = word(BROKEN)
    return how


@triton.jit
def receive_some(connection: tl.int64, at: tl.int64, least: tl.int64, most: tl.int64) -> Any:
    """Receive `least` to `most` bytes: how many; or BROKEN, LATE or WRONG. As `send_all`."""
    spin = of(connection, C_SPIN)
    flags = select(spin > 0, word(DONT_WAIT), word(0))
    sleeps, looks, have = monotonic_ns() + spin, word(0), word(0)
    while have < least:
        some = take(connection, at + have, most - have, flags)
        if some > 0:
            have += some
            put_in(connection, C_SINCE, monotonic_ns())
        elif some == FORGED:
            return word(WRONG)
        else:
            why = error()
            if (some == 0) | ((why != AGAIN) & (why != INTERRUPTED)):
                return word(BROKEN)
            if flags != 0:
                looks += 1
                if looks % LOOKS_A_TURN == 0:
                    give_way()
                if monotonic_ns() > sleeps:
                    flags = word(0)
            elif is_over(connection):
                return word(LATE)
    return have


@triton.jit
def send_frame(connection: tl.int64, first: tl.int64, end: tl.int64) -> Any:
    """Close the question in the output, whose MAC is at `end` and covers `first` bytes, and send it."""
    out = of(connection, C_OUTPUT)
    put_in(connection, C_SINCE, monotonic_ns())
    return send_all(connection, out, close_frame(connection, out, first, word(0), end), word(0))


@triton.jit
def receive_records(connection: tl.int64, kind: tl.int64, count: tl.int64, each: tl.int64) -> Any:
    """Receive an answer of `count` records of `each` bytes: DONE, BROKEN, LATE or WRONG."""
    at, end = of(connection, C_INPUT), HEAD_BYTES + count * each
    have = receive_some(connection, at, end + MAC_BYTES, end + MAC_BYTES)
    how = have
    if have > 0:
        how = word(WRONG)
        if load64(at, "relaxed") == (kind | (count << 32)):
            if is_authentic(connection, at, end, word(0), end):
                how = word(DONE)
    return how


# --- puts -------------------------------------------------------------------------------------
@triton.jit
def take_answers(pulls: tl.int64, count: tl.int64, said: tl.int64) -> Any:
    """Note in PULLs what PULLEDs say: DONE; WRONG if one has a status that is none."""
    how = word(DONE)
    i = word(0)
    while i < count:
        pull, one = pulls + i * PULL_BYTES, said + i * PULLED_SIZE
        status = of(one, A_STATUS)
        if (status < 0) | (status > LAST_STATUS):
            how = word(WRONG)
        put_in(pull, P_STATUS, status)
        put_in(pull, P_RANK, of(one, A_RANK))
        put_in(pull, P_SLOT, of(one, A_SLOT))
        put_in(pull, P_EPOCH, of(one, A_EPOCH))
        put_in(pull, P_PAYLOAD, of(one, A_PAYLOAD))
        i += 1
    return how


@triton.jit
def send_objects(connection: tl.int64, pulls: tl.int64, count: tl.int64) -> Any:
    """After GO: send the bytes of what was claimed, neighbours as one, and END."""
    out, said = of(connection, C_OUTPUT), of(connection, C_INPUT) + HEAD_BYTES
    how = word(DONE)
    i = word(0)
    while (i < count) & (how == DONE):
        if of(said + i * PULLED_SIZE, A_STATUS) == OK:
            start, nbytes = of(pulls + i * PULL_BYTES, P_SOURCE), of(pulls + i * PULL_BYTES, P_NBYTES)
            goes_on = (not is_sealed(connection)) | (nbytes < IN_PARCEL // 2)  # else it ends its last parcel
            while goes_on & (i + 1 < count):
                following = pulls + (i + 1) * PULL_BYTES
                goes_on = of(said + (i + 1) * PULLED_SIZE, A_STATUS) == OK
                goes_on = goes_on & (of(following, P_SOURCE) == start + nbytes)
                if goes_on:
                    nbytes += of(following, P_NBYTES)
                    i += 1
            how = send_all(connection, start, nbytes, word(MORE_COMES))
        i += 1
    if how == DONE:
        begin_frame(connection, out, word(END), word(0), word(0), word(0))
        how = send_frame(connection, word(HEAD_BYTES), word(HEAD_BYTES))
    return how


@triton.jit
def put_pulls(connection: tl.int64, pulls: tl.int64, count: tl.int64) -> Any:
    """Put the objects of up to RECORDS PULLs, whose `source` is the address of their bytes: DONE, or how it failed.

    What the owner says stands in the PULLs then.
    """
    out, total = of(connection, C_OUTPUT), word(0)
    i = word(0)
    while i < count:
        total += of(pulls + i * PULL_BYTES, P_NBYTES)
        i += 1
    few = total <= INLINE
    payload = select(few, total, word(0))
    begin_frame(connection, out, select(few, word(PUT), word(OFFER)), count, payload, word(0))
    end = HEAD_BYTES + count * PULL_BYTES
    memcpy(out + HEAD_BYTES, pulls, count * PULL_BYTES)
    first = covered(end, payload)
    if few:
        at = out + end
        i = word(0)
        while i < count:
            pull = pulls + i * PULL_BYTES
            memcpy(at, of(pull, P_SOURCE), of(pull, P_NBYTES))
            at += of(pull, P_NBYTES)
            i += 1
        fill_up(out + end, total)
        end += whole_words(total)
    how = send_frame(connection, first, end)
    if (how == DONE) & (not few):
        how = receive_records(connection, word(GO), count, word(PULLED_SIZE))
        if how == DONE:
            how = send_objects(connection, pulls, count)
    if how == DONE:
        how = receive_records(connection, word(PUT_DONE), count, word(PULLED_SIZE))
    if how == DONE:
        how = take_answers(pulls, count, of(connection, C_INPUT) + HEAD_BYTES)
    return how


# --- gets -------------------------------------------------------------------------------------
@triton.jit
def suits(frame: tl.int64, wanted: tl.int64, count: tl.int64) -> Any:
    """Whether the objects of a GOT have the bytes that it brings, and fit where they go."""
    gots, total = frame + HEAD_BYTES, word(0)
    right = True
    i = word(0)
    while i < count:
        got, one = gots + i * GOT_BYTES, wanted + i * WANTED_BYTES
        status, nbytes, room = of(got, G_STATUS), of(got, G_NBYTES), of(one, W_ROOM)
        right = right & (status >= 0) & (status <= LAST_STATUS)
        if status == OK:
            right = right & (nbytes >= 0) & (nbytes <= room) & ((of(one, W_ANY_SIZE) != 0) | (nbytes == room))
            total += select(right, nbytes, word(0))
        i += 1
    return right & (total == of(frame, PAYLOAD))


@triton.jit
def take_statuses(gots: tl.int64, count: tl.int64, said: tl.int64) -> Any:
    """Let the statuses that count stand in GOTs: DONE; WRONG if one is none."""
    how = word(DONE)
    i = word(0)
    while i < count:
        status = load64(said + i * WORD_BYTES, "relaxed")
        if (status < 0) | (status > LAST_STATUS):
            how = word(WRONG)
        put_in(gots + i * GOT_BYTES, G_STATUS, status)
        i += 1
    return how


@triton.jit
def take_few(
    connection: tl.int64, wanted: tl.int64, count: tl.int64, targets: tl.int64, gots: tl.int64, have: tl.int64
) -> Any:
    """The rest of a GOT whose payload is part of its frame, of which `have` bytes are here. As `get_wanted`."""
    frame = of(connection, C_INPUT)
    head, total = HEAD_BYTES + count * GOT_BYTES, of(frame, PAYLOAD)
    end = head + whole_words(total) + count * WORD_BYTES
    if (total < 0) | (total > INLINE) | (have > end + MAC_BYTES):
        return word(WRONG)
    if have < end + MAC_BYTES:
        some = receive_some(connection, frame + have, end + MAC_BYTES - have, end + MAC_BYTES - have)
        if some < 0:
            return some
    right = is_authentic(connection, frame, covered(head, total), count * WORD_BYTES, end)
    if (not right) or (not suits(frame, wanted, count)):
        return word(WRONG)
    at = frame + head
    i = word(0)
    while i < count:
        got = frame + HEAD_BYTES + i * GOT_BYTES
        if of(got, G_STATUS) == OK:
            if load64(frame + end - (count - i) * WORD_BYTES, "relaxed") == OK:
                memcpy(load64(targets + i * WORD_BYTES, "relaxed"), at, of(got, G_NBYTES))
            at += of(got, G_NBYTES)
        i += 1
    memcpy(gots, frame + HEAD_BYTES, count * GOT_BYTES)
    return take_statuses(gots, count, frame + end - count * WORD_BYTES)


@triton.jit
def get_wanted(connection: tl.int64, wanted: tl.int64, count: tl.int64, targets: tl.int64, gots: tl.int64) -> Any:
    """Read the objects of up to RECORDS WANTEDs to the addresses in the words at `targets`: DONE, or how it failed.

    What the owner says stands in the GOTs then; bytes count where the status is OK. They may have been written to
    whatever the status is.
    """
    out, frame = of(connection, C_OUTPUT), of(connection, C_INPUT)
    begin_frame(connection, out, word(GET), count, word(0), word(0))
    memcpy(out + HEAD_BYTES, wanted, count * WANTED_BYTES)
    end = HEAD_BYTES + count * WANTED_BYTES
    how = send_frame(connection, end, end)
    room = word(0)
    i = word(0)
    while i < count:
        room += of(wanted + i * WANTED_BYTES, W_ROOM)
        i += 1
    head, tail = HEAD_BYTES + count * GOT_BYTES, count * WORD_BYTES + MAC_BYTES
    if how == DONE:
        most = head + select(room <= INLINE, whole_words(room) + tail, word(0))
        have = receive_some(connection, frame, head, most)
        how = have
        if have > 0:
            how = word(WRONG)
            if load64(frame, "relaxed") == (GOT_THEM | (count << 32)):
                if of(frame, MORE) != 0:
                    how = take_few(connection, wanted, count, targets, gots, have)
                elif (have == head) & suits(frame, wanted, count):
                    how = take_many(connection, count, targets, gots)
    return how


@triton.jit
def take_many(connection: tl.int64, count: tl.int64, targets: tl.int64, gots: tl.int64) -> Any:
    """The rest of a GOT whose bytes come as a stream behind its first part, which suits. As `get_wanted`."""
    frame = of(connection, C_INPUT)
    head, statuses = HEAD_BYTES + count * GOT_BYTES, count * WORD_BYTES
    memcpy(gots, frame + HEAD_BYTES, count * GOT_BYTES)
    how = word(DONE)
    i = word(0)
    while (how == DONE) & (i < count):
        got = gots + i * GOT_BYTES
        if of(got, G_STATUS) == OK:
            to, size = load64(targets + i * WORD_BYTES, "relaxed"), of(got, G_NBYTES)
            goes_on = True
            while goes_on & (i + 1 < count):  # neighbours as one
                got = got + GOT_BYTES
                goes_on = of(got, G_STATUS) == OK
                goes_on = goes_on & (load64(targets + (i + 1) * WORD_BYTES, "relaxed") == to + size)
                if goes_on:
                    size += of(got, G_NBYTES)
                    i += 1
            some = receive_some(connection, to, size, size)
            how = select(some < 0, some, word(DONE))
        i += 1
    if how == DONE:
        some = receive_some(connection, frame + head, statuses + MAC_BYTES, statuses + MAC_BYTES)
        how = select(some < 0, some, word(WRONG))
        if (some > 0) and is_authentic(connection, frame, head, statuses, head + statuses):
            how = take_statuses(gots, count, frame + head)
    return how


# --- keys and messages ------------------------------------------------------------------------
@triton.jit
def ask_keys(connection: tl.int64, kind: tl.int64, keys: tl.int64, count: tl.int64, statuses: tl.int64) -> Any:
    """EXISTS or REMOVE of up to KEYS keys, two words each: DONE, or how it failed. A status each, as words."""
    out, frame = of(connection, C_OUTPUT), of(connection, C_INPUT)
    begin_frame(connection, out, kind, count, word(0), word(0))
    memcpy(out + HEAD_BYTES, keys, count * KEY_BYTES)
    end = HEAD_BYTES + count * KEY_BYTES
    how = send_frame(connection, end, end)
    if how == DONE:
        how = receive_records(connection, word(STATUSES), count, word(WORD_BYTES))
    i = word(0)
    while (how == DONE) & (i < count):
        status = load64(frame + HEAD_BYTES + i * WORD_BYTES, "relaxed")
        if (status < 0) | (status > LAST_STATUS):
            how = word(WRONG)
        store64(statuses + i * WORD_BYTES, status, "relaxed")
        i += 1
    return how


@triton.jit
def call(connection: tl.int64, kind: tl.int64, body: tl.int64, nbytes: tl.int64) -> Any:
    """Send a message of up to CALL_BODY bytes, and receive the HEAD of its answer: the bytes of its body, or a failure.

    The HEAD counts only after `receive_called`.
    """
    out, frame = of(connection, C_OUTPUT), of(connection, C_INPUT)
    begin_frame(connection, out, word(CALL), kind, nbytes, word(0))
    memcpy(out + HEAD_BYTES, body, nbytes)
    fill_up(out + HEAD_BYTES, nbytes)
    end = HEAD_BYTES + whole_words(nbytes)
    how = send_frame(connection, end, end)
    if how != DONE:
        return how
    have = receive_some(connection, frame, word(HEAD_BYTES), word(HEAD_BYTES))
    if have < 0:
        return have
    size = of(frame, PAYLOAD)
    right = (load64(frame, "relaxed") == (CALLED | (kind << 32))) & (size >= 0) & (size <= BODY)
    return select(right, size, word(WRONG))


@triton.jit
def receive_called(connection: tl.int64, room: tl.int64) -> Any:
    """Receive the rest of the answer of which `call` has told: DONE (HEAD.more in the input: 1: an error), or not.

    Args:
        room: address of room for a HEAD, the body filled up to a whole word, and a MAC.
    """
    frame = of(connection, C_INPUT)
    rest = whole_words(of(frame, PAYLOAD)) + MAC_BYTES
    memcpy(room, frame, HEAD_BYTES)
    how = receive_some(connection, room + HEAD_BYTES, rest, rest)
    if how > 0:
        end = HEAD_BYTES + whole_words(of(frame, PAYLOAD))
        how = select(is_authentic(connection, room, end, word(0), end), word(DONE), word(WRONG))
    return how

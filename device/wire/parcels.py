"""Parcels: the stream of a sealed connection, enciphered by AES-256-GCM of the system's libcrypto.

Guarantees
- What `take` gives is the stream as the other end has written it: nothing changed, left out, repeated or put elsewhere,
  and nothing of another connection or direction. A parcel's nonce is its number in its direction, which is not sent;
  each direction of each connection has a key of its own. An end that is cut off is seen by who waits for more.
- No byte of a parcel is given, or stays where it was to go, before its tag is right.
- A nonce is used once under a key: numbers count on over all keys of a direction, and are never set back. What is
  sealed goes to the kernel as it is, however often that takes a part of it; it is not sealed again.
- After `each` parcels a direction moves to its next key, at both ends by counting. It is the first 32 bytes of
  ENCRYPT(key, 2^64 - 1, 32 zeros), the REKEY of the Noise protocol framework (revision 34, 4.2 and 11.3): who learns a
  key can read nothing of before it. The one before is overwritten in the context, and is nowhere else here.

The nonce is four zeros and the number, its highest byte first, as Noise has it for AESGCM. The size in front of a
parcel is not covered by itself: with another one the tag is wrong.

A connection has room for one parcel, for both directions: a question is not sent before the last answer has come, and
not answered before it is whole.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.native_copy import memcpy
from nanokv.device.memory.triton import select, word
from nanokv.device.native.c_calls import call3, call4, call5, call6, erase
from nanokv.device.native.clock import monotonic_ns
from nanokv.device.native.sockets import receive
from nanokv.device.native.unsigned import store_word, swapped
from nanokv.device.wire.frames import add_to, is_sealed, of, put_in
from nanokv.device.wire.records import (
    C_COME,
    C_EACH,
    C_FD,
    C_GOING,
    C_GONE,
    C_KEY,
    C_LEFT,
    C_LEFT_AT,
    C_LIBCRYPTO,
    C_MOVED,
    C_NONCE,
    C_OPENED,
    C_OPENS,
    C_PARCEL,
    C_SEALED,
    C_SEALS,
    C_SINCE,
    FORGED,
    IN_PARCEL,
    KEY_SIZE,
    L_CONTROL,
    L_FINAL,
    L_INIT,
    L_UPDATE,
    MAC_BYTES,
    PARCEL_HEAD,
    SIZE_OF_PARCEL,
    TAG,
)

GET_TAG, SET_TAG = tl.constexpr(0x10), tl.constexpr(0x11)  #: EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG
ZEROS = tl.constexpr(4)  #: bytes of a nonce before the number
NO_NUMBER = tl.constexpr(-1)  #: 2^64 - 1, of no parcel: its nonce makes the next key
SAME = tl.constexpr(-1)  #: of EVP_CipherInit_ex: enciphers, or deciphers, as before


# --- the cipher -------------------------------------------------------------------------------
@triton.jit
def aim(connection: tl.int64, context: tl.int64, number: tl.int64) -> Any:
    """Give a context the nonce of a number. Whether that was done."""
    nonce = connection + C_NONCE
    store_word(nonce, word(0))
    store_word(nonce + ZEROS, swapped(number))
    return call6(of(of(connection, C_LIBCRYPTO), L_INIT), context, word(0), word(0), word(0), nonce, word(SAME)) == 1


@triton.jit
def run(connection: tl.int64, context: tl.int64, to: tl.int64, at: tl.int64, nbytes: tl.int64) -> Any:
    """Encipher, or decipher, so many bytes more of a parcel, to an address. Whether that was done."""
    update = of(of(connection, C_LIBCRYPTO), L_UPDATE)
    return call5(update, context, to, connection + C_MOVED, at, nbytes) == 1


@triton.jit
def move_on(connection: tl.int64, context: tl.int64) -> Any:
    """Let a context have the next key of its direction. Whether that was done."""
    key = connection + C_KEY
    erase(key, word(KEY_SIZE))
    right = aim(connection, context, word(NO_NUMBER)) and run(connection, context, key, key, word(KEY_SIZE))
    init = of(of(connection, C_LIBCRYPTO), L_INIT)
    right = right and call6(init, context, word(0), word(0), key, word(0), word(SAME)) == 1
    erase(key, word(KEY_SIZE))
    return right


@triton.jit
def point(connection: tl.int64, context: tl.int64, number: tl.int64) -> Any:
    """Make a context ready for the parcel of a number, under its key. Whether that was done."""
    right = True
    if (number > 0) & (number % of(connection, C_EACH) == 0):
        right = move_on(connection, context)
    return right and aim(connection, context, number)


# --- what goes --------------------------------------------------------------------------------
@triton.jit
def begin_parcel(connection: tl.int64) -> Any:
    """Begin the next parcel. Whether that was done."""
    return point(connection, of(connection, C_SEALS), of(connection, C_SEALED))


@triton.jit
def put_in_parcel(connection: tl.int64, used: tl.int64, at: tl.int64, nbytes: tl.int64) -> Any:
    """Encipher bytes at an address into the parcel that has been begun, behind `used` others. Whether that was done."""
    to = of(connection, C_PARCEL) + PARCEL_HEAD + used
    return run(connection, of(connection, C_SEALS), to, at, nbytes)


@triton.jit
def close_parcel(connection: tl.int64, used: tl.int64) -> Any:
    """Let a parcel with `used` bytes go next. Whether that was done."""
    parcel, context, calls = of(connection, C_PARCEL), of(connection, C_SEALS), of(connection, C_LIBCRYPTO)
    right = call3(of(calls, L_FINAL), context, parcel, connection + C_MOVED) == 1
    right = right and call4(of(calls, L_CONTROL), context, word(GET_TAG), word(MAC_BYTES), parcel + TAG) == 1
    put_in(parcel, SIZE_OF_PARCEL, used)
    add_to(connection, C_SEALED, word(1))
    put_in(connection, C_GOING, PARCEL_HEAD + used)
    put_in(connection, C_GONE, word(0))
    return right


# --- what comes -------------------------------------------------------------------------------
@triton.jit
def open_parcel(connection: tl.int64, to: tl.int64, size: tl.int64) -> Any:
    """Decipher the parcel that has come, of `size` bytes, to an address. If its tag is wrong: False, and zeros."""
    parcel, context, calls = of(connection, C_PARCEL), of(connection, C_OPENS), of(connection, C_LIBCRYPTO)
    right = point(connection, context, of(connection, C_OPENED))
    right = right and run(connection, context, to, parcel + PARCEL_HEAD, size)
    right = right and call4(of(calls, L_CONTROL), context, word(SET_TAG), word(MAC_BYTES), parcel + TAG) == 1
    right = right and call3(of(calls, L_FINAL), context, connection + C_NONCE, connection + C_MOVED) == 1
    if right:
        add_to(connection, C_OPENED, word(1))
    else:
        erase(to, size)
    return right


@triton.jit
def take_left(connection: tl.int64, to: tl.int64, most: tl.int64) -> Any:
    """Take bytes of the parcel that is opened: how many."""
    left, at = of(connection, C_LEFT), of(connection, C_LEFT_AT)
    some = select(left < most, left, most)
    memcpy(to, of(connection, C_PARCEL) + PARCEL_HEAD + at, some)
    put_in(connection, C_LEFT, left - some)
    put_in(connection, C_LEFT_AT, at + some)
    return some


@triton.jit
def receive_parcel(connection: tl.int64, flags: tl.int64) -> Any:
    """Receive the rest of a parcel: the bytes behind its PARCEL; or what `receive` answers, or FORGED."""
    parcel, come = of(connection, C_PARCEL), of(connection, C_COME)
    need = word(PARCEL_HEAD)
    if come >= PARCEL_HEAD:
        need = PARCEL_HEAD + of(parcel, SIZE_OF_PARCEL)
    while come < need:
        some = receive(of(connection, C_FD), parcel + come, need - come, flags)
        if some <= 0:
            return some
        come += some
        put_in(connection, C_COME, come)
        put_in(connection, C_SINCE, monotonic_ns())
        if come == PARCEL_HEAD:
            size = of(parcel, SIZE_OF_PARCEL)
            if (size < 1) | (size > IN_PARCEL):
                return word(FORGED)
            need = PARCEL_HEAD + size
    put_in(connection, C_COME, word(0))
    return need - PARCEL_HEAD


@triton.jit
def take(connection: tl.int64, to: tl.int64, most: tl.int64, flags: tl.int64) -> Any:
    """Receive up to `most` bytes of the stream: how many; or what `receive` answers, or FORGED."""
    if not is_sealed(connection):
        return receive(of(connection, C_FD), to, most, flags)
    if of(connection, C_LEFT) > 0:
        return take_left(connection, to, most)
    size = receive_parcel(connection, flags)
    if size <= 0:
        return size
    there = to
    if size > most:
        there = of(connection, C_PARCEL) + PARCEL_HEAD
    if not open_parcel(connection, there, size):
        return word(FORGED)
    if size > most:
        put_in(connection, C_LEFT, size)
        put_in(connection, C_LEFT_AT, word(0))
        size = take_left(connection, to, most)
    return size

"""A put to another process, and a get from one, from key and tensor to the status, in one call of native code.

What is unusual (a key or a tensor that `digest_of` or `described` does not know) is answered UNUSUAL_CALL, and nothing
was sent. The interpreter's lock is let go before the first byte goes, and taken again when the answer is here; the
record in which a tensor is described is not read in between, for other threads use it then.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.records import (
    P_ACCESS,
    P_GROUP,
    P_KEY_CHECK,
    P_KEY_HASH,
    P_NBYTES,
    P_RANK,
    P_SOURCE,
    P_STATUS,
    P_UNTIL,
    P_WHAT,
)
from nanokv.device.memory.triton import select, store64, word
from nanokv.device.native.keys import digest_of
from nanokv.device.native.python_objects import release_lock, take_lock
from nanokv.device.native.tensors import described
from nanokv.device.protocol.header import raw_bytes, store_descriptor
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.host_records import NOT_ALIKE
from nanokv.device.wire.asker import get_wanted, put_pulls
from nanokv.device.wire.frames import of, put_in
from nanokv.device.wire.records import (
    DONE,
    G_STATUS,
    GOT_BYTES,
    W_ANY_SIZE,
    W_CHECK,
    W_HASH,
    W_ROOM,
    W_WHAT,
    WANTED_BYTES,
)

UNUSUAL_CALL = tl.constexpr(-100)


@triton.jit
def put_one(
    key: tl.int64,
    tensor: tl.int64,
    connection: tl.int64,
    pull: tl.int64,
    rank: tl.int64,
    hashing: tl.int64,
    look: tl.int64,
) -> Any:
    """Put a tensor under a key: a Status, UNUSUAL_CALL, or how the exchange failed.

    Args:
        pull: address of room for a PULL. rank: that gets the object; -1: the owner chooses.
        hashing, look: addresses of a HASHING and a TENSOR record.
    """
    known, digest = digest_of(key, hashing)
    source, nbytes, descriptor = described(tensor, look)
    if (not known) | (source == NOT_ALIKE):
        return word(UNUSUAL_CALL)
    put_in(pull, P_KEY_HASH, digest.hash)
    put_in(pull, P_KEY_CHECK, digest.check)
    put_in(pull, P_NBYTES, nbytes)
    store_descriptor(pull + P_WHAT, descriptor)
    put_in(pull, P_ACCESS, word(0))
    put_in(pull, P_GROUP, word(0))
    put_in(pull, P_UNTIL, word(0))
    put_in(pull, P_SOURCE, source)
    put_in(pull, P_RANK, rank)
    lock = release_lock()
    how = put_pulls(connection, pull, word(1))
    take_lock(lock)
    return select(how == DONE, of(pull, P_STATUS), how)


@triton.jit
def ask_for(
    connection: tl.int64,
    scratch: tl.int64,
    key: Key,
    room: tl.int64,
    descriptor: Descriptor,
    any_size: tl.int64,
    target: tl.int64,
) -> Any:
    """Read one object to an address: a Status, or how the exchange failed.

    Args:
        scratch: address of room for a GOT, behind it a WANTED and a word.
    """
    wanted = scratch + GOT_BYTES
    put_in(wanted, W_HASH, key.hash)
    put_in(wanted, W_CHECK, key.check)
    put_in(wanted, W_ROOM, room)
    store_descriptor(wanted + W_WHAT, descriptor)
    put_in(wanted, W_ANY_SIZE, any_size)
    store64(wanted + WANTED_BYTES, target, "relaxed")
    lock = release_lock()
    how = get_wanted(connection, wanted, word(1), wanted + WANTED_BYTES, scratch)
    take_lock(lock)
    return select(how == DONE, of(scratch, G_STATUS), how)


@triton.jit
def get_one(
    key: tl.int64, tensor: tl.int64, connection: tl.int64, scratch: tl.int64, hashing: tl.int64, look: tl.int64
) -> Any:
    """Read an object of exactly a tensor's dtype and shape into it: as `put_one`. scratch: as of `ask_for`."""
    known, digest = digest_of(key, hashing)
    target, nbytes, descriptor = described(tensor, look)
    if (not known) | (target == NOT_ALIKE):
        return word(UNUSUAL_CALL)
    return ask_for(connection, scratch, digest, nbytes, descriptor, word(0), target)


@triton.jit
def get_any(
    key: tl.int64, target: tl.int64, room: tl.int64, connection: tl.int64, scratch: tl.int64, hashing: tl.int64
) -> Any:
    """Read an object of any dtype and shape, and of at most `room` bytes, to an address: as `get_one`.

    What it is stands in the GOT at `scratch`; SIZE: it has more bytes, and none have come.
    """
    known, digest = digest_of(key, hashing)
    if not known:
        return word(UNUSUAL_CALL)
    return ask_for(connection, scratch, digest, room, raw_bytes(), word(1), target)

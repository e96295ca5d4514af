"""Calls about a key and a tensor as Python has them, each one call: hashing, looking at the tensor, and the protocol.

Where anything is unusual (a key that is neither str nor KeyDigest, a tensor of another kind than the last) the answer
is UNUSUAL, and nothing was done: Python's own way does the call, or says what is wrong.

The records are used only with the interpreter's lock, and nothing of them is read after it was released.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import copy_bytes, load64, word
from nanokv.device.native.calls import get_now, put_now
from nanokv.device.native.clock import now_ns
from nanokv.device.native.python_objects import (
    big_endian,
    bytes_at,
    call_with,
    drop,
    int_of,
    item,
    new_bytes,
    owned_type,
    release_lock,
    take_lock,
    utf8,
)
from nanokv.device.native.tensors import look
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import lookup, read
from nanokv.device.protocol.status import OK
from nanokv.device.segment.host_records import (
    H_DIGEST_TYPE,
    H_FUNCTION,
    H_PREFIX,
    H_SIZE,
    H_STR_TYPE,
    H_TAG,
    H_UPPER,
    NOT_ALIKE,
    NOT_TAKEN,
    PREFIX_BYTES,
    T_TYPE,
    T_WHAT,
    UNUSUAL,
)
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World

TAG_SHIFT = tl.constexpr(32)  #: of `key_check`: above it is the tag of the identity
BELOW_TAG = tl.constexpr((1 << 32) - 1)


@triton.jit
def type_of(thing: tl.int64) -> Any:
    """The address of an object's type, which lives as long as the object."""
    kind = owned_type(thing)
    drop(kind)
    return kind


@triton.jit
def hashed(key: tl.int64, hashing: tl.int64) -> Any:
    """The digest of a str, as `nanokv.keys.Hasher`: (True, key_hash, key_check), or False and zeros."""
    text = utf8(key, hashing + H_SIZE)
    if text == 0:
        return False, word(0), word(0)
    nbytes = load64(hashing + H_SIZE, "relaxed")
    raw = new_bytes(word(0), nbytes + PREFIX_BYTES)
    if raw == 0:
        return False, word(0), word(0)
    at = bytes_at(raw)
    copy_bytes(at, hashing + H_PREFIX, word(PREFIX_BYTES))
    copy_bytes(at + PREFIX_BYTES, text, nbytes)
    digest = call_with(load64(hashing + H_FUNCTION, "relaxed"), raw)
    drop(raw)
    if digest == 0:
        return False, word(0), word(0)
    at = bytes_at(digest)
    check = big_endian(at) & BELOW_TAG | load64(hashing + H_UPPER, "relaxed")
    low = big_endian(at + WORD_BYTES)
    drop(digest)
    return True, low, check


@triton.jit
def digest_of(key: tl.int64, hashing: tl.int64) -> Any:
    """The digest of a key: (True, key_hash, key_check), or False and zeros."""
    kind = type_of(key)
    if kind == load64(hashing + H_STR_TYPE, "relaxed"):
        return hashed(key, hashing)
    if kind == load64(hashing + H_DIGEST_TYPE, "relaxed"):
        low, check = int_of(item(key, word(0))), int_of(item(key, word(1)))
        if check >> TAG_SHIFT == load64(hashing + H_TAG, "relaxed"):
            return True, low, check
    return False, word(0), word(0)


@triton.jit
def address_of(tensor: tl.int64, seen: tl.int64) -> Any:
    """Where the bytes of a tensor are, if it is as the record `seen` (TENSOR) says; else NOT_ALIKE."""
    if type_of(tensor) != load64(seen + T_TYPE, "relaxed"):
        return word(NOT_ALIKE)
    return look(tensor, seen)


@triton.jit
def put_object(
    key: tl.int64, tensor: tl.int64, world: World, owner: tl.int64, hashing: tl.int64, seen: tl.int64
) -> Any:
    """`put_now` of a key and a tensor: its answer, or UNUSUAL."""
    known, low, check = digest_of(key, hashing)
    src = address_of(tensor, seen)
    if not known or src == NOT_ALIKE:
        return word(UNUSUAL)
    what = load64(seen + T_WHAT, "relaxed")
    lock = release_lock()
    status = put_now(world, owner, low, check, src, what)
    take_lock(lock)
    return status


@triton.jit
def get_object(key: tl.int64, tensor: tl.int64, world: World, hashing: tl.int64, seen: tl.int64) -> Any:
    """`get_now` of a key into a tensor: its answer, or UNUSUAL."""
    known, low, check = digest_of(key, hashing)
    dst = address_of(tensor, seen)
    if not known or dst == NOT_ALIKE:
        return word(UNUSUAL)
    what = load64(seen + T_WHAT, "relaxed")
    lock = release_lock()
    status = get_now(world, low, check, dst, what)
    take_lock(lock)
    return status


@triton.jit
def take_object(key: tl.int64, world: World, hashing: tl.int64, dst: tl.int64, room: tl.int64) -> Any:
    """Copy the object of a key, of any size up to `room`, to the address `dst`: its bytes.

    Below 0: UNUSUAL; or NOT_TAKEN: there is none, or it is larger, damaged, or was replaced meanwhile.
    """
    known, low, check = digest_of(key, hashing)
    if not known:
        return word(UNUSUAL)
    lock = release_lock()
    status, owner, slot, epoch, payload, nbytes = lookup(world, low, check)
    taken = word(NOT_TAKEN)
    if (status == OK) & (nbytes <= room):
        if read(world, owner, slot, epoch, low, check, payload, nbytes, dst, now_ns()) == OK:
            taken = nbytes
    take_lock(lock)
    return taken


@triton.jit
def find_object(key: tl.int64, world: World, hashing: tl.int64) -> Any:
    """`find` of a key: a Status, or UNUSUAL."""
    known, low, check = digest_of(key, hashing)
    if not known:
        return word(UNUSUAL)
    lock = release_lock()
    status, _ = find(world, low, check)
    take_lock(lock)
    return status

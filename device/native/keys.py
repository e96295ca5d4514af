"""The digest of a key as Python has it: a str, bytes, or a KeyDigest; `nanokv.keys.hashing.Hasher` says what it is.

A short key is copied behind the prefix of all keys, in a HASHING record, and hashed there; a long one takes a call of
xxhash. The interpreter's lock is held: no two threads use a record at once.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import copy_bytes, load64, store64, word
from nanokv.device.native.python_objects import (
    big_endian,
    bytes_at,
    call_with,
    drop,
    int_of,
    item,
    list_item,
    new_bytes,
    size_of_bytes,
    size_of_list,
    type_of,
    utf8,
)
from nanokv.device.native.xxh3 import xxh3_128
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.host_records import (
    H_BYTES_TYPE,
    H_DIGEST_TYPE,
    H_FUNCTION,
    H_PREFIX,
    H_SIZE,
    H_STR_TYPE,
    H_TAG,
    H_TEXT,
    H_TEXT_BYTES,
    H_UPPER,
    PREFIX_BYTES,
)
from nanokv.device.segment.layout import LOW32, WORD_BYTES

TAG_SHIFT = tl.constexpr(32)  #: of `key_check`: above it is the tag of the identity


@triton.jit
def hashed_long(text: tl.int64, nbytes: tl.int64, hashing: tl.int64) -> Any:
    """The hash of prefix and text by xxhash: (True, low half, high half), or False and zeros. Others may run."""
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
    high, low = big_endian(at), big_endian(at + WORD_BYTES)
    drop(digest)
    return True, low, high


@triton.jit
def hashed(text: tl.int64, nbytes: tl.int64, hashing: tl.int64) -> Any:
    """The digest of a text: (True, Key), or False and zeros."""
    known = True
    if nbytes <= H_TEXT_BYTES:
        copy_bytes(hashing + H_TEXT, text, nbytes)
        low, high = xxh3_128(hashing + H_PREFIX, nbytes + PREFIX_BYTES)
    else:
        known, low, high = hashed_long(text, nbytes, hashing)
    return known, Key(low, high & LOW32 | load64(hashing + H_UPPER, "relaxed"))


@triton.jit
def digest_of(key: tl.int64, hashing: tl.int64) -> Any:
    """The digest of a key: (True, Key); False and zeros for what `Hasher` must judge."""
    kind = type_of(key)
    if kind == load64(hashing + H_STR_TYPE, "relaxed"):
        text = utf8(key, hashing + H_SIZE)
        if text == 0:  # it has surrogates
            return False, Key(word(0), word(0))
        return hashed(text, load64(hashing + H_SIZE, "relaxed"), hashing)
    if kind == load64(hashing + H_DIGEST_TYPE, "relaxed"):
        low, check = int_of(item(key, word(0))), int_of(item(key, word(1)))
        if check >> TAG_SHIFT == load64(hashing + H_TAG, "relaxed"):
            return True, Key(low, check)
    elif kind == load64(hashing + H_BYTES_TYPE, "relaxed"):
        return hashed(bytes_at(key), size_of_bytes(key), hashing)
    return False, Key(word(0), word(0))


@triton.jit
def hash_each(keys: tl.int64, hashing: tl.int64, out: tl.int64) -> Any:
    """The digests of the keys in a list, two words each, up to the first that `Hasher` must judge: how many."""
    count = size_of_list(keys)
    i = word(0)
    known = True
    while known & (i < count):
        key = list_item(keys, i)
        known = key != 0
        if known:
            known, digest = digest_of(key, hashing)
        if known:
            store64(out + 2 * i * WORD_BYTES, digest.hash, "relaxed")
            store64(out + (2 * i + 1) * WORD_BYTES, digest.check, "relaxed")
            i += 1
    return i

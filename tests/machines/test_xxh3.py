"""The native XXH3-128 is the library's: at every length that it takes, at any address, and as the digest of a key."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from nanokv.device.machines.native_code import NativeFunction, native_function
from nanokv.device.memory.triton import store64
from nanokv.device.native.xxh3 import xxh3_128
from nanokv.keys.hashing import Hasher
from tests.support.plain_world import address

SHORTEST, LONGEST = 9, 240
MARGIN = 64  #: bytes before and after the input, which must not matter


@triton.jit
def store_hash(at: tl.int64, nbytes: tl.int64, out: tl.int64) -> Any:
    low, high = xxh3_128(at, nbytes)
    store64(out, low, "relaxed")
    store64(out + 8, high, "relaxed")
    return nbytes


@cache
def native() -> NativeFunction:
    return native_function(store_hash)


def halves(raw: bytes, shift: int = 0) -> tuple[int, int]:
    """The native hash of some bytes among others, `shift` bytes behind a word: its lower and its upper word, signed."""
    room = np.random.default_rng(len(raw)).integers(0, 256, LONGEST + 3 * MARGIN, np.uint8)
    start = MARGIN + shift
    room[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    out = np.zeros(2, np.int64)
    assert native()(address(room) + start, len(raw), address(out)) == len(raw)
    return int(out[0]), int(out[1])


def check(raw: bytes, shift: int = 0) -> None:
    low, high = (half % 2**64 for half in halves(raw, shift))
    assert high << 64 | low == xxhash.xxh3_128_intdigest(raw), (len(raw), shift, raw)


@pytest.mark.parametrize("byte", [0x00, 0xFF, None])
def test_every_length(byte: int | None) -> None:
    for nbytes in range(SHORTEST, LONGEST + 1):
        random = np.random.default_rng([nbytes, 1]).bytes(nbytes)
        check(random if byte is None else bytes([byte]) * nbytes, nbytes % 8)


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("nbytes", [16, 17, 128, 129, 240])
def test_every_alignment_at_the_limits(nbytes: int, shift: int) -> None:
    check(np.random.default_rng([nbytes, 2]).bytes(nbytes), shift)


@given(raw=st.binary(min_size=SHORTEST, max_size=LONGEST), shift=st.integers(0, MARGIN - 1))
def test_any_bytes_anywhere(raw: bytes, shift: int) -> None:
    check(raw, shift)


@given(key=st.text(max_size=50), namespace=st.sampled_from(["", "n"]))
def test_the_halves_are_those_of_a_digest(key: str, namespace: str) -> None:
    hasher = Hasher(namespace)
    low, high = halves(hasher.prefix + key.encode())
    assert (low, high & 0xFFFFFFFF | hasher.upper) == hasher(key)

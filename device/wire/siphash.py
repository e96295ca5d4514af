"""SipHash-2-4 with a tag of 128 bits: the MAC of a frame, taken of bytes that come in pieces of whole words.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), and the variant of 128 bits of their reference
code. It is a pseudo-random function with a key of 128 bits: who does not know the key can only guess a tag of 128 bits.
No table is looked up, and nothing branches or addresses by a secret.

A state is four words at an address. Every piece but the last is of whole words.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, store64, word
from nanokv.device.native.unsigned import plus, rotated, word_at
from nanokv.device.segment.layout import WORD_BYTES

# "somepseudorandomlygeneratedbytes", four words of it
FIRST, SECOND = tl.constexpr(0x736F6D6570736575), tl.constexpr(0x646F72616E646F6D)
THIRD, FOURTH = tl.constexpr(0x6C7967656E657261), tl.constexpr(0x7465646279746573)
STATE_WORDS = 4


@triton.jit
def stir(a: tl.int64, b: tl.int64, c: tl.int64, d: tl.int64) -> Any:
    """One round."""
    a, c = plus(a, b), plus(c, d)
    b, d = rotated(b, 13) ^ a, rotated(d, 16) ^ c
    a = rotated(a, 32)
    c, a = plus(c, b), plus(a, d)
    b, d = rotated(b, 17) ^ c, rotated(d, 21) ^ a
    c = rotated(c, 32)
    return a, b, c, d


@triton.jit
def load_state(state: tl.int64) -> Any:
    """The four words of a state."""
    return (
        load64(state, "relaxed"),
        load64(state + WORD_BYTES, "relaxed"),
        load64(state + 2 * WORD_BYTES, "relaxed"),
        load64(state + 3 * WORD_BYTES, "relaxed"),
    )


@triton.jit
def store_state(state: tl.int64, a: tl.int64, b: tl.int64, c: tl.int64, d: tl.int64) -> None:
    """Keep a state."""
    store64(state, a, "relaxed")
    store64(state + WORD_BYTES, b, "relaxed")
    store64(state + 2 * WORD_BYTES, c, "relaxed")
    store64(state + 3 * WORD_BYTES, d, "relaxed")


@triton.jit
def sip_begin(state: tl.int64, low: tl.int64, high: tl.int64) -> None:
    """Begin with the key of two words."""
    store_state(state, low ^ FIRST, high ^ SECOND ^ 0xEE, low ^ THIRD, high ^ FOURTH)


@triton.jit
def sip_words(state: tl.int64, at: tl.int64, nbytes: tl.int64) -> None:
    """Take the bytes at an address of any alignment: whole words."""
    a, b, c, d = load_state(state)
    i = word(0)
    while i < nbytes:
        m = word_at(at + i)
        a, b, c, d = stir(a, b, c, d ^ m)
        a, b, c, d = stir(a, b, c, d)
        a = a ^ m
        i += WORD_BYTES
    store_state(state, a, b, c, d)


@triton.jit
def sip_end(state: tl.int64, last: tl.int64, nbytes: tl.int64) -> Any:
    """The tag: two words.

    Args:
        last: the bytes after the last whole word, as a word. nbytes: how many bytes were taken, those too.
    """
    a, b, c, d = load_state(state)
    m = last | (nbytes << 56)
    a, b, c, d = stir(a, b, c, d ^ m)
    a, b, c, d = stir(a, b, c, d)
    a, c = a ^ m, c ^ 0xEE
    a, b, c, d = stir(a, b, c, d)
    a, b, c, d = stir(a, b, c, d)
    a, b, c, d = stir(a, b, c, d)
    a, b, c, d = stir(a, b, c, d)
    low = a ^ b ^ c ^ d
    b = b ^ 0xDD
    a, b, c, d = stir(a, b, c, d)
    a, b, c, d = stir(a, b, c, d)
    a, b, c, d = stir(a, b, c, d)
    a, b, c, d = stir(a, b, c, d)
    return low, a ^ b ^ c ^ d


@triton.jit
def siphash(key: tl.int64, at: tl.int64, nbytes: tl.int64, state: tl.int64, tag: tl.int64) -> None:
    """The tag of bytes at an address, of which the last word may be read beyond their end, under the key at `key`."""
    whole = nbytes & ~7
    sip_begin(state, load64(key, "relaxed"), load64(key + WORD_BYTES, "relaxed"))
    sip_words(state, at, whole)
    rest = nbytes - whole
    last = word(0)
    if rest > 0:
        last = word_at(at + whole) & ((word(1) << (8 * rest)) - 1)
    low, high = sip_end(state, last, nbytes)
    store64(tag, low, "relaxed")
    store64(tag + WORD_BYTES, high, "relaxed")

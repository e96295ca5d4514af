"""XXH3-128 of short inputs in native code: what `xxhash.xxh3_128_intdigest` gives, without an object of Python.

The source is the published specification, "XXH3 Algorithm" in Yann Collet's xxHash (doc/xxhash_spec.md, version 0.2.0):
seed 0, the default secret, and inputs of 9 to 240 bytes. Longer ones are hashed in another way, which is not here.
"""

import struct
from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import word
from nanokv.device.native.unsigned import plus, product, shifted, swapped, times, word_at

_DEFAULT_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PAIR = 32  #: bytes that are mixed at a time: two chunks of 16, with as many of the secret


def _secret(offset: int) -> tuple[int, ...]:
    """The four words of the secret that are mixed with a pair of chunks."""
    return struct.unpack_from("<4q", _DEFAULT_SECRET, offset)


def _signed(value: int) -> int:
    return (value ^ (1 << 63)) - (1 << 63)


SECRET = tl.constexpr(tuple(_secret(pair * _PAIR) for pair in range(4)))  #: of the first four pairs
LATER_SECRET = tl.constexpr(tuple(_secret(3 + pair * _PAIR) for pair in range(3)))  #: of those after 128 bytes
LAST_SECRET = tl.constexpr(_secret(103))  #: of the last 32 of more than 128 bytes

PRIME32_2 = tl.constexpr(0x85EBCA77)
PRIME64_1 = tl.constexpr(_signed(0x9E3779B185EBCA87))
PRIME64_2 = tl.constexpr(_signed(0xC2B2AE3D27D4EB4F))
PRIME64_4 = tl.constexpr(_signed(0x85EBCA77C2B2AE63))
PRIME_MX1 = tl.constexpr(0x165667919E3779F9)
LOWER_HALF = tl.constexpr((1 << 32) - 1)


@triton.jit
def avalanche(value: tl.int64) -> Any:
    """Let every bit of a word change all of it."""
    value = times(value ^ shifted(value, 37), PRIME_MX1)
    return value ^ shifted(value, 32)


@triton.jit
def folded(a: tl.int64, b: tl.int64) -> Any:
    """The halves of a product, one upon the other."""
    lower, upper = product(a, b)
    return lower ^ upper


@triton.jit
def mix_pair(low: tl.int64, high: tl.int64, one: tl.int64, two: tl.int64, secret: Any) -> Any:
    """Take the chunks of 16 bytes at the addresses `one` and `two` into both accumulators."""
    a, b, c, d = word_at(one), word_at(one + 8), word_at(two), word_at(two + 8)
    low = plus(low, folded(a ^ secret[0], b ^ secret[1])) ^ plus(c, d)
    high = plus(high, folded(c ^ secret[2], d ^ secret[3])) ^ plus(a, b)
    return low, high


@triton.jit
def of_one_chunk(at: tl.int64, nbytes: tl.int64) -> Any:
    """`xxh3_128` of 9 to 16 bytes."""
    last = word_at(at + nbytes - 8)
    a = SECRET[1][0] ^ SECRET[1][1] ^ word_at(at) ^ last
    b = SECRET[1][2] ^ SECRET[1][3] ^ last
    low, high = product(a, PRIME64_1)
    low = plus(low, (nbytes - 1) << 54)
    high = plus(plus(high, b), times(b & LOWER_HALF, PRIME32_2 - 1))
    low, upper = product(low ^ swapped(high), PRIME64_2)
    return avalanche(low), avalanche(plus(upper, times(high, PRIME64_2)))


@triton.jit
def xxh3_128(at: tl.int64, nbytes: tl.int64) -> Any:
    """XXH3-128 of 9 to 240 bytes at an address of any alignment: its lower word, and its upper."""
    if nbytes <= 16:
        return of_one_chunk(at, nbytes)
    end = at + nbytes
    low, high = times(nbytes, PRIME64_1), word(0)
    if nbytes <= 128:  # pairs of a chunk from the start and one from the end, the innermost first
        if nbytes > 96:
            low, high = mix_pair(low, high, at + 48, end - 64, SECRET[3])
        if nbytes > 64:
            low, high = mix_pair(low, high, at + 32, end - 48, SECRET[2])
        if nbytes > 32:
            low, high = mix_pair(low, high, at + 16, end - 32, SECRET[1])
        low, high = mix_pair(low, high, at, end - 16, SECRET[0])
    else:  # pairs of neighbours; the last pair ends the input, and is turned round
        low, high = mix_pair(low, high, at, at + 16, SECRET[0])
        low, high = mix_pair(low, high, at + 32, at + 48, SECRET[1])
        low, high = mix_pair(low, high, at + 64, at + 80, SECRET[2])
        low, high = mix_pair(low, high, at + 96, at + 112, SECRET[3])
        low, high = avalanche(low), avalanche(high)
        if nbytes >= 160:
            low, high = mix_pair(low, high, at + 128, at + 144, LATER_SECRET[0])
        if nbytes >= 192:
            low, high = mix_pair(low, high, at + 160, at + 176, LATER_SECRET[1])
        if nbytes >= 224:
            low, high = mix_pair(low, high, at + 192, at + 208, LATER_SECRET[2])
        low, high = mix_pair(low, high, end - 16, end - 32, LAST_SECRET)
    upper = plus(plus(times(low, PRIME64_1), times(high, PRIME64_4)), times(nbytes, PRIME64_2))
    return avalanche(plus(low, high)), plus(~avalanche(upper), 1)  # of the upper word, the negative

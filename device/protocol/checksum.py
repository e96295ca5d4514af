"""Checksums: a reader gets what the producer wrote under this key, bit for bit.

A checksum covers the key, the number of bytes, the descriptor and the payload. It lies beside the number of dimensions
in the descriptor, and FLAG_CHECKSUM says that it is there. The producer makes it: `put.put` over its source, a producer
of several calls, or of a plan, over the pages before it commits. The reader makes it over its own copy, before it
validates.

Each 64-bit word goes through `memory.triton.mixed`, a bijection that differs from place to place, and the results are
added:
    sum = mixed(w0, 0) + mixed(w1, 1) + ...   (mod 2**64; the last word is padded with zeros)
So a change of one word always changes the sum: its own term changes, and all others stay. Size, key and descriptor are
mixed likewise, at places below 0, and joined by XOR. The whole is mixed once more and cut to 32 bits: there one change
in 2**32 is lost, whatever it is. The checksum is no protection against an adversary, who can compute it.

Source: splitmix64's output function (Steele 2014) as the bijection.

Guarantees: an object that a rank with `World.checksum` reads has a checksum, and it is right. That holds even if the
header leads to the pages of another object, for then the key is wrong.

Why the orderings suffice: the producer writes flag, checksum and payload before its commit releases, and the reader
reads them before it validates (`header`).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import checksum_bytes, load64, mixed, store64
from nanokv.device.protocol.header import descriptor_of
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.layout import (
    CHECKSUM_MASK,
    CHECKSUM_SHIFT,
    D_FORMAT,
    FLAG_CHECKSUM,
    H_FLAGS,
    LOW32,
)
from nanokv.device.segment.world_table import World, descriptor_at, header_at


@triton.jit
def wanted(world: World) -> Any:
    """True if this rank gives its objects checksums, and reads none without."""
    return world.checksum != 0


@triton.jit
def has_checksum(header: tl.int64) -> Any:
    """True if an object carries a checksum. It counts only if the STATE word is validated afterwards."""
    # acquire: one atomic per CTA, so that all of its warps branch alike; the protocol does not need it
    return (load64(header + H_FLAGS, "acquire") & FLAG_CHECKSUM) != 0


@triton.jit
def checksum(key: Key, nbytes: tl.int64, payload_sum: tl.int64, descriptor: Descriptor) -> Any:
    """The checksum of a key, a size, the sum over the payload (`checksum_bytes`), and a descriptor: 32 bits."""
    of = descriptor
    whole = payload_sum ^ mixed(key.hash, -1) ^ mixed(key.check, -2) ^ mixed(nbytes, -3) ^ mixed(of.kind & LOW32, -4)
    whole = whole ^ mixed(of.d0, -5) ^ mixed(of.d1, -6) ^ mixed(of.d2, -7) ^ mixed(of.d3, -8) ^ mixed(of.d4, -9)
    return mixed(whole ^ mixed(of.d5, -10) ^ mixed(of.d6, -11), 0) & CHECKSUM_MASK


@triton.jit
def stored_checksum(key: Key, nbytes: tl.int64, address: tl.int64, descriptor: Descriptor) -> Any:
    """The checksum of `nbytes` at an address under a key and a descriptor: for a host that looks from outside."""
    return checksum(key, nbytes, checksum_bytes(address, nbytes, 0), descriptor)


@triton.jit
def seal(
    world: World,
    seg: tl.int64,
    slot: tl.int64,
    key: Key,
    nbytes: tl.int64,
    payload_sum: tl.int64,
    descriptor: Descriptor,
) -> None:
    """Give a checksum to an object that is WRITING. It is made only of the caller's words: nothing is read back."""
    value = checksum(key, nbytes, payload_sum, descriptor)
    form = descriptor_at(world, seg, slot) + D_FORMAT
    store64(form, (descriptor.kind & LOW32) | (value << CHECKSUM_SHIFT), "relaxed")
    header = header_at(world, seg, slot)
    flags = load64(header + H_FLAGS, "acquire")  # acquire: as in `has_checksum`
    store64(header + H_FLAGS, flags | FLAG_CHECKSUM, "relaxed")


@triton.jit
def is_right(
    world: World, seg: tl.int64, slot: tl.int64, key: Key, nbytes: tl.int64, flagged: tl.int64, payload_sum: tl.int64
) -> Any:
    """True if the checksum of a copy is right, or if there is none and this rank does not insist. Validate afterwards.

    `flagged`: the answer of `has_checksum`. `payload_sum`: over the copy, if it is flagged.
    """
    right = not wanted(world)
    if flagged:
        descriptor = descriptor_of(world, seg, slot)
        value = checksum(key, nbytes, payload_sum, descriptor)
        right = ((descriptor.kind >> CHECKSUM_SHIFT) & CHECKSUM_MASK) == value
    return right

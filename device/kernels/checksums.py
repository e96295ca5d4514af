"""Kernels that sum the payload of one object: to verify a copy that torch made, and to seal what torch wrote.

The CTAs of a launch count their arrivals in the frame, with acquire-release; the LAST one has acquired the parts of all
the others, and judges or seals. One warp a CTA, as everywhere (`many`).
"""

import triton
import triton.language as tl

from nanokv.device.kernels.frame import add_sum, answer, answered, arg, arrive, whole_sum
from nanokv.device.kernels.shares import TILE_BYTES, TILE_WORDS
from nanokv.device.memory.triton import checksum_bytes, word
from nanokv.device.protocol.checksum import has_checksum, seal
from nanokv.device.protocol.get import judged, touch
from nanokv.device.protocol.put import is_writing
from nanokv.device.protocol.status import OK
from nanokv.device.segment.world_table import header_at, segment

FINAL = tl.constexpr(14)  # the answer that holds the status
VERIFY_COPY, VERIFY_BYTES, VERIFY_NOW = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
SEAL_HEADER, SEAL_EPOCH, SEAL_PAYLOAD = tl.constexpr(15), tl.constexpr(16), tl.constexpr(17)


@triton.jit
def sum_stream(frame: tl.int64, address: tl.int64, nbytes: tl.int64) -> None:
    """Add this CTA's part of the sum over some bytes: tiles in turn, what is left by the one whose turn is next."""
    tiles = nbytes // TILE_BYTES
    step = tl.num_programs(0).to(tl.int64)
    tile = tl.program_id(0).to(tl.int64)
    total = word(0)
    while tile < tiles:
        total += checksum_bytes(address + tile * TILE_BYTES, word(TILE_BYTES), tile * TILE_WORDS)
        tile += step
    if tile == tiles:
        total += checksum_bytes(address + tile * TILE_BYTES, nbytes - tiles * TILE_BYTES, tile * TILE_WORDS)
    add_sum(frame, total)


@triton.jit
def seal_from(frame: tl.int64, owner: tl.int64, slot: tl.int64) -> None:
    """Give an object the checksum of its key and descriptor, which are arguments, and of the sum of all CTAs."""
    seal(
        arg(frame, 0),
        segment(arg(frame, 0), owner),
        slot,
        arg(frame, 2),
        arg(frame, 3),
        arg(frame, 4),
        whole_sum(frame),
        arg(frame, 7),
        arg(frame, 8),
        arg(frame, 9),
        arg(frame, 10),
        arg(frame, 11),
        arg(frame, 12),
        arg(frame, 13),
        arg(frame, 14),
    )


@triton.jit
def verify_payload_kernel(frame: tl.int64) -> None:
    """(key_hash, key_check, copy, bytes, now), and as answers what was looked up: `verify` by many CTAs -> status."""
    world = arg(frame, 0)
    owner = answered(frame, 1)
    slot = answered(frame, 2)
    nbytes = arg(frame, VERIFY_BYTES)
    flagged = has_checksum(header_at(world, segment(world, owner), slot))
    if flagged:
        sum_stream(frame, arg(frame, VERIFY_COPY), nbytes)
    if arrive(frame) == tl.num_programs(0) - 1:
        epoch = answered(frame, 3)
        key_hash = arg(frame, 1)
        key_check = arg(frame, 2)
        status = judged(world, owner, slot, epoch, key_hash, key_check, nbytes, flagged, whole_sum(frame))
        if status == OK:
            touch(world, owner, slot, arg(frame, VERIFY_NOW))
        answer(frame, FINAL, status)


@triton.jit
def seal_payload_kernel(frame: tl.int64) -> None:
    """(owner, key_hash, key_check, bytes, -, -, descriptor[8], header, epoch, payload): `seal_payload` by many CTAs."""
    owner = arg(frame, 1)
    slot = arg(frame, SEAL_HEADER)
    if is_writing(arg(frame, 0), owner, slot, arg(frame, SEAL_EPOCH)):
        sum_stream(frame, segment(arg(frame, 0), owner) + arg(frame, SEAL_PAYLOAD), arg(frame, 4))
    if arrive(frame) == tl.num_programs(0) - 1:
        if is_writing(arg(frame, 0), owner, slot, arg(frame, SEAL_EPOCH)):
            seal_from(frame, owner, slot)

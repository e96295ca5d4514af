"""Kernels that stream the payload of one object with many CTAs: read, verify, seal, store.

A frame carries the arguments of the protocol function of the same name (`get.read`, `get.verify`, `put.seal_payload`,
`host_alloc.store_payload`). The CTAs arrive at the frame's ticket; the last one has acquired the parts of all others,
and judges or seals. One warp per CTA, as everywhere (`many` says why).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.frame import FRAME_TICKET, answer, arg, arguments, world_of
from nanokv.device.kernels.shares import TILE_BYTES, TILE_WORDS, copy_tiles, part_bytes, tiles_of
from nanokv.device.memory.triton import checksum_bytes, word
from nanokv.device.protocol.checksum import has_checksum, seal
from nanokv.device.protocol.cooperative import NOT_LAST
from nanokv.device.protocol.get import judged
from nanokv.device.protocol.lease import touch
from nanokv.device.protocol.put import is_writing
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Descriptor, Found, Key
from nanokv.device.protocol.ticket import add_part, is_last, whole_sum
from nanokv.device.segment.world_table import header_at, segment


@triton.jit
def my_tiles(nbytes: tl.int64) -> Any:
    """This CTA's run of the tiles of an object: (first, end)."""
    tiles = tiles_of(nbytes)
    ctas = tl.num_programs(0).to(tl.int64)
    me = tl.program_id(0).to(tl.int64)
    return me * tiles // ctas, (me + 1) * tiles // ctas


@triton.jit
def sum_tiles(frame: tl.int64, address: tl.int64, nbytes: tl.int64) -> None:
    """Add the sum of this CTA's tiles of some bytes to the ticket of the frame."""
    tile, end = my_tiles(nbytes)
    part = checksum_bytes(address + tile * TILE_BYTES, part_bytes(nbytes, tile, end), tile * TILE_WORDS)
    add_part(frame + FRAME_TICKET, part)


@triton.jit
def has_all_parts(frame: tl.int64) -> Any:
    """Arrive with this CTA's part done; True for the last one."""
    return is_last(frame + FRAME_TICKET, tl.num_programs(0).to(tl.int64))


@triton.jit
def judge(frame: tl.int64, copy: tl.int64, nbytes: tl.int64) -> Any:
    """The verdict on a copy at the address `copy`: TORN, CORRUPT or OK in the last CTA, NOT_LAST in the others.

    The frame begins with (owner, slot, epoch, key_hash, key_check).
    """
    world = world_of(frame)
    owner, slot, epoch, key_hash, key_check = arguments(frame, 5)
    flagged = has_checksum(header_at(world, segment(world, owner), slot))
    if flagged:
        sum_tiles(frame, copy, nbytes)
    status = word(NOT_LAST)
    if has_all_parts(frame):
        total = whole_sum(frame + FRAME_TICKET)
        found = Found(owner, slot, epoch, word(0), nbytes)
        status = judged(world, found, Key(key_hash, key_check), flagged, total)
        answer(frame, 0, status)
    return status


@triton.jit
def read_kernel(frame: tl.int64) -> None:
    """(owner, slot, epoch, key_hash, key_check, payload, nbytes, dst, now) -> status."""
    world = world_of(frame)
    owner = arg(frame, 1)
    nbytes = arg(frame, 7)
    dst = arg(frame, 8)
    tile, end = my_tiles(nbytes)
    copy_tiles(dst, segment(world, owner) + arg(frame, 6), nbytes, tile, end)
    if judge(frame, dst, nbytes) == OK:
        touch(world, owner, arg(frame, 2), arg(frame, 3), arg(frame, 9))


@triton.jit
def verify_kernel(frame: tl.int64) -> None:
    """(owner, slot, epoch, key_hash, key_check, copy, nbytes) -> status."""
    judge(frame, arg(frame, 6), arg(frame, 7))


@triton.jit
def store_payload_kernel(frame: tl.int64) -> None:
    """(owner, payload, src, nbytes)."""
    nbytes = arg(frame, 4)
    tile, end = my_tiles(nbytes)
    copy_tiles(segment(world_of(frame), arg(frame, 1)) + arg(frame, 2), arg(frame, 3), nbytes, tile, end)


@triton.jit
def seal_kernel(frame: tl.int64) -> None:
    """(owner, key_hash, key_check, slot, epoch, payload, nbytes, descriptor[8])."""
    world = world_of(frame)
    owner, key_hash, key_check, slot, epoch, payload, nbytes = arguments(frame, 7)
    seg = segment(world, owner)
    if is_writing(world, owner, slot, epoch):
        sum_tiles(frame, seg + payload, nbytes)
    if has_all_parts(frame):
        if is_writing(world, owner, slot, epoch):
            _, _, _, _, _, _, _, kind, d0, d1, d2, d3, d4, d5, d6 = arguments(frame, 15)
            total = whole_sum(frame + FRAME_TICKET)
            descriptor = Descriptor(kind, d0, d1, d2, d3, d4, d5, d6)
            seal(world, seg, slot, Key(key_hash, key_check), nbytes, total, descriptor)

"""Kernels that move payload: a whole put or get of a small object by one CTA, and the many-CTA halves of large ones.

A large put is two launches on one stream: `begin_object_kernel` leaves its answers in the frame, in device memory, and
`store_payload_kernel` finds them there, so the host does not wait in between. A large get is `lookup_object_kernel`
and `copy_payload_kernel`. The CTAs of the second launch count their arrivals in the frame; the LAST one commits and
announces the object (put), or validates the header (get).

Why the orderings suffice. Within a CTA a barrier stands between its stores and the thread that counts it in; counting
in is a read-modify-write with acquire-release at system scope, so the last CTA has acquired what every other one did,
and its commit releases all of it. On NVIDIA that holds for any number of warps: the barrier orders the warps, and
release is cumulative. On AMD a wave waits before a release for its own stores alone, and nothing makes the *other*
waves wait for theirs at the barrier. So there `launch` runs every kernel of this file with ONE wave a CTA.
"""

import triton
import triton.language as tl

from nanokv.device.kernels.frame import answer, answered, arg, arrive
from nanokv.device.memory import copy_bytes, select, word
from nanokv.device.object import finish, get, put, touch, validate
from nanokv.device.status import OK, SIZE
from nanokv.device.world import segment

TILE_WORDS = tl.constexpr(2048)  # 16 KiB: with four warps, eight 16-byte loads of each thread are in flight
TILE_BYTES = tl.constexpr(8 * 2048)
FINAL = tl.constexpr(14)  # the answer that holds the status of the whole put or get
PUT_SOURCE, GET_TARGET, GET_ROOM, GET_NOW = tl.constexpr(15), tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)


@triton.jit
def copy_tile(dst: tl.int64, src: tl.int64) -> None:
    """Copy one whole tile between addresses that are multiples of 16."""
    lanes = tl.arange(0, TILE_WORDS)
    of = tl.cast(tl.multiple_of(src, 16), tl.pointer_type(tl.int64)) + lanes
    to = tl.cast(tl.multiple_of(dst, 16), tl.pointer_type(tl.int64)) + lanes
    of = tl.max_contiguous(tl.multiple_of(of, 16), TILE_WORDS)
    to = tl.max_contiguous(tl.multiple_of(to, 16), TILE_WORDS)
    tl.store(to, tl.load(of, cache_modifier=".cg"))


@triton.jit
def stream(dst: tl.int64, src: tl.int64, nbytes: tl.int64) -> None:
    """Copy bytes with all CTAs of the launch: whole tiles in turn, and what is left by the one whose turn is next."""
    tiles = nbytes // TILE_BYTES
    step = tl.num_programs(0).to(tl.int64)
    tile = tl.program_id(0).to(tl.int64)
    aligned = ((dst | src) & 15) == 0
    while tile < tiles:
        if aligned:
            copy_tile(dst + tile * TILE_BYTES, src + tile * TILE_BYTES)
        else:
            copy_bytes(dst + tile * TILE_BYTES, src + tile * TILE_BYTES, word(TILE_BYTES))
        tile += step
    if tile == tiles:
        copy_bytes(dst + tile * TILE_BYTES, src + tile * TILE_BYTES, nbytes - tiles * TILE_BYTES)


@triton.jit
def store_payload_kernel(frame: tl.int64) -> None:
    """Second launch of a put: (..., src) and what `begin_object_kernel` answered -> status."""
    world = arg(frame, 0)
    owner = arg(frame, 1)
    status = answered(frame, 0)
    if status == OK:
        stream(segment(world, owner) + answered(frame, 3), arg(frame, PUT_SOURCE), arg(frame, 4))
    if arrive(frame) == tl.num_programs(0) - 1:
        if status == OK:
            status = finish(world, owner, answered(frame, 1), answered(frame, 2), answered(frame, 4))
        answer(frame, FINAL, status)


@triton.jit
def copy_payload_kernel(frame: tl.int64) -> None:
    """Second launch of a get: (..., dst, room, now) and what `lookup_object_kernel` answered -> status."""
    world = arg(frame, 0)
    owner = answered(frame, 1)
    status = answered(frame, 0)
    fits = answered(frame, 5) == arg(frame, GET_ROOM)
    if (status == OK) & fits:
        stream(arg(frame, GET_TARGET), segment(world, owner) + answered(frame, 4), arg(frame, GET_ROOM))
    if arrive(frame) == tl.num_programs(0) - 1:
        if status == OK:
            status = validate(world, owner, answered(frame, 2), answered(frame, 3))
            if status == OK:
                status = select(fits, status, word(SIZE))
                if fits:
                    touch(world, owner, answered(frame, 2), arg(frame, GET_NOW))
        answer(frame, FINAL, status)


@triton.jit
def put_small_kernel(frame: tl.int64) -> None:
    """A whole put by one CTA: (owner, key_hash, key_check, bytes, -, now, descriptor[8], src) -> status."""
    status, asleep = put(
        arg(frame, 0),
        arg(frame, 1),
        arg(frame, 2),
        arg(frame, 3),
        arg(frame, PUT_SOURCE),
        arg(frame, 4),
        arg(frame, 6),
        arg(frame, 7),
        arg(frame, 8),
        arg(frame, 9),
        arg(frame, 10),
        arg(frame, 11),
        arg(frame, 12),
        arg(frame, 13),
        arg(frame, 14),
    )
    answer(frame, FINAL, status)


@triton.jit
def get_small_kernel(frame: tl.int64) -> None:
    """A whole get by one CTA: (key_hash, key_check, dst, room, now) -> status."""
    status = get(
        arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, GET_TARGET), arg(frame, GET_ROOM), arg(frame, GET_NOW)
    )
    answer(frame, FINAL, status)

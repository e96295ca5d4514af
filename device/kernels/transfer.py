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

from nanokv.device.checksum import has_checksum, seal, wanted
from nanokv.device.get import get, judged, touch, validate
from nanokv.device.kernels.frame import add_sum, answer, answered, arg, arrive, whole_sum
from nanokv.device.memory import checksum_bytes, copy_bytes, select, word
from nanokv.device.put import finish, is_writing, put, seal_payload
from nanokv.device.status import OK, SIZE, TORN
from nanokv.device.world import header_at, segment

TILE_WORDS = tl.constexpr(2048)  # 16 KiB: with four warps, eight 16-byte loads of each thread are in flight
TILE_BYTES = tl.constexpr(8 * 2048)
FINAL = tl.constexpr(14)  # the answer that holds the status of the whole put or get
PUT_SOURCE, GET_TARGET, GET_ROOM, GET_NOW = tl.constexpr(15), tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
SEAL_HEADER, SEAL_EPOCH, SEAL_PAYLOAD = tl.constexpr(15), tl.constexpr(16), tl.constexpr(17)


@triton.jit
def copy_tile(dst: tl.int64, src: tl.int64, words: tl.constexpr = TILE_WORDS) -> None:
    """Copy `words`, a power of two, between addresses that are multiples of 16."""
    lanes = tl.arange(0, words)
    of = tl.cast(tl.multiple_of(src, 16), tl.pointer_type(tl.int64)) + lanes
    to = tl.cast(tl.multiple_of(dst, 16), tl.pointer_type(tl.int64)) + lanes
    of = tl.max_contiguous(tl.multiple_of(of, 16), words)
    to = tl.max_contiguous(tl.multiple_of(to, 16), words)
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
def sum_stream(frame: tl.int64, address: tl.int64, nbytes: tl.int64) -> None:
    """Add this CTA's part of the sum over some bytes: of those which `stream` gives it."""
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
def seal_from(frame: tl.int64, owner: tl.int64, index: tl.int64) -> None:
    """Give an object the checksum of its key and descriptor, which are arguments, and of the sum of all CTAs."""
    seal(
        arg(frame, 0),
        segment(arg(frame, 0), owner),
        index,
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
def store_payload_kernel(frame: tl.int64) -> None:
    """Second launch of a put: (..., src) and what `begin_object_kernel` answered -> status."""
    world = arg(frame, 0)
    owner = arg(frame, 1)
    status = answered(frame, 0)
    if status == OK:
        stream(segment(world, owner) + answered(frame, 3), arg(frame, PUT_SOURCE), arg(frame, 4))
        if wanted(world):
            sum_stream(frame, arg(frame, PUT_SOURCE), arg(frame, 4))
    if arrive(frame) == tl.num_programs(0) - 1:
        if status == OK:
            if wanted(world):
                seal_from(frame, owner, answered(frame, 1))
            status = finish(world, owner, answered(frame, 1), answered(frame, 2), answered(frame, 4))
        answer(frame, FINAL, status)


@triton.jit
def copy_payload_kernel(frame: tl.int64) -> None:
    """Second launch of a get: (key, dst, room, now) and what `lookup_object_kernel` answered -> status."""
    fits = answered(frame, 5) == arg(frame, GET_ROOM)
    if (answered(frame, 0) == OK) & fits:
        payload = segment(arg(frame, 0), answered(frame, 1)) + answered(frame, 4)
        stream(arg(frame, GET_TARGET), payload, arg(frame, GET_ROOM))
    judge_copy(frame, fits)


@triton.jit
def verify_payload_kernel(frame: tl.int64) -> None:
    """(key_hash, key_check, copy, bytes, now), and as answers what was looked up: `verify` by many CTAs -> status."""
    judge_copy(frame, answered(frame, 0) == OK)


@triton.jit
def judge_copy(frame: tl.int64, fits: tl.int64) -> None:
    """Sum this CTA's part of a copy, if need be; the last one judges it, and answers."""
    world = arg(frame, 0)
    owner = answered(frame, 1)
    index = answered(frame, 2)
    status = answered(frame, 0)
    flagged = has_checksum(header_at(world, segment(world, owner), index))
    if (status == OK) & fits & flagged:
        sum_stream(frame, arg(frame, GET_TARGET), arg(frame, GET_ROOM))
    if arrive(frame) == tl.num_programs(0) - 1:
        if status == OK:
            if fits:
                key_hash = arg(frame, 1)
                key_check = arg(frame, 2)
                room = arg(frame, GET_ROOM)
                epoch = answered(frame, 3)
                status = judged(world, owner, index, epoch, key_hash, key_check, room, flagged, whole_sum(frame))
                if status == OK:
                    touch(world, owner, index, arg(frame, GET_NOW))
            else:
                status = select(validate(world, owner, index, answered(frame, 3)) == OK, word(SIZE), word(TORN))
        answer(frame, FINAL, status)


@triton.jit
def seal_payload_kernel(frame: tl.int64) -> None:
    """(owner, key_hash, key_check, bytes, -, -, descriptor[8], header, epoch, payload): `seal_payload` by many CTAs."""
    owner = arg(frame, 1)
    index = arg(frame, SEAL_HEADER)
    if is_writing(arg(frame, 0), owner, index, arg(frame, SEAL_EPOCH)):
        sum_stream(frame, segment(arg(frame, 0), owner) + arg(frame, SEAL_PAYLOAD), arg(frame, 4))
    if arrive(frame) == tl.num_programs(0) - 1:
        if is_writing(arg(frame, 0), owner, index, arg(frame, SEAL_EPOCH)):
            seal_from(frame, owner, index)


@triton.jit
def seal_small_kernel(frame: tl.int64) -> None:
    """`seal_payload` by one CTA: the arguments of `seal_payload_kernel`."""
    seal_payload(
        arg(frame, 0),
        arg(frame, 1),
        arg(frame, 2),
        arg(frame, 3),
        arg(frame, SEAL_HEADER),
        arg(frame, SEAL_EPOCH),
        arg(frame, SEAL_PAYLOAD),
        arg(frame, 4),
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

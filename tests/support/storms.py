"""Storms: many CTAs put, get, hold and remove a few keys in a heap that is too small. What each one read is checked."""

import random
from collections import Counter
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from nanokv.device.library import OK, copy_bytes, get, lookup, pin, put, remove, segment, store64, table64, unpin, word
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.fsck import check_segments
from tests.gpu.bodies import PAGE, UINT8_FLAT, World

PUT, GET, REMOVE, HOLD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
DO = {"put": 0, "get": 1, "remove": 2, "hold": 3}
WIDTH = tl.constexpr(64)  # elements per step of a copy
JOB_BYTES = tl.constexpr(4 * WORD_BYTES)
KEY_CHECK = tl.constexpr(7)  # times the key

#: What an operation may answer. Nothing here is corrupt, and no request is wrong.
ANSWERS = {
    "put": {"OK", "DUPLICATE", "FULL", "NO_HEADER", "NO_ENTRY", "LOST", "BUSY"},
    "get": {"OK", "MISS", "NOT_READY", "TORN"},
    "remove": {"OK", "MISS", "NOT_READY", "PINNED", "BUSY"},
    "hold": {"OK", "MISS", "NOT_READY", "NO_PIN", "BUSY"},
}


@triton.jit
def storm_kernel(
    world: tl.int64, jobs: tl.int64, count: tl.int64, out: tl.int64, rooms: tl.int64, nbytes: tl.int64
) -> None:
    """CTA c does `count` jobs of four words: what, key, source, owner. Statuses go to `out`, bytes to `rooms`."""
    first = tl.program_id(0).to(tl.int64) * count
    n = word(0)
    zero = n * 0
    while n < count:
        at = first + n
        job = jobs + at * JOB_BYTES
        what = table64(job)
        key = table64(job + WORD_BYTES)
        room = rooms + at * nbytes
        status = word(0)
        if what == PUT:
            status, _ = put(
                world, table64(job + 3 * WORD_BYTES), key, key * KEY_CHECK, table64(job + 2 * WORD_BYTES), nbytes, at,
                zero + UINT8_FLAT, nbytes, zero, zero, zero, zero, zero, zero,
            )  # fmt: skip
        elif what == GET:
            status = get(world, key, key * KEY_CHECK, room, nbytes, at)
        elif what == REMOVE:
            status, _ = remove(world, key, key * KEY_CHECK)
        else:
            status, owner, slot, epoch, payload, _ = lookup(world, key, key * KEY_CHECK)
            if status == OK:
                status, line = pin(world, owner, slot, epoch)
                if status == OK:
                    copy_bytes(room, segment(world, owner) + payload, nbytes, WIDTH)
                    status = unpin(world, owner, slot, epoch, line)
        store64(out + at * WORD_BYTES, status, "relaxed")
        n += 1


class Kind(NamedTuple):
    """How much a storm has, and of what."""

    pages: int
    slots: int
    keys: int
    nbytes: int
    may_evict: bool
    checksum: bool

    @staticmethod
    def drawn(seed: int) -> "Kind":
        """A random one, in which nothing is enough."""
        dice = random.Random(seed)
        few = dice.choice((6, 16, 40)), dice.choice((6, 16, 40)), dice.choice((2, 5, 12))
        return Kind(*few, dice.choice((64, 1600, PAGE + 8)), dice.random() < 0.6, dice.random() < 0.5)


def storm(kind: Kind, seed: int, ctas: int, count: int, warps: int = 1) -> Counter[str]:
    """One launch of `ctas` CTAs that do `count` jobs each; returns how often each operation had each answer.

    Raises:
        AssertionError: bytes are not one object's, an answer cannot be, objects do not add up, or fsck has findings.
    """
    dice, total = random.Random(seed), ctas * count
    world = World(torch.device("cpu"), kind.pages, may_evict=kind.may_evict, slots=kind.slots, checksum=kind.checksum)
    source = torch.zeros(total, kind.nbytes // 8, dtype=torch.int64)
    jobs: list[tuple[str, int]] = []
    rows = []
    for n in range(total):
        what, key = (
            dice.choice(("put", "put", "put", "get", "get", "get", "remove", "hold")),
            3 + dice.randrange(kind.keys),
        )
        source[n] = key << 32 | n  # every word of an object says of which job it is
        jobs.append((what, key))
        rows.append((DO[what], key, source[n].data_ptr(), dice.randrange(2)))
    table = torch.tensor(rows, dtype=torch.int64)
    out, rooms = torch.full((total,), -1, dtype=torch.int64), torch.zeros_like(source)
    storm_kernel[(ctas,)](
        world.machine.table_address, table.data_ptr(), count, out.data_ptr(), rooms.data_ptr(), kind.nbytes,
        num_warps=warps,
    )  # fmt: skip
    statuses = [Status(status) for status in out.tolist()]
    for n, ((what, key), status) in enumerate(zip(jobs, statuses, strict=True)):
        assert status.name in ANSWERS[what], (n, what, status.name)
        if what in ("get", "hold") and status == Status.OK:
            (put_by,) = {*rooms[n].tolist()}  # one object's, and whole
            assert put_by >> 32 == key and jobs[put_by & 0xFFFFFFFF] == ("put", key), (n, what, hex(put_by))
            assert statuses[put_by & 0xFFFFFFFF] == Status.OK, (n, what, hex(put_by))
    _add_up(world, Counter((what, status.name) for (what, _), status in zip(jobs, statuses, strict=True)))
    return Counter(f"{what} {status.name}" for (what, _), status in zip(jobs, statuses, strict=True))


def _add_up(world: World, said: Counter[Any]) -> None:
    """As many objects are there as were put, less those removed and evicted; fsck finds nothing."""
    report = check_segments(world.views(), mode="device")
    assert report.clean, [str(finding) for finding in report.findings]
    machine = world.machine
    there = sum(int((machine.headers(owner, 0, world.geometry.hdr_count)["n_pages"] > 0).sum()) for owner in range(2))
    evicted = sum(int(machine.control(owner)["evicted"][0]) for owner in range(2))
    assert there == said["put", "OK"] - said["remove", "OK"] - evicted, (there, evicted, said)

"""Tests of batches, as plain functions of a device: many objects in one launch; see `bodies`."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from nanokv.device.kernels.shares import FEW, REQUESTS, TILE_BYTES, all_tiles, request_of, share_of, worker_of
from nanokv.device.machines.batch import Batch, default_ctas
from nanokv.device.machines.records import Request
from nanokv.device.memory.triton import store64
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.ticket import TICKET
from nanokv.device.segment.layout import ENTRIES_PER_BUCKET, WORD
from nanokv.space.coalesce import join_free_extents
from tests.gpu.bodies import PAGE, World, flat, key, world

OK, MISS, DUPLICATE, FULL, SIZE = Status.OK, Status.MISS, Status.DUPLICATE, Status.FULL, Status.SIZE
TILE = int(TILE_BYTES.value)
QUARTER = 4 * PAGE  # bytes: a quarter of a segment of 16 pages
STEP = int(REQUESTS.value)
ROW_BYTES = tl.constexpr(40)
SIZES = (0, 1, PAGE + 1, TILE - 1, TILE, TILE + 1, 3 * TILE + 5, 8, 5 * TILE)


def batch(w: World, capacity: int, ctas: int | None = None) -> Batch:
    """An empty batch for rank 0."""
    return Batch(w.machine.table_address, capacity, w.device, ctas=ctas)


def done(made: Batch, operation: Callable[[], None], requests: list[Request]) -> list[Status]:
    """The statuses of one operation of a batch on some requests."""
    made.fill(requests)
    operation()
    return [Status(answer) for answer in made.answers()]


def put_request(n: int, data: torch.Tensor, owner: int = 1) -> Request:
    """A request to put."""
    return Request(key(n), data.data_ptr(), data.numel(), owner, flat(data.numel()))


def get_request(n: int, room: torch.Tensor) -> Request:
    """A request to get."""
    return Request(key(n), room.data_ptr(), room.numel())


def batches_put_and_get(device: torch.device) -> None:
    """Sizes about a tile's, aligned and not, of both owners, in one launch each way; with checksums and without."""
    for checksum in (False, True):
        with world(device, pages=256, checksum=checksum) as w:
            made = batch(w, 16)
            for turn in range(1 if checksum else 2):
                data = [w.bytes(size, n + 50 * turn, shift=(0, 8, 3)[n % 3]) for n, size in enumerate(SIZES)]
                puts = [put_request(n, each, n % 2) for n, each in enumerate(data)]
                assert done(made, made.put, puts) == [OK] * len(SIZES)
                assert done(made, made.put, puts) == [DUPLICATE] * len(SIZES)
                rooms = [w.bytes(size, 99, shift=(3, 0, 8)[n % 3]) for n, size in enumerate(SIZES)]
                gets = [get_request(n, room) for n, room in enumerate(rooms)]
                assert done(made, made.get, gets) == [OK] * len(SIZES)
                for room, each in zip(rooms, data, strict=True):
                    assert torch.equal(room, each), each.numel()
                found = w.machine.lookup(key(3))
                assert (found.place.owner, found.place.nbytes) == (1, SIZES[3])
                keys = [Request(key(n), 0, 0) for n in range(len(SIZES))]
                assert done(made, made.remove, keys) == [OK] * len(SIZES)
                assert done(made, made.remove, keys) == [MISS] * len(SIZES)


def batches_answer_each_request(device: torch.device) -> None:
    """One launch in which some requests fail: full, a duplicate, a miss, a wrong size; the others are whole."""
    with world(device, pages=16) as w:
        made = batch(w, 300)
        data = w.bytes(QUARTER, 1)
        assert done(made, made.put, []) == []
        statuses = done(made, made.put, [put_request(n, data) for n in range(6)])
        assert sorted(statuses) == [OK] * 4 + [FULL] * 2
        stored = statuses.index(OK)
        same = [put_request(40, data[:PAGE], 0)] * 3
        assert sorted(done(made, made.put, same)) == [OK, DUPLICATE, DUPLICATE]
        rooms = w.bytes(QUARTER, 2), w.bytes(QUARTER + 1, 2), w.bytes(PAGE, 2)
        gets = [get_request(stored, rooms[0]), get_request(stored, rooms[1]), get_request(77, rooms[0][:8])]
        assert done(made, made.get, [*gets, get_request(40, rooms[2])]) == [OK, SIZE, MISS, OK]
        assert torch.equal(rooms[0], data) and torch.equal(rooms[2], data[:PAGE])
        assert not torch.equal(rooms[1][:QUARTER], data)


def an_exact_heap_refuses_nothing(device: torch.device, ctas: int | None = None) -> None:
    """One object per CTA, into a heap with just as many pages and slots: cold, and with all pages in large extents.

    Args:
        ctas: how many CTAs put at once; default: as many as the device runs, or a few.
    """
    for pages in (1, 2):  # pages per object
        count = ctas or (24 if device.type == "cpu" else default_ctas(device))
        with world(device, pages=count * pages, slots=count, shards=None) as w:
            made = batch(w, count, ctas=count)
            data = w.bytes(pages * PAGE - 9, 1)
            puts = [put_request(n, data) for n in range(count)]
            assert done(made, made.put, puts) == [OK] * count, "cold"
            assert done(made, made.remove, [Request(key(n), 0, 0) for n in range(count)]) == [OK] * count
            assert join_free_extents(w.machine, 1) == max(w.geometry.class_pages)
            assert done(made, made.put, puts) == [OK] * count, "joined"
            found = done(made, made.find, [Request(key(n), 0, 0) for n in range(count)])
            assert found == [OK] * count


def removers_of_one_bucket_end(device: torch.device) -> None:
    """As many removals at once as a bucket has entries, all of keys of that bucket: each finds its object."""
    count = int(ENTRIES_PER_BUCKET.value)
    with world(device, pages=count, slots=count) as w:
        made = batch(w, count, ctas=count)
        keys = [(n * w.geometry.dir_buckets, n + 1) for n in range(count)]
        data = w.bytes(PAGE, 1)
        puts = [Request(each, data.data_ptr(), PAGE, 1, flat(PAGE)) for each in keys]
        for _ in range(3):
            assert done(made, made.put, puts) == [OK] * count
            assert done(made, made.remove, [Request(each, 0, 0) for each in keys]) == [OK] * count


def tickets_are_ready_for_the_next_launch(device: torch.device) -> None:
    """All words of a ticket that a launch begins with are zero after every launch; the answer in it stays."""
    first = TICKET.offsets["answer"] // WORD
    with world(device, pages=8) as w:
        made = batch(w, 6)
        data = w.bytes(QUARTER, 1)
        puts = [put_request(n % 4, data) for n in range(6)]
        room = w.bytes(QUARTER, 2)
        gets = [get_request(n, room) for n in range(5)]
        assert not made.tickets.any(), "before the first launch"
        launches = [(made.put, puts), (made.get, gets), (made.find, gets), (made.remove, gets)]
        for operation, requests in launches:
            assert len(set(done(made, operation, requests))) > 1, "some requests fail"
            assert not made.tickets[:, :first].any()


@triton.jit
def find_shares_kernel(requests: tl.int64, count: tl.int64, out: tl.int64) -> None:
    """Per tile: its request, the first tile of that request, the number of tiles, which of seven CTAs takes it.

    And 1 if as many CTAs as there are tiles find the same.
    """
    total = all_tiles(requests, count)
    me = tl.program_id(0).to(tl.int64)
    at, first = request_of(requests, count, me)
    row = out + me * ROW_BYTES
    store64(row, at, "relaxed")
    store64(row + 8, first, "relaxed")
    store64(row + 16, total, "relaxed")
    store64(row + 24, worker_of(me, total, tl.minimum(total, 7)), "relaxed")
    found, mine, start = share_of(requests, count, me, total)
    store64(row + 32, ((found == total) & (mine == at) & (start == first)).to(tl.int64), "relaxed")


def tiles_belong_to_requests(device: torch.device) -> None:
    """The request and the CTA of each tile, for tables about as long as one step reads."""
    dice = random.Random(5)
    for count in (1, FEW.value, FEW.value + 1, STEP, STEP + 1):
        sizes = [dice.choice((0, 1, TILE, TILE + 1, 3 * TILE)) for _ in range(count)]
        tiles = [max(-(-size // TILE), 1) for size in sizes]
        made = Batch(0, count, device)
        made.fill([Request((0, 0), 0, size) for size in sizes])
        out = torch.zeros(sum(tiles), 5, dtype=torch.int64, device=device)
        find_shares_kernel[(sum(tiles),)](made.requests.data_ptr(), count, out.data_ptr())
        ends, total, workers = np.cumsum(tiles), sum(tiles), min(sum(tiles), 7)
        whose = [c for c in range(workers) for _ in range(c * total // workers, (c + 1) * total // workers)]
        want = [[at, int(ends[at]) - tiles[at], total] for at in range(count) for _ in range(tiles[at])]
        assert out.tolist() == [[*row, cta, 1] for row, cta in zip(want, whose, strict=True)], count


def prefixes_are_found(device: torch.device) -> None:
    """Which keys of a chain are found, and how many of them before the first miss."""
    with world(device) as w:
        made = batch(w, 200)
        data = w.bytes(100, 1)
        stored = [n for n in range(12) if n not in (7, 9)]
        assert done(made, made.put, [put_request(n, data, n % 2) for n in stored]) == [OK] * len(stored)
        for chain, prefix in (([*range(12)], 7), ([7], 0), ([*range(5)], 5), ([], 0), ([0, 1] * 70 + [9, 2], 140)):
            statuses = done(made, made.find, [Request(key(n), 0, 0) for n in chain])
            assert statuses == [OK if n in stored else MISS for n in chain]
            assert made.prefix.tolist() == [prefix]


def batches_of_many_small_objects(device: torch.device) -> None:
    """More objects than CTAs."""
    count = 24 if device.type == "cpu" else 3000
    with world(device, pages=count, slots=count) as w:
        made = batch(w, count)
        data = [w.bytes(16 + n % 7, n) for n in range(count)]
        assert done(made, made.put, [put_request(n, each) for n, each in enumerate(data)]) == [OK] * count
        rooms = [torch.zeros_like(each) for each in data]
        assert done(made, made.get, [get_request(n, room) for n, room in enumerate(rooms)]) == [OK] * count
        assert all(torch.equal(room, each) for room, each in zip(rooms, data, strict=True))


def runs_answer_each_request(device: torch.device) -> None:
    """Objects that are alike, of one CTA: with keys that come twice, and other sizes and owners between them."""
    for checksum in (False, True):
        with world(device, pages=128, slots=64, checksum=checksum) as w:
            made = batch(w, 48, ctas=2)
            data = [w.bytes(5 * PAGE if n % 11 == 0 else PAGE + 9, n, shift=8 * (n % 2)) for n in range(40)]
            puts = [put_request(n, each, int(n > 30)) for n, each in enumerate(data)]
            puts[20:20] = [puts[19], puts[3]]
            answers = done(made, made.put, puts)
            of_key: dict[tuple[int, int], list[Status]] = {each.key: [] for each in puts}
            for each, answer in zip(puts, answers, strict=True):
                of_key[each.key].append(answer)
            assert all(sorted(said) == [OK, *[DUPLICATE] * (len(said) - 1)] for said in of_key.values()), answers
            rooms = [torch.zeros_like(each) for each in data]
            assert done(made, made.get, [get_request(n, room) for n, room in enumerate(rooms)]) == [OK] * len(data)
            assert all(torch.equal(room, each) for room, each in zip(rooms, data, strict=True))
            wrong = [put_request(n, data[1], 7) for n in range(50, 53)]
            large = [put_request(n, w.bytes(200 * PAGE, 1)) for n in range(53, 56)]
            assert done(made, made.put, wrong + large) == [Status.INVALID] * 3 + [Status.TOO_LARGE] * 3


def runs_into_a_small_heap(device: torch.device) -> None:
    """One CTA with more objects than there is room for: those that fit are there, or with eviction the last ones."""
    for pages, slots, refusal in ((4, 16, FULL), (16, 4, Status.NO_HEADER)):
        for may_evict in (False, True):
            with world(device, pages=pages, slots=slots, shards=1, may_evict=may_evict) as w:
                made = batch(w, 12, ctas=1)
                data = w.bytes(PAGE, 1)
                for turn in (0, 100):  # into a heap that was never used, and out of lists
                    puts = [put_request(n + turn, data) for n in range(12)]
                    answers = done(made, made.put, puts)
                    assert answers == [OK] * 12 if may_evict else answers == [OK] * 4 + [refusal] * 8, answers
                    there = done(made, made.remove, [Request(each.key, 0, 0) for each in puts])
                    assert there.count(OK) == 4 and (there[-1] == OK) == may_evict, there


def captured(made: Batch, operation: Callable[[], None]) -> Callable[[], None]:
    """A function that replays a launch and the report of its statuses from a graph; on a CPU it repeats them."""

    def both() -> None:
        operation()
        made.report()

    device = made.statuses.device
    made.fill([])
    both()  # compiled before it is captured
    if device.type == "cpu":
        return both
    torch.cuda.synchronize(device)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize(device)

    return replay


def a_batch_is_replayed_from_a_graph(device: torch.device) -> None:
    """Captured launches, and a table that changes: each replay publishes new objects, all of which are read back."""
    replays, each = (1000 if device.type == "cuda" else 3), 4
    with world(device, pages=replays * each, slots=replays * each) as w:
        made = batch(w, each)
        put, get, find, remove = (
            captured(made, operation) for operation in (made.put, made.get, made.find, made.remove)
        )
        data = [w.bytes(1000 + n, n) for n in range(each)]
        rooms = [torch.zeros_like(one) for one in data]
        for replay in range(replays):
            keys = range(replay * each, (replay + 1) * each)
            asked = [
                put_request(n, one)._replace(key=key(k)) for n, (k, one) in enumerate(zip(keys, data, strict=True))
            ]
            made.fill(asked)
            put()
            assert made.reported.tolist() == [OK] * each
        for replay in range(replays):
            keys = range(replay * each, (replay + 1) * each)
            made.fill([get_request(k, room) for k, room in zip(keys, rooms, strict=True)])
            find()
            assert made.reported.tolist() == [OK] * each and made.prefix.tolist() == [each]
            get()
            assert made.reported.tolist() == [OK] * each
            assert all(torch.equal(room, one) for room, one in zip(rooms, data, strict=True))
            for room in rooms:
                room.zero_()
            remove()
            assert made.reported.tolist() == [OK] * each
            find()
            assert made.reported.tolist() == [MISS] * each


BODIES: tuple[Callable[[torch.device], None], ...] = (
    tiles_belong_to_requests,
    batches_put_and_get,
    batches_answer_each_request,
    prefixes_are_found,
    batches_of_many_small_objects,
    runs_answer_each_request,
    runs_into_a_small_heap,
    an_exact_heap_refuses_nothing,
    removers_of_one_bucket_end,
    tickets_are_ready_for_the_next_launch,
    a_batch_is_replayed_from_a_graph,
)

"""Tests of a launching machine, as plain functions of a device: a GPU, or the CPU (interpreted, or as PTX).

Two virtual ranks live on one device. Each body makes its own segments; fsck follows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import triton
import triton.language as tl

from nanokv.bench.gpu.timer import synchronize
from nanokv.device import remote
from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.machines.launch import LaunchMachine
from nanokv.device.machines.records import Begun, Descriptor, Place
from nanokv.device.memory.triton import GOLDEN, MIX_ONE, MIX_TWO
from nanokv.device.protocol import structs
from nanokv.device.protocol.put import put
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry, producer_word
from nanokv.device.segment.last_access import time_of
from nanokv.device.segment.layout import (
    CHECKSUM_MASK,
    CHECKSUM_SHIFT,
    EPOCH_SHIFT,
    FLAG_PLAN,
    HEADER_BYTES,
    NDIM_SHIFT,
    READY,
    REMOVED,
    RING_EPOCH_SHIFT,
    RING_HEADER_MASK,
    RING_HEADER_SHIFT,
    RING_KIND_MASK,
    STATE_MASK,
    STORED,
    WRITING,
    unpack,
)
from nanokv.device.segment.views import SegmentView
from nanokv.device.segment.world_table import open_world
from nanokv.fsck import check_segments

PAGE = 4096
WARPS = (1, 4)  #: of a CTA, in the bodies that run with several sizes of CTAs
UINT8_FLAT = tl.constexpr(1 | 1 << NDIM_SHIFT.value)  # format of uint8 of one dimension
OK, MISS, DUPLICATE, FULL = Status.OK, Status.MISS, Status.DUPLICATE, Status.FULL
PINNED, SIZE, LOST, TORN, CORRUPT = Status.PINNED, Status.SIZE, Status.LOST, Status.TORN, Status.CORRUPT


def flat(nbytes: int) -> Descriptor:
    """The descriptor of a uint8 tensor of one dimension."""
    return (UINT8_FLAT.value, nbytes, 0, 0, 0, 0, 0, 0)


def key(n: int) -> tuple[int, int]:
    """A digest, as of the n-th key."""
    return n * 0x5851_F42D_4C95 + 1, n * 0x1405_7B7E_F767 - 1


class World:
    """The segments of two virtual ranks on one device, and the machine of rank 0."""

    def __init__(
        self,
        device: torch.device,
        pages: int,
        *,
        may_evict: bool,
        slots: int | None = None,
        checksum: bool = False,
        shards: int | None = 4,
    ) -> None:
        self.geometry = Geometry.plan(pages * PAGE, PAGE, 2, max_objects=slots, shards=shards)
        self.device = device
        size = self.geometry.segment_bytes
        self.segments = [self._aligned(size) for _ in range(2)]
        for rank, segment in enumerate(self.segments):
            block = self.geometry.control_block(rank, 9, "device", may_evict=may_evict, water=(85, 95))
            segment[: block.nbytes] = torch.from_numpy(block.view(np.uint8)).to(device)
        synchronize(device)  # the machine's owner has a stream of its own
        table = self.geometry.world_table(0, 1, [segment.data_ptr() for segment in self.segments], checksum=checksum)
        self.machine = LaunchMachine(self.geometry, table, self.segments, device)

    def _aligned(self, size: int) -> torch.Tensor:
        raw = torch.zeros(size + PAGE, dtype=torch.uint8, device=self.device)
        return raw[-raw.data_ptr() % PAGE :][:size]

    def views(self) -> list[SegmentView]:
        """Copies of the segments in host memory."""
        return [SegmentView(segment.cpu().numpy().copy(), self.geometry) for segment in self.segments]

    def bytes(self, count: int, seed: int, *, shift: int = 0) -> torch.Tensor:
        """Random bytes on the device, `shift` bytes off a multiple of 16."""
        made = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, count, np.uint8))
        return torch.cat([torch.zeros(16 + shift, dtype=torch.uint8), made]).to(self.device)[16 + shift :]

    def put(self, n: int, data: torch.Tensor, owner: int = 1) -> int:
        return self.machine.put(owner, key(n), data.data_ptr(), data.numel(), flat(data.numel()), 100 + n)

    def get(self, n: int, count: int) -> tuple[int, torch.Tensor]:
        dst = torch.zeros(count, dtype=torch.uint8, device=self.device)
        return self.machine.get(key(n), dst.data_ptr(), count, (0,) * 8, 200 + n), dst

    def begin(self, n: int, nbytes: int, flags: int = 0) -> Begun:
        return self.machine.begin(1, key(n), nbytes, flags, flat(nbytes), 300 + n)


@contextmanager
def world(
    device: torch.device,
    pages: int = 64,
    *,
    may_evict: bool = False,
    slots: int | None = None,
    checksum: bool = False,
    shards: int | None = 4,
) -> Iterator[World]:
    """A world that must be sound at the end."""
    made = World(device, pages, may_evict=may_evict, slots=slots, checksum=checksum, shards=shards)
    yield made
    report = check_segments(made.views(), mode="device")
    assert report.clean, [str(finding) for finding in report.findings]


def checksums(device: torch.device) -> None:
    """Put, sealed and read by one CTA and by many; the numbers are the native ones, and a flipped bit is seen."""
    sizes = (0, 9, PAGE + 1, 5 * TILE_BYTES.value + 9)
    with world(device, pages=256, checksum=True) as w:
        for n, size in enumerate(sizes):
            data = w.bytes(size, n, shift=(0, 8, 3)[n % 3])
            assert w.put(n, data) == OK
            begun = w.begin(100 + n, size)
            w.segments[1][begun.place.payload : begun.place.payload + size] = data
            w.machine.seal(key(100 + n), begun.place, flat(size))
            assert w.machine.finish(begun.place, begun.phase) == OK
            for which in (n, 100 + n):
                found = w.machine.lookup(key(which))
                assert found.descriptor[0] >> CHECKSUM_SHIFT.value & CHECKSUM_MASK.value == native_checksum(which, data)
                status, back = w.get(which, size)
                assert status == OK and torch.equal(back, data), (which, size)
                assert w.machine.read(key(which), found.place, back.data_ptr(), 1) == OK
                assert w.machine.verify(key(which), found.place, back.data_ptr()) == OK
                if size:
                    w.segments[1][found.place.payload + size // 2] ^= 64
                    assert w.get(which, size)[0] == CORRUPT
                    assert w.machine.read(key(which), found.place, back.data_ptr(), 1) == CORRUPT
                    assert (
                        w.machine.verify(key(which), found.place, w.segments[1].data_ptr() + found.place.payload)
                        == CORRUPT
                    )
                assert w.machine.remove(key(which)) == OK
                assert w.machine.verify(key(which), found.place, back.data_ptr()) == TORN


def native_checksum(n: int, data: torch.Tensor) -> int:
    """The CPU's checksum: the payload's sum by Python's integers, the rest by the arithmetic of `checksum`."""
    raw = data.cpu().numpy().tobytes()
    words = np.frombuffer(raw + bytes(-len(raw) % 8), "<u8").tolist()
    whole = sum(mixed_in_python(word, at) for at, word in enumerate(words)) % 2**64
    for at, word in enumerate((*key(n), len(raw), *flat(len(raw))), 1):
        whole ^= mixed_in_python(word, -at)
    return mixed_in_python(whole, 0) & CHECKSUM_MASK.value


def mixed_in_python(word: int, place: int) -> int:
    """`memory.mixed`."""
    x = (word + (place + 1) * GOLDEN.value) % 2**64
    x = (x ^ x >> 30) * MIX_ONE.value % 2**64
    x = (x ^ x >> 27) * MIX_TWO.value % 2**64
    return x ^ x >> 31


def puts_gets_and_removes(device: torch.device) -> None:
    """Sizes about every boundary, aligned and not, in both segments; duplicates, misses and wrong sizes."""
    tile = TILE_BYTES.value
    sizes = (0, 1, 7, 64, PAGE + 1, tile, tile + 1, 5 * tile + 9, 16 * tile)
    with world(device, pages=128) as w:
        for n, size in enumerate(sizes):
            data = w.bytes(size, n, shift=(0, 8, 3)[n % 3])
            assert w.put(n, data, owner=n % 2) == OK, size
            assert w.put(n, data) == DUPLICATE
            status, back = w.get(n, size)
            assert status == OK, size
            assert torch.equal(back, data), size
            assert w.get(n, size + 1)[0] == SIZE
            found = w.machine.lookup(key(n))
            assert (found.status, found.place.owner) == (OK, n % 2)
            assert (found.place.nbytes, found.descriptor) == (size, flat(size))
            assert w.machine.read(key(n), found.place, back.data_ptr(), 1) == OK
            assert torch.equal(back, data)
            assert w.machine.remove(key(n)) == OK
            assert w.machine.read(key(n), found.place, back.data_ptr(), 1) == TORN
            assert w.get(n, size)[0] == w.machine.find(key(n)) == w.machine.remove(key(n)) == MISS


def full_is_an_answer(device: torch.device) -> None:
    """A full heap refuses, keeps its objects, and takes new ones once some are freed (I9)."""
    with world(device, pages=8) as w:
        held = []
        for n in range(6):
            data = w.bytes(2 * PAGE, n)
            status = w.put(n, data)
            assert status == (OK if n < 4 else FULL)
            if status == OK:
                held.append((n, data))
        assert int(w.machine.control(1)["bump_ptr"][0]) <= w.geometry.offsets["heap_limit"]
        assert int(w.machine.control(1)["refused"][0]) == 2
        for n, data in held:
            assert torch.equal(w.get(n, data.numel())[1], data)
        assert w.machine.remove(key(2)) == OK
        assert w.put(9, w.bytes(2 * PAGE, 9)) == OK
        assert w.put(10, w.bytes(1, 10)) == FULL


def evicts_what_is_old(device: torch.device) -> None:
    """With eviction allowed each put succeeds, and the objects touched last stay; a pinned one is not evicted (I8)."""
    with world(device, pages=8, may_evict=True) as w:
        data = w.bytes(2 * PAGE, 5)
        assert [w.put(n, data) for n in range(4)] == [OK] * 4
        found = w.machine.lookup(key(0))
        status, line = w.machine.pin(found.place)
        assert status == OK
        assert [w.put(n, data) for n in range(4, 9)] == [OK] * 5
        assert int(w.machine.control(1)["evicted"][0]) == 5
        assert w.machine.find(key(0)) == w.machine.find(key(8)) == OK
        assert w.machine.find(key(1)) == MISS
        assert w.machine.unpin(found.place, line) == OK


def pins_hold(device: torch.device) -> None:
    """A pinned object is not removed; an unpinned one is; the ledger names the reader."""
    with world(device) as w:
        assert w.put(1, w.bytes(100, 1)) == OK
        found = w.machine.lookup(key(1))
        at = (1, found.place.slot, found.place.epoch)
        status, line = w.machine.pin(Place(*at))
        assert status == OK
        assert np.count_nonzero(w.machine.pin_ledger(1)) == 1
        assert w.machine.remove(key(1)) == w.machine.remove_slot(*at) == PINNED
        assert w.machine.validate(Place(*at)) == OK
        line_word = int(w.machine.pin_ledger(1)[line])
        assert w.machine.drop_pin(1, line, line_word, found.place.epoch)
        assert not w.machine.drop_pin(1, line, line_word, found.place.epoch)
        assert w.machine.unpin(Place(*at), line) == MISS
        assert w.machine.remove_slot(*at) == OK
        w.machine.clear_intent(1, line, 0)


def hints_reach_the_host(device: torch.device) -> None:
    """Each put and removal leaves a hint; a snapshot holds the whole header, or says that it is gone."""
    with world(device) as w:
        for n in range(5):
            assert w.put(n, w.bytes(10 + n, n)) == OK
        gone = w.machine.lookup(key(3))
        assert w.machine.remove(key(3)) == OK
        drained = w.machine.drain(1, 0, 100)
        kinds = (drained.hints & RING_KIND_MASK.value).tolist()
        assert kinds == [STORED.value] * 5 + [REMOVED.value]
        assert (drained.head, drained.hole) == (6, 6)
        again, whole = w.machine.snapshots(1, drained.hints)
        assert whole.tolist() == drained.good.tolist() and (again[whole] == drained.records[whole]).all()
        records, good = drained.records, drained.good
        slots = (drained.hints >> RING_HEADER_SHIFT.value) & RING_HEADER_MASK.value
        assert good.tolist() == [slot != gone.place.slot for slot in slots[:5].tolist()] + [False]
        assert records["bytes_total"][:3].tolist() == [10, 11, 12]
        assert (records["key_hash"][:3].astype(np.int64) == [key(n)[0] for n in range(3)]).all()
        assert len(w.machine.drain(1, drained.head, 100).hints) == 0
        w.machine.set_control(1, "ann_tail", drained.head)
        assert int(w.machine.control(1)["ann_tail"][0]) == 6
        assert w.machine.headers(1, 0, 5)["n_pages"].tolist() == [1, 1, 1, 0, 1]


def unfinished_objects_are_reclaimed(device: torch.device) -> None:
    """Abort frees at once; only `release` frees an object that was given up, and its producer is told LOST."""
    with world(device) as w:
        begun = w.begin(1, 3 * PAGE)
        assert begun.status == OK
        assert w.machine.in_flight(1, 0, begun.phase) == 1
        assert w.machine.abort(begun.place) == OK
        w.machine.leave(1, begun.phase)
        assert w.machine.in_flight(1, 0, begun.phase) == 0
        again = w.begin(1, 3 * PAGE, FLAG_PLAN.value)
        assert (again.status, again.place.payload) == (OK, begun.place.payload)
        assert w.machine.give_up(1, again.place.slot, again.place.epoch)
        assert w.machine.finish(again.place, again.phase) == LOST
        assert w.machine.page_marks(1).sum() == 0
        assert w.machine.release(1, again.place.slot, again.place.epoch)
        assert not w.machine.release(1, again.place.slot, again.place.epoch + 1)
        assert w.machine.page_marks(1).tolist()[:1] == [3]  # class 2, three pages, marked with the class plus 1
        assert w.machine.slot_marks(1).tolist()[: begun.place.slot + 1] == [1] * (begun.place.slot + 1)
        assert w.machine.find(key(1)) == MISS


def free_lists_pass_through_the_host(device: torch.device) -> None:
    """Extents detached and pushed again are the same pages; stamps count each push."""
    with world(device) as w:
        for n in range(4):
            assert w.put(n, w.bytes(PAGE, n)) == OK
        for n in range(4):
            assert w.machine.remove(key(n)) == OK
        stamps = w.machine.page_stamps(1)
        phase = w.machine.enter(1)
        mark = w.machine.begin_join(1)
        pages = w.machine.detach(1, 0)
        assert sorted(pages.tolist()) == [0, 1, 2, 3]
        assert len(w.machine.detach(1, 0)) == 0
        w.machine.push_extents(1, np.array([0]), np.array([w.geometry.class_pages.index(4)]))
        rest = w.machine.detach_rest(1)
        assert rest.tolist() == list(range(4, 64))
        w.machine.push_extents(1, rest, np.zeros_like(rest))
        assert unpack("JOINING", "producer", mark) == producer_word(0, 1)
        assert w.machine.joining(1) == mark
        assert w.machine.begin_join(1) == 0
        w.machine.end_join(1, mark)
        assert w.machine.joining(1) == 0
        late = w.machine.begin_join(1)
        taken_over = w.machine.begin_join(1, over=late)
        w.machine.end_join(1, late)
        assert w.machine.joining(1) == taken_over
        w.machine.end_join(1, taken_over)
        assert w.machine.joining(1) == 0
        w.machine.leave(1, phase)
        assert (w.machine.page_stamps(1) - stamps).tolist()[:5] == [1, 1, 1, 1, 1]
        assert w.put(9, w.bytes(4 * PAGE, 9)) == OK
        assert w.machine.lookup(key(9)).place.payload == w.geometry.offsets["heap_base"]


def the_host_allocates(device: torch.device) -> None:
    """v1's calls: the master chooses slot and pages. (fsck's rules of v2 do not hold for them.)"""
    w = World(device, 64, may_evict=False)
    at = w.geometry.offsets["heap_base"]
    epoch = w.machine.install(key(1), Place(1, 3, 0, at, 100), 0, flat(100), 5)
    word = w.machine.state(1, 3)
    assert (word & STATE_MASK.value, word >> EPOCH_SHIFT.value) == (WRITING.value, epoch)
    assert w.machine.commit(Place(1, 3, epoch)) == OK
    assert w.machine.validate(Place(1, 3, epoch)) == OK
    w.machine.touch(Place(1, 3, epoch), 76)
    assert time_of(w.machine.headers(1, 3, 1)["last_access"]).tolist() == [76]
    assert w.machine.kill(1, 3, READY.value, epoch) == READY.value | epoch << EPOCH_SHIFT.value
    w.machine.announce(1, REMOVED.value, 3, epoch)
    assert w.machine.drain(1, 0, 9).hints.tolist() == [
        kind.value | 3 << RING_HEADER_SHIFT.value | epoch << RING_EPOCH_SHIFT.value for kind in (STORED, REMOVED)
    ]
    assert w.machine.install(key(1), Place(1, 3, 0, at, 0), 0, flat(0), 5) == epoch + 1


@triton.jit
def put_many_kernel(
    world_table: tl.int64, owner: tl.int64, source: tl.int64, nbytes: tl.int64, statuses: tl.int64, keys: tl.int64
) -> None:
    """CTA i puts key i % keys: many CTAs allocate at once, and producers compete for each key."""
    cta = tl.program_id(0).to(tl.int64)
    n = cta % keys
    zero = cta * 0
    world = open_world(world_table)
    key = structs.Key(n * 0x5851F42D4C95 + 1, n * 0x14057B7EF767 - 1)
    flat = structs.Descriptor(zero + UINT8_FLAT, nbytes, zero, zero, zero, zero, zero, zero)
    status, _ = put(world, owner, key, source + n * nbytes, nbytes, cta, flat)
    tl.store(tl.cast(statuses + cta * 8, tl.pointer_type(tl.int64)), status)


def many_ctas_allocate_at_once(device: torch.device) -> None:
    """Of three producers of each key one wins; no two objects share a byte; each holds its own bytes (I1, I3, I4)."""
    keys = 6 if device.type == "cpu" else 400
    for warps in WARPS:
        with world(device, pages=keys * 2, slots=keys * 3) as w:
            data = w.bytes(keys * 5000, 3)
            statuses = torch.full((3 * keys,), -1, dtype=torch.int64, device=device)
            table = w.machine.table_address
            put_many_kernel[(3 * keys,)](table, 1, data.data_ptr(), 5000, statuses.data_ptr(), keys, num_warps=warps)
            by_key = statuses.cpu().view(3, keys)
            assert ((by_key == OK).sum(0) == 1).all(), by_key
            assert ((by_key == DUPLICATE).sum(0) == 2).all(), by_key
            for n in range(keys):
                status, back = w.get(n, 5000)
                assert status == OK
                assert torch.equal(back, data[n * 5000 : (n + 1) * 5000])


def slots_in_no_place_are_given_back(device: torch.device) -> None:
    """A slot that was made DEAD and not freed: `release` takes its entry out too, `adopt_slot` expects none."""
    with world(device) as w:
        for adopt in (False, True):
            taken = w.begin(2, 0)
            expected = WRITING.value | taken.place.epoch << EPOCH_SHIFT.value
            assert w.machine.kill(1, taken.place.slot, WRITING.value, taken.place.epoch) == expected
            w.machine.leave(1, taken.phase)
            assert w.machine.slot_marks(1)[taken.place.slot] == 0
            if adopt:  # as if the producer had died before it claimed the key
                for segment in w.segments:
                    segment[w.geometry.offsets["dir_base"] : w.geometry.offsets["turn_base"]] = 0
                synchronize(device)  # the owner's calls have a stream of their own
                w.machine.adopt_slot(1, taken.place.slot)
            else:
                assert w.machine.release(1, taken.place.slot, taken.place.epoch)
            assert w.machine.slot_marks(1)[taken.place.slot] == 1


@triton.jit
def fill_and_commit_kernel(
    payload: tl.int64, nbytes: tl.int64, header: tl.int64, epoch: tl.int64, heap_bases: tl.tensor, out_ptr: tl.tensor
) -> None:
    """A user's kernel on rank 0 for a plan in rank 1's segment; addresses are in rank 0's view."""
    lanes = tl.arange(0, 128)
    byte_ptr = tl.cast(payload, tl.pointer_type(tl.int8)) + lanes
    remote.store(byte_ptr, (lanes * 3).to(tl.int8), 0, 1, heap_bases, mask=lanes < nbytes)
    tl.store(out_ptr, remote.kv_commit_ready(header, epoch, 0, 1, heap_bases))
    back = remote.load(byte_ptr, 0, 1, heap_bases, mask=lanes < nbytes).to(tl.int64)
    tl.store(out_ptr + 1, tl.sum(tl.where(lanes < nbytes, back, 0)))


def kernels_commit_plans(device: torch.device) -> None:
    """A kernel fills a plan by iris-style stores and commits it; with an old epoch, or given up, nothing changes."""
    with world(device) as w:
        bases = torch.tensor([segment.data_ptr() for segment in w.segments], dtype=torch.int64, device=device)
        base = w.segments[0].data_ptr()
        for n, nbytes in enumerate((100, 128, 0)):
            plan = w.begin(n, nbytes, FLAG_PLAN.value)
            w.machine.leave(1, plan.phase)
            header = base + w.geometry.offsets["hdr_base"] + plan.place.slot * HEADER_BYTES.value
            out = torch.full((2,), -1, dtype=torch.int64, device=device)
            for epoch, committed in ((plan.place.epoch + 1, 0), (plan.place.epoch, 1), (plan.place.epoch, 0)):
                fill_and_commit_kernel[(1,)](base + plan.place.payload, nbytes, header, epoch, bases, out, num_warps=1)
                assert int(out[0]) == committed
            assert w.machine.commit(plan.place) == OK
            wanted = (torch.arange(nbytes) * 3).to(torch.int8)
            assert torch.equal(w.get(n, nbytes)[1].cpu().view(torch.int8), wanted)
            assert int(out[1]) == int(wanted.sum())


@triton.jit
def each_remote_atomic_kernel(word: tl.int64, heap_bases: tl.tensor, out_ptr: tl.tensor) -> None:
    """Rank 0 changes words of rank 1, one with each function; `word` is in rank 0's view."""
    word_ptr = tl.cast(word, tl.pointer_type(tl.int64))
    tl.store(out_ptr, remote.atomic_add(word_ptr, 5, 0, 1, heap_bases, sem="acq_rel", scope="sys"))
    tl.store(out_ptr + 1, remote.atomic_xchg(word_ptr + 1, 77, 0, 1, heap_bases, sem="acq_rel", scope="sys"))
    tl.store(out_ptr + 2, remote.atomic_cas(word_ptr + 2, 12, 88, 0, 1, heap_bases, sem="acq_rel", scope="sys"))
    tl.store(out_ptr + 3, remote.atomic_cas(word_ptr + 3, 12, 88, 0, 1, heap_bases, sem="acq_rel", scope="sys"))
    lanes = tl.arange(0, 4)
    tl.store(out_ptr + 4 + lanes, remote.load(word_ptr + lanes, 0, 1, heap_bases))
    remote.store(word_ptr + lanes, lanes.to(tl.int64), 0, 1, heap_bases, mask=lanes >= 2)


@triton.jit
def each_remote_bit_kernel(word: tl.int64, heap_bases: tl.tensor, out_ptr: tl.tensor) -> None:
    """The other atomics, on words of rank 1; out: the old values. One by one, and a block with a mask."""
    word_ptr = tl.cast(word, tl.pointer_type(tl.int64))
    tl.store(out_ptr, remote.atomic_and(word_ptr, 12, 0, 1, heap_bases, sem="acq_rel", scope="sys"))
    tl.store(out_ptr + 1, remote.atomic_or(word_ptr + 1, 4, 0, 1, heap_bases, sem="release", scope="sys"))
    tl.store(out_ptr + 2, remote.atomic_xor(word_ptr + 2, 7, 0, 1, heap_bases, sem="relaxed", scope="sys"))
    tl.store(out_ptr + 3, remote.atomic_min(word_ptr + 3, 5, 0, 1, heap_bases, scope="sys"))
    tl.store(out_ptr + 4, remote.atomic_max(word_ptr + 4, 50, 0, 1, heap_bases, scope="sys"))
    lanes = tl.arange(0, 4)
    added = remote.atomic_add(word_ptr + 5 + lanes, lanes + 1, 0, 1, heap_bases, mask=lanes < 3, scope="sys", hint=1)
    tl.store(out_ptr + 5 + lanes, added, mask=lanes < 3)


@triton.jit
def each_remote_copy_kernel(mine: tl.int64, local_ptr: tl.tensor, heap_bases: tl.tensor, out_ptr: tl.tensor) -> None:
    """Rank 0 moves four words to and from rank 1, with every optional parameter; `mine` is in rank 0's view."""
    lanes = tl.arange(0, 4)
    some = lanes < 3
    word_ptr = tl.cast(mine, tl.pointer_type(tl.int64)) + lanes
    seen = remote.load(word_ptr, 0, 1, heap_bases, mask=some, other=-1, cache_modifier=".cg", hint=4)
    again = remote.load(word_ptr, 0, 1, heap_bases, mask=some, other=-2, volatile=True)
    tl.store(out_ptr + lanes, seen)
    tl.store(out_ptr + 4 + lanes, again)
    remote.get(word_ptr, local_ptr + lanes, 0, 1, heap_bases, some, 0, ".cg", ".wb", 4)  # rank 1's words 0 to 2
    remote.put(local_ptr + 4 + lanes, word_ptr + 4, 0, 1, heap_bases, some, 0, ".ca", ".cg", 4)  # to its 4 to 6
    remote.copy(word_ptr, word_ptr + 8, 1, 0, 0, heap_bases, some, 0, ".ca", ".cg", 4)  # rank 1's to rank 0's 8 to 10
    remote.copy(word_ptr, word_ptr + 12, 0, 1, 0, heap_bases, mask=some)  # rank 0's to rank 1's 12 to 14
    remote.store(word_ptr + 16, seen, 0, 1, heap_bases, some, 4, ".cs")


def kernels_reach_another_rank(device: torch.device) -> None:
    """Each function of `remote` acts on rank 1's words, and does not change rank 0's."""
    ranks = [torch.arange(10 * rank, 10 * rank + 4, dtype=torch.int64, device=device) for rank in range(2)]
    bases = torch.tensor([words.data_ptr() for words in ranks], dtype=torch.int64, device=device)
    out = torch.zeros(8, dtype=torch.int64, device=device)
    each_remote_atomic_kernel[(1,)](ranks[0].data_ptr(), bases, out, num_warps=1)
    assert out.tolist() == [10, 11, 12, 13, 15, 77, 88, 13]
    assert ranks[1].tolist() == [15, 77, 2, 3]
    assert ranks[0].tolist() == [0, 1, 2, 3]


def kernels_change_the_bits_of_another_rank(device: torch.device) -> None:
    """The remaining atomics; the table of bases may be of uint64, as that of iris of 2025 is."""
    for dtype in (torch.int64, torch.uint64):
        ranks = [torch.arange(10 * rank, 10 * rank + 9, dtype=torch.int64, device=device) for rank in range(2)]
        bases = torch.tensor([words.data_ptr() for words in ranks], dtype=dtype, device=device)
        out = torch.zeros(8, dtype=torch.int64, device=device)
        each_remote_bit_kernel[(1,)](ranks[0].data_ptr(), bases, out, num_warps=1)
        assert out.tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
        assert ranks[1].tolist() == [10 & 12, 11 | 4, 12 ^ 7, 5, 50, 16, 18, 20, 18]
        assert ranks[0].tolist() == list(range(9))


def kernels_copy_between_ranks(device: torch.device) -> None:
    """get, put, copy, and each optional parameter of load and store."""
    ranks = [torch.arange(100 * rank, 100 * rank + 20, dtype=torch.int64, device=device) for rank in range(2)]
    bases = torch.tensor([words.data_ptr() for words in ranks], dtype=torch.int64, device=device)
    local = torch.arange(1000, 1008, dtype=torch.int64, device=device)
    out = torch.zeros(8, dtype=torch.int64, device=device)
    each_remote_copy_kernel[(1,)](ranks[0].data_ptr(), local, bases, out, num_warps=1)
    assert out.tolist() == [100, 101, 102, -1, 100, 101, 102, -2]
    assert local.tolist() == [100, 101, 102, *range(1003, 1008)]
    here, there = ranks[0].tolist(), ranks[1].tolist()
    assert here == [*range(8), 100, 101, 102, *range(11, 20)]
    stored = [*range(100, 104), 1004, 1005, 1006, *range(107, 112), 0, 1, 2, 115, 100, 101, 102, 119]
    assert there == stored


BODIES: tuple[Callable[[torch.device], None], ...] = (
    puts_gets_and_removes,
    checksums,
    full_is_an_answer,
    evicts_what_is_old,
    pins_hold,
    hints_reach_the_host,
    unfinished_objects_are_reclaimed,
    free_lists_pass_through_the_host,
    the_host_allocates,
    many_ctas_allocate_at_once,
    slots_in_no_place_are_given_back,
    kernels_commit_plans,
    kernels_reach_another_rank,
    kernels_change_the_bits_of_another_rank,
    kernels_copy_between_ranks,
)

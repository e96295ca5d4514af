"""Tests of whole caches on a launching machine, as plain functions of a device; see `bodies`.

On a CPU the segments lie in host memory, but the heap gives no host view of them, so that interpreted kernels run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.cache.engine import world_spec
from nanokv.config import make_options
from nanokv.device.machines.launch import LaunchMachine
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, OutOfMemory
from nanokv.fsck import check_cache
from nanokv.heap.local import LocalHeap, LocalWorld
from nanokv.host_poller.events import Event, EventKind
from nanokv.keys.identity import Identity
from nanokv.keys.kv_layout import KVLayout

PAGE = 4096


class DeviceHeap(LocalHeap):
    """A local heap whose segments the host cannot see."""

    def host_view(self, rank: int) -> npt.NDArray[np.uint8] | None:
        """None, as of segments in a GPU's memory."""
        self.check_open()
        return None


@contextmanager
def caches(
    device: torch.device, pages: int, identities: Sequence[Identity | None] = (None, None), **options: object
) -> Iterator[list[NanoKVCache]]:
    """A world of two caches; fsck follows."""
    chosen = make_options({"evict": False, "write_timeout": 600.0} | options)
    geometry = Geometry.plan(pages * PAGE, PAGE, 2, ring_slots=chosen.ring_slots, shards=4)
    world = LocalWorld(world_spec(geometry, chosen), device=device)
    of_ranks = [replace(chosen, identity=identity) for identity in identities]
    made = [NanoKVCache.on_heap(DeviceHeap(world, rank), 0, mine) for rank, mine in enumerate(of_ranks)]
    assert [type(cache.engine.machine) for cache in made] == [LaunchMachine] * 2
    try:
        yield made
        report = check_cache(made[0])
        assert report.clean, [str(finding) for finding in report.findings]
    finally:
        for cache in made:
            cache.close()


def kinds(errors: list[NanoKVError | None]) -> list[type]:
    """The types of errors; NoneType where there is none."""
    return [type(error) for error in errors]


def many_keys_by_one_launch(device: torch.device) -> None:
    """put_many, get_many, exists_many, prefix_length; a key that the launch cannot settle takes its own call."""
    none = type(None)
    with caches(device, 64) as (here, there):
        tensors = [torch.arange(n + 1, dtype=torch.int32, device=device) for n in range(6)]
        tensors[3] = torch.arange(12, dtype=torch.float32, device=device).view(3, 4).t()  # not contiguous
        tensors[4] = torch.zeros(0, 7, device=device)
        keys = [f"k{n}" for n in range(6)]
        assert here.put_many(keys, tensors, preferred_segment=1) == [None] * 6
        again = here.put_many(["k1", "new", "new"], tensors[:3])
        assert kinds(again) == [DuplicateKey, none, DuplicateKey]
        sparse = torch.eye(2, device=device).to_sparse()
        assert kinds(here.put_many(["s", "t"], [sparse, tensors[5]])) == [InvalidArgument, none]
        got = there.get_many([*keys, "none", "new"])
        assert got[6] is None and got[7] is not None and torch.equal(got[7], tensors[1])
        for back, tensor in zip(got, tensors, strict=False):
            assert back is not None and back.dtype == tensor.dtype and torch.equal(back, tensor)
        dsts = [torch.zeros_like(tensor) for tensor in tensors[:3]]
        assert there.get_many([*keys[:2], "none"], dsts=dsts)[2] is None
        assert torch.equal(dsts[1], tensors[1])
        for wrong, kind in (([tensors[5]], InvalidArgument), ([tensors[3]], InvalidArgument)):
            try:
                there.get_many(keys[:1], dsts=wrong)
            except kind:
                continue
            raise AssertionError(wrong)
        assert there.exists_many(["k0", "none", "t"]) == [True, False, True]
        assert there.prefix_length([*keys, "none", "new"]) == 6
        rows, names = torch.arange(24, device=device).view(4, 6), here.digests(f"row {n}" for n in range(4))
        filled = torch.zeros(4, 2, 6, dtype=torch.int64, device=device)[:, 1]
        assert here.put_many(names[:3], rows[:3], preferred_segment=1) == [None] * 3
        assert there.get_many(names, dsts=filled) == here.exists_many(names) == [True, True, True, False]
        assert torch.equal(filled[:3], rows[:3]) and there.prefix_length(names) == 3
        assert here.remove_many(names) == [True, True, True, False]
        assert there.put_many([], []) == there.get_many([]) == there.exists_many([]) == []


def a_full_heap_makes_room_for_many(device: torch.device) -> None:
    """More objects than there is room for: they are refused, or the oldest are evicted."""
    data = torch.arange(PAGE, dtype=torch.uint8, device=device)
    keys = [f"k{n}" for n in range(6)]
    for evict in (False, True):
        with caches(device, 4, evict=evict) as (here, _):
            outcomes = kinds(here.put_many(keys, [data] * 6, preferred_segment=1))
            assert outcomes.count(OutOfMemory) == (0 if evict else 2), outcomes
            assert sum(here.exists_many(keys)) == 4


def blocks_by_one_launch(device: torch.device) -> None:
    """PagedKV over kernels: two layouts, whole and layer by layer, an object of another shape, a missing one."""
    with caches(device, 128) as (here, there):
        dice = torch.Generator().manual_seed(1)
        layers = [torch.randn(4, 2, 8, 2, 16, generator=dice).to(device) for _ in range(3)]
        mine = [torch.zeros(2, 4, 2, 8, 16, device=device).transpose(2, 3) for _ in range(3)]
        source, target = here.paged_kv(layers, kv_dim=1), there.paged_kv(mine, kv_dim=0)
        assert source._batch is not None and target._batch is not None and source._batch.launches
        assert source.put(["a", "b"], [3, 0], preferred_segment=1) == [None] * 2
        assert kinds(target.get(["b", "none", "a"], [1, 0, 2])) == [type(None), KeyNotFound, type(None)]
        for layer, back in zip(layers, mine, strict=True):
            assert torch.equal(back[:, 1], layer[0]) and torch.equal(back[:, 2], layer[3])
            assert not back[:, 0].any() and not back[:, 3].any()
        assert torch.equal(there.get("a"), torch.stack([layer[3] for layer in layers]))
        assert source.put(["one"], [1], layers=range(1, 2)) == [None]
        assert kinds(target.get(["one", "one"], [0, 3], layers=range(2))) == [InvalidArgument] * 2
        assert target.get(["one"], [3], layers=range(2, 3)) == [None]
        assert torch.equal(mine[2][:, 3], layers[1][1]) and not mine[1][:, 3].any()
        assert kinds(source.put(["x", "x"], [1, 2])) == [type(None), DuplicateKey]


def slices_by_one_launch(device: torch.device) -> None:
    """The objects of a writer of another layout, whose row kernels have written; and some layers of whole objects."""
    theirs = KVLayout(layers=2, kv_heads=4, head_size=16, block_size=8, dtype="float32", order="2NLHD")
    mine = replace(theirs, order="L2NHD", block_size=4, tp_size=2, tp_rank=1)
    with caches(device, 64, [Identity("m", layout=theirs), Identity("m", layout=mine)]) as (here, there):
        dice = torch.Generator().manual_seed(2)
        objects = [torch.randn(theirs.shape, generator=dice).to(device) for _ in range(2)]  # [2, tokens, layers, heads]
        assert here.put_many(["a", "b"], objects, preferred_segment=1) == [None] * 2
        assert [(row.layout, row.is_mine) for row in there.layouts()] == [(theirs, True)]
        layers = [torch.zeros(5, 2, 2, 4, 16, device=device).transpose(2, 3) for _ in range(2)]  # heads before tokens
        paged = there.paged_kv(layers, kv_dim=1)
        assert paged._slices._batch.launches
        assert paged.get(["b", "a"], [4, 0, 2, 1], source=theirs) == [None] * 2
        for block, (number, first) in zip([4, 0, 2, 1], ((1, 0), (1, 4), (0, 0), (0, 4)), strict=True):
            for layer in range(2):
                assert torch.equal(layers[layer][block], objects[number][:, first : first + 4, layer, 2:])
        assert not layers[0][3].any() and not layers[1][3].any()
        assert kinds(paged.get(["a", "none"], [3, 4, 0, 1], source=theirs)) == [type(None), KeyNotFound]
        assert paged.put(["own"], [2]) == [None]
        assert paged.get(["own"], [3], layers=range(1, 2), held=range(2)) == [None]
        assert torch.equal(layers[1][3], layers[1][2]) and torch.equal(layers[0][3], objects[0][:, :4, 0, 2:])
        assert len(there.layouts()) == 2


def pollers_follow_kernels(device: torch.device) -> None:
    """Puts and removals by kernels reach the owner's index and listeners, also after the ring has overflowed."""
    with caches(device, 40, ring_slots=8) as (here, there):
        told: list[Event] = []
        there.subscribe(told.extend)
        keys = [f"k{n}" for n in range(24)]
        data = torch.arange(100, device=device)
        assert here.put_many(keys, [data] * 24, preferred_segment=1) == [None] * 24
        there.flush(timeout=60)
        assert set(there.segment_keys()) == {here.digest(key) for key in keys} and here.segment_count() == 0
        assert here.remove_many(keys[:5]) == [True] * 5
        there.flush(timeout=60)
        assert set(there.segment_keys()) == {here.digest(key) for key in keys[5:]}
        for kind, names in ((EventKind.STORED, keys), (EventKind.REMOVED, keys[:5])):
            seen = [event.key for event in told if event.kind == kind and event.key is not None]
            assert sorted(seen) == sorted(map(here.digest, names))
        stats = there.stats()
        assert (stats["indexed"], stats["corrupt_hints"], stats["poller_failures"]) == (19, 0, 0)


def v1_over_kernels(device: torch.device) -> None:
    """The master allocates, kernels move the bytes: the same answers, with checksums and without."""
    for checksum in (False, True):
        with caches(device, 64, alloc="host", checksum=checksum) as (here, there):
            tensors = [torch.arange(size, dtype=torch.uint8, device=device) for size in (0, 5, 3 * PAGE + 1)]
            keys = ["a", "b", "c"]
            assert here.put_many(keys, tensors, preferred_segment=1) == [None] * 3
            got = there.get_many([*keys, "none"])
            assert got[3] is None
            assert all(back is not None and torch.equal(back, want) for back, want in zip(got, tensors, strict=False))
            dst = torch.zeros_like(tensors[2])
            assert torch.equal(here.get("c", dst=dst), tensors[2])
            assert here.prefix_length(["a", "b", "none", "c"]) == 2
            layers = [torch.randn(3, 2, 8, 2, 16, device=device)]
            mine = [torch.zeros(3, 2, 8, 2, 16, device=device)]
            assert here.paged_kv(layers, kv_dim=1).put(["block"], [2]) == [None]
            assert there.paged_kv(mine, kv_dim=1).get(["block"], [0]) == [None]
            assert torch.equal(mine[0][0], layers[0][2]) and not mine[0][1:].any()
            assert here.remove_many(keys) == [True] * 3


def in_and_out_of_inference_mode(device: torch.device) -> None:
    """A cache and its tables are made in one mode and used in the other; results can be written in either."""
    for made_inside in (True, False):
        with torch.inference_mode(made_inside), caches(device, 64) as (here, there):
            layers = [torch.randn(3, 2, 8, 2, 16, device=device)]
            blocks = here.paged_kv(layers, kv_dim=1)
            for inside in (not made_inside, made_inside):
                with torch.inference_mode(inside):
                    tensors = [torch.arange(size, dtype=torch.uint8, device=device) for size in (5, 3 * PAGE + 1)]
                    here.put(f"one {inside}", tensors[1], preferred_segment=1)
                    assert torch.equal(there.get(f"one {inside}", dst=torch.zeros_like(tensors[1])), tensors[1])
                    keys = [f"a {inside}", f"b {inside}"]
                    assert here.put_many(keys, tensors, preferred_segment=1) == [None] * 2
                    assert None not in there.get_many(keys)
                    there.flush()
                    assert there.remove_many(keys) == [True] * 2
                    assert blocks.put([f"block {inside}"], [2]) == [None]
                    assert blocks.get([f"block {inside}"], [0]) == [None]
            assert torch.equal(layers[0][0], layers[0][2])


def a_dst_of_another_form_is_refused(device: torch.device) -> None:
    """Get by one launch, into a tensor of another dtype or shape: nothing is copied, unless the caller insists."""
    with caches(device, 64) as (here, there):
        tensor = torch.randn(4, 8, device=device).bfloat16()
        here.put("k", tensor, preferred_segment=1)
        for wrong in (torch.zeros(4, 8, dtype=torch.float16), torch.zeros(8, 4, dtype=torch.bfloat16)):
            dst = wrong.to(device)
            calls: tuple[Callable[[bool], object], ...] = (
                lambda insist, dst=dst: there.get("k", dst=dst, reinterpret=insist),  # type: ignore[misc]
                lambda insist, dst=dst: there.get_many(["k"], dsts=[dst], reinterpret=insist),  # type: ignore[misc]
            )
            for call in calls:
                dst.zero_()
                try:
                    call(False)
                except InvalidArgument as error:
                    assert "bfloat16 [4, 8]" in str(error)
                else:
                    raise AssertionError(dst.dtype)
                assert not dst.any()
                call(True)
                assert torch.equal(dst.view(torch.uint8).reshape(-1), tensor.view(torch.uint8).reshape(-1))


def a_segment_is_saved_and_loaded(device: torch.device) -> None:
    """Through a file, from the memory of the device and back to it."""
    with TemporaryDirectory() as folder, caches(device, 64) as (here, there):
        tensors = {f"k{n}": torch.full((n * 700,), n, dtype=torch.int16, device=device) for n in range(4)}
        for key, tensor in tensors.items():
            here.put(key, tensor, preferred_segment=0)
        saved = here.save(f"{folder}/file")
        assert (saved.objects, saved.bytes, saved.left_out, saved.damaged) == (4, 8400, 0, 0)
        assert there.load(f"{folder}/file").duplicates == 4
        here.clear()
        assert there.load(f"{folder}/file", preferred_segment=1).objects == 4
        for key, tensor in tensors.items():
            assert torch.equal(here.get(key), tensor) and here.get_location(key).owner_rank == 1


def copies_by_one_launch(device: torch.device) -> None:
    """put and put_many with copies, `replicate`; what is read, outlives an eviction, and goes with a removal."""
    for checksum in (False, True):
        with caches(device, 64, checksum=checksum) as (here, there):
            tensors = [torch.arange(size, dtype=torch.uint8, device=device) for size in (5, 3 * PAGE + 1, 9)]
            here.put("one", tensors[1], preferred_segment=0, replicas=1)
            assert here.put_many(["a", "b", "c"], tensors, preferred_segment=1, replicas=1) == [None] * 3
            assert kinds(there.put_many(["b", "d", "d"], tensors, preferred_segment=0, replicas=1)) == [
                DuplicateKey,
                type(None),
                DuplicateKey,
            ]
            assert here.put_many(["e"], [torch.zeros(0, device=device)], replicas=1) == [None]
            there.put("f", tensors[2], preferred_segment=0)
            assert there.replicate("f") and not there.replicate("f")
            for key in ("one", "a", "b", "c", "d", "f"):
                assert (here.copies(key), there.copies(key)) == ([0, 1], [1, 0]), key
            here.flush(timeout=60)
            here.clear()
            for key, want in (("one", tensors[1]), ("a", tensors[0]), ("b", tensors[1]), ("f", tensors[2])):
                assert here.copies(key) == [1] and torch.equal(here.get(key), want)
            assert here.remove_many(["one", "a", "b", "c", "d", "f"]) == [True] * 6
            assert there.copies("one") == there.copies("b") == []
            assert here.stats()["replicas"] == 4


BODIES: tuple[Callable[[torch.device], None], ...] = (
    many_keys_by_one_launch,
    a_dst_of_another_form_is_refused,
    a_full_heap_makes_room_for_many,
    blocks_by_one_launch,
    slices_by_one_launch,
    pollers_follow_kernels,
    v1_over_kernels,
    copies_by_one_launch,
    in_and_out_of_inference_mode,
    a_segment_is_saved_and_loaded,
)

"""Objects that were saved and loaded are those that were put: any dtype, any world, beside puts and evictions."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nanokv
from nanokv import KeyDigest, NanoKVCache
from nanokv.allocation.stored_layouts import row_of
from nanokv.config import Alloc
from nanokv.device.segment.layout import RANK_LAYOUTS
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError, OutOfMemory, PeerLost, ReuseViolation
from nanokv.saved import load as loading
from nanokv.saved import reading, room, save
from nanokv.saved.own_segment import OwnSegment
from nanokv.types import Loaded, Saved
from tests.api.test_identity import AXES, MINE, SECRET, world_of
from tests.api.test_reshard import ME, TOKENS, WHOLE, engine, in_block, model, put_all, wanted_in, writers
from tests.support.faults import Calls, Limits
from tests.support.worlds import MakeWorld, World, close_and_check

PAGE = 4096
ALLOCS = pytest.mark.parametrize("alloc", ["device", "host"])
SHAPES = [(), (0,), (3,), (5, 0, 2), (7, 129), (2, 1, 3, 1, 2, 1, 5), (1900,)]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of one dtype and shape, and bit by bit."""
    bytes_of = [each.reshape(-1).view(torch.uint8) for each in (one.contiguous(), other.contiguous())]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bytes_of)


def of_every_kind() -> dict[str, torch.Tensor]:
    """Tensors of every dtype and many shapes, by key."""
    dice, found = torch.Generator().manual_seed(1), {}
    for name in DTYPE_NAMES:
        dtype = getattr(torch, name)
        for shape in SHAPES:
            count = int(np.prod(shape)) * dtype.itemsize
            raw = torch.randint(2 if dtype == torch.bool else 256, (count,), generator=dice, dtype=torch.uint8)
            found[f"{name} {shape}"] = raw.view(dtype).view(shape)
    return found


def small_world(n: int = 1, pages: int = 64, **options: Any) -> World:
    return kept(nanokv.local_world(n, pages * PAGE, page_bytes=PAGE, **options))


def kept(world: World) -> World:
    """A world that is checked and closed after the test."""
    MADE.append(world)
    return world


MADE: list[World] = []


@pytest.fixture(autouse=True)
def _all_are_sound_and_closed() -> Iterator[None]:
    yield
    while MADE:
        close_and_check(MADE.pop())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "segment.nkv"


# --- what comes back --------------------------------------------------------------------------
def test_every_dtype_and_shape_in_other_worlds(make_world: MakeWorld, file: Path) -> None:
    one, two = make_world(page_bytes=PAGE, heap_bytes=2 << 20, max_objects=400)
    tensors = of_every_kind()
    for key, tensor in tensors.items():
        one.put(key, tensor, preferred_segment=1)
    one.put("elsewhere", torch.ones(1), preferred_segment=0)
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert two.save(file) == Saved(len(tensors), total, 0, 0)
    for page_bytes, n in ((256, 1), (64 << 10, 3)):
        world = make_world(page_bytes=page_bytes, n=n, heap_bytes=(16 << 20) * page_bytes // PAGE, max_objects=400)
        assert world[-1].load(str(file)) == Loaded(len(tensors), total, 0, 0, 0)
        for key, tensor in tensors.items():
            assert same(world[0].get(key), tensor), key
        assert "elsewhere" not in world[0]


@ALLOCS
def test_what_a_kernel_wrote_comes_back_as_raw_bytes(alloc: Alloc, file: Path) -> None:
    one, two = small_world(alloc=alloc), small_world(alloc=alloc)
    wanted = torch.arange(1001, dtype=torch.int32)
    plan = one[0].open_for_write("k", wanted.nbytes)
    payload = one[0].engine.heap.segment(0)[plan.payload_base : plan.payload_base + wanted.nbytes]
    assert one[0].save(file).objects == 0, "an unfinished object is not saved"
    payload.view(torch.int32).copy_(wanted)
    one[0].commit("k")
    assert one[0].save(file).objects == 1
    assert two[0].load(file).objects == 1
    assert same(two[0].get("k"), wanted.view(torch.uint8))
    assert same(two[0].get("k", dst=torch.zeros(1001, dtype=torch.int32)), wanted)


@ALLOCS
def test_objects_of_many_chunks(alloc: Alloc, file: Path, limits: Limits) -> None:
    limits(save, CHUNK_BYTES=1000)
    limits(reading, CHUNK_BYTES=777)
    (one,), (two,) = small_world(alloc=alloc), small_world(alloc=alloc)
    wanted = torch.randn(9001)
    one.put("k", wanted)
    one.save(file)
    two.load(file)
    assert same(two.get("k"), wanted)


@pytest.mark.parametrize("sums", [(False, True), (True, False), (True, True)])
def test_checksums_are_made_anew(sums: tuple[bool, bool], file: Path) -> None:
    (one,), (two,) = (small_world(checksum=wanted) for wanted in sums)
    one.put("k", torch.arange(2000))
    one.save(file)
    two.load(file)
    assert same(two.get("k"), torch.arange(2000))  # with checksum=True, an object without one is refused


# --- identities -------------------------------------------------------------------------------
@ALLOCS
def test_nothing_leaks_from_one_identity_to_another(alloc: Alloc, file: Path) -> None:
    """Every identity of AXES reads its own secret after a load, by key and by digest, and never another one's."""
    whose = [("", MINE), *((namespace, identity) for _, namespace, identity in AXES)]
    before, after = (kept(world_of(*whose, alloc=alloc)) for _ in range(2))
    secrets = [SECRET + number for number in range(len(whose))]
    for cache, secret in zip(before, secrets, strict=True):
        cache.put("k", secret, preferred_segment=0)
    before[0].save(file)
    assert after[-1].load(file, preferred_segment=3).objects == len(whose)
    after[3].flush()
    assert {tuple(digest) for digest in after[3].segment_keys()} == {tuple(each.digest("k")) for each in before}
    for cache, secret in zip(after, secrets, strict=True):
        assert same(cache.get("k"), secret)
        for other in before:
            if other.digest("k") != cache.digest("k"):
                with pytest.raises(ReuseViolation):
                    cache.get(other.digest("k"))


@ALLOCS
def test_layouts_come_along_and_slices_are_found(alloc: Alloc, file: Path) -> None:
    source = replace(WHOLE, tp_size=2)
    whose = (*writers(source), ("", ME.with_layout(WHOLE)))
    before, after = (kept(world_of(*whose, heap_bytes=1 << 20, alloc=alloc)) for _ in "ab")
    keys = put_all(before[:2], model())
    for rank, cache in enumerate(before):
        cache.save(file)
        after[2].load(file)
        assert {row[1:3] for row in after[2].layouts(rank)} >= {row[1:3] for row in before[2].layouts(rank)}
    assert len({row.tag for row in after[2].layouts() if row.is_mine}) >= 2
    layers, kv_dim = engine(WHOLE, len(keys))
    blocks = list(range(TOKENS // WHOLE.block_size))
    assert after[2].paged_kv(layers, kv_dim=kv_dim).get(keys, blocks, source=source) == [None] * len(keys)
    assert all(torch.equal(in_block(layers, kv_dim, each), wanted_in(model(), WHOLE, each)) for each in blocks)


def test_a_full_table_of_layouts_is_told_before_anything_is_put(file: Path) -> None:
    (one,) = kept(world_of(("", MINE)))
    one.put("k", SECRET)
    one.save(file)
    layouts = [MINE.with_layout(replace(WHOLE, layers=layers)) for layers in range(1, RANK_LAYOUTS + 1)]
    (two,) = kept(world_of(("", None)))
    for identity in layouts:
        row = row_of(identity)
        assert two.engine.machine.write_layout(0, row) == 0
    with pytest.raises(OutOfMemory, match="table of layouts"):
        two.load(file)
    assert two.segment_count() == 0


# --- where objects go, and what must not go for them ------------------------------------------
def test_objects_go_where_they_were(make_world: MakeWorld, file: Path, tmp_path: Path) -> None:
    before, after = make_world(n=3, page_bytes=PAGE), make_world(n=2, page_bytes=PAGE)
    for number in range(30):
        before[0].put(f"k{number}", torch.full((4,), number), preferred_segment=number % 3)
    for rank, cache in enumerate(before):
        assert cache.save(tmp_path / f"{rank}").objects == 10
        assert after[0].load(tmp_path / f"{rank}").objects == 10
    owners = [after[1].get_location(f"k{number}").owner_rank for number in range(30)]
    assert [owner for number, owner in enumerate(owners) if number % 3 < 2] == [0, 1] * 10
    assert {owner for number, owner in enumerate(owners) if number % 3 == 2} == {0, 1}  # by their keys


def test_a_preferred_segment_gets_all_and_must_live(file: Path) -> None:
    one, (a, _, c) = small_world(1), small_world(3)
    one[0].put("k", torch.ones(3))
    one[0].save(file)
    for wrong in (-1, 3, "0", True):
        with pytest.raises(InvalidArgument):
            a.load(file, preferred_segment=wrong)  # type: ignore[arg-type]
    c.close()
    with pytest.raises(PeerLost):
        a.load(file, preferred_segment=2)
    assert a.load(file, preferred_segment=1).objects == 1
    assert a.get_location("k").owner_rank == 1


def test_objects_of_a_rank_that_has_gone_go_to_one_that_lives(file: Path) -> None:
    before, (a, b) = small_world(2), small_world(2)
    before[0].put("k", torch.ones(3), preferred_segment=1)
    before[1].save(file)
    b.close()
    assert a.load(file).objects == 1
    assert a.get_location("k").owner_rank == 0


@ALLOCS
@pytest.mark.parametrize("pages", [1, 2, 3])
def test_nothing_is_evicted_and_those_used_last_come_first(alloc: Alloc, pages: int, file: Path) -> None:
    (one,), (two,) = small_world(alloc=alloc, pages=200), small_world(alloc=alloc, pages=32, max_objects=30)
    order = random.Random(2).sample(range(40), 40)
    for number in order:
        one.put(f"k{number}", torch.full((PAGE * pages - 9,), number, dtype=torch.uint8))
    for number in range(4):
        two.put(f"live{number}", torch.ones(PAGE, dtype=torch.uint8))
    one.save(file)
    done = two.load(file)
    there = [f"k{number}" in two for number in order]
    assert 0 < done.objects < 40 and there == [False] * (40 - done.objects) + [True] * done.objects
    assert done.no_room == 40 - done.objects and two.stats()["evicted"] == 0
    assert all(f"live{number}" in two for number in range(4))
    slots = [two.get_location(f"k{number}").header_off for number in order[-done.objects :]]
    assert alloc == "host" or slots == sorted(slots), "the oldest was put first: the hand finds it first"
    free = int(32 * (0.95 if alloc == "host" else 1)) - 4  # v1's master evicts above its high mark
    assert done.objects == min(free // pages, 26)


def test_free_neighbours_are_joined_for_a_large_object(file: Path) -> None:
    (one,), (two,) = small_world(pages=64), small_world(pages=16)
    one.put("large", torch.arange(8 * PAGE, dtype=torch.int32).to(torch.uint8)[: 8 * PAGE])
    for number in range(16):
        two.put(f"k{number}", torch.ones(PAGE, dtype=torch.uint8))
    for number in range(1, 16):
        two.remove(f"k{number}")
    one.save(file)
    assert two.load(file).objects == 1
    assert two.stats()["evicted"] == 0 and "k0" in two and same(two.get("large"), one.get("large"))


@ALLOCS
def test_objects_that_are_too_large_are_counted(alloc: Alloc, file: Path) -> None:
    (one,), (two,) = small_world(alloc=alloc, pages=64), small_world(alloc=alloc, pages=4)
    one.put("small", torch.ones(3))
    one.put("large", torch.ones(5 * PAGE, dtype=torch.uint8))
    one.save(file)
    assert two.load(file) == Loaded(1, 12, 0, 0, 1)


@ALLOCS
def test_a_key_that_exists_keeps_its_object(alloc: Alloc, file: Path) -> None:
    (one,), (two,) = small_world(alloc=alloc), small_world(alloc=alloc, pages=2, evict=False)
    one.put("k", torch.zeros(3))
    one.put("plan", torch.zeros(3))
    one.put("new", torch.zeros(3))
    one.save(file)
    two.put("k", torch.ones(5))
    two.open_for_write("plan", 4)
    assert two.load(file) == Loaded(0, 0, 2, 1, 0), "a duplicate needs no room"
    assert same(two.get("k"), torch.ones(5))


# --- beside others ----------------------------------------------------------------------------
@ALLOCS
def test_a_save_is_no_use_of_an_object(alloc: Alloc, file: Path) -> None:
    (one,) = small_world(alloc=alloc)
    one.put("k", torch.ones(3))
    one.put("held", torch.ones(3000), hold=60)
    one.flush()
    before = one.engine.machine.headers(0, 0, 4).tobytes()
    one.save(file)
    assert one.engine.machine.headers(0, 0, 4).tobytes() == before


@ALLOCS
def test_an_object_that_goes_away_meanwhile_is_left_out(alloc: Alloc, file: Path, calls: Calls) -> None:
    (one,), (two,) = small_world(alloc=alloc), small_world(alloc=alloc)
    for number in range(5):
        one.put(f"k{number}", torch.full((2000,), number))

    def replace_first(*_: Any) -> None:
        one.remove("k0")
        one.put("k0", torch.full((2000,), 7))

    calls.after(OwnSegment, "read", replace_first, at=(1,))
    assert one.save(file) == Saved(4, 64000, 1, 0)
    assert two.load(file).objects == 4
    assert [f"k{number}" in two for number in range(5)] == [False, True, True, True, True]
    assert all(same(two.get(f"k{number}"), torch.full((2000,), number)) for number in range(1, 5))


def test_a_damaged_object_is_not_saved(file: Path) -> None:
    (one,) = small_world(checksum=True)
    for key in "ab":
        one.put(key, torch.ones(100))
    one.engine.heap.segment(0)[one.get_location("a").payload_off + 5] ^= 1
    assert one.save(file) == Saved(1, 400, 0, 1)
    one.close()  # fsck would tell


def content(number: int) -> torch.Tensor:
    """What the object of a number holds: its size and bytes follow from it."""
    return torch.full((number * 37 % 5000,), number, dtype=torch.int32)


@pytest.mark.parametrize("alloc, rounds", [("device", 12), ("host", 5)])
def test_every_byte_is_right_beside_puts_and_evictions(alloc: Alloc, rounds: int, file: Path) -> None:
    """Two ranks put into a segment that is full all the time, while it is saved; a third one loads into another."""
    one, two = small_world(2, pages=64, alloc=alloc)
    keys = {one.digest(f"k{number}"): number for number in range(4000)}
    ended = threading.Event()

    def put(cache: NanoKVCache, seed: int) -> None:
        dice = random.Random(seed)
        while not ended.is_set():
            number = dice.randrange(4000)
            cache.put(f"k{number}", content(number), preferred_segment=0, exist_ok=True)

    threads = [threading.Thread(target=put, args=each) for each in ((one, 1), (two, 2), (one, 3))]
    for thread in threads:
        thread.start()
    try:
        saved = [check_one_round(one, file, keys) for _ in range(rounds)]
        end = time.monotonic() + 60  # on a busy machine nobody may have put meanwhile
        while not sum(each.left_out for each in saved) and time.monotonic() < end:
            saved.append(check_one_round(one, file, keys))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert sum(each.objects for each in saved) > 0 and one.stats()["evicted"] > 0
    assert sum(each.left_out for each in saved) > 0, "nothing went away meanwhile: the test is too gentle"


def check_one_round(one: NanoKVCache, file: Path, keys: dict[KeyDigest, int]) -> Saved:
    saved = one.save(file)
    (fresh,) = small_world(pages=128)
    done = fresh.load(file)
    assert done.objects + done.duplicates == saved.objects  # twice under one key: replaced meanwhile
    fresh.flush()
    assert fresh.segment_count() == done.objects
    for digest in fresh.segment_keys():
        assert same(fresh.get(digest), content(keys[digest])), keys[digest]
    fresh.close()
    return saved


# --- wrong calls ------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [None, 3, b"x", "", "a\0b"])
def test_a_path_is_a_path(path: Any) -> None:
    (one,) = small_world()
    for call in (one.save, one.load):
        with pytest.raises(InvalidArgument, match="path"):
            call(path)


def test_a_closed_cache_saves_nothing(file: Path) -> None:
    (one,) = small_world()
    one.close()
    for call in (one.save, one.load):
        with pytest.raises(CacheClosed):
            call(file)
    assert not file.exists()


def test_an_object_that_is_given_up_meanwhile_ends_the_load(file: Path, calls: Calls) -> None:
    (one,), (two,) = small_world(), small_world()
    one.put("k", torch.ones(3))
    one.save(file)

    def give_up(*_: Any) -> None:
        assert two.engine.machine.give_up(0, 0, int(two.engine.machine.headers(0, 0, 1)["epoch"][0]))

    calls.after(loading._Loader, "_fill", give_up)
    with pytest.raises(NanoKVError, match="write_timeout"):
        two.load(file)
    assert "k" not in two


def test_room_looks_again_after_some_objects(file: Path, calls: Calls, limits: Limits) -> None:
    """Another producer takes pages during the load: it is noticed, and nothing is evicted."""
    limits(room, REFRESH=1)
    (one,), (two,) = small_world(), small_world(pages=16)
    for number in range(16):
        one.put(f"k{number}", torch.ones(PAGE, dtype=torch.uint8))
    one.save(file)

    def beside(_: Any, at: int) -> None:
        two.put(f"live{at}", torch.ones(PAGE, dtype=torch.uint8))

    calls.before(loading._Loader, "_try_put", beside, at=range(1, 5))
    assert two.load(file) == Loaded(12, 12 * PAGE, 0, 4, 0)
    assert two.stats()["evicted"] == 0

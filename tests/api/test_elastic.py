"""Elastic worlds, as one process sees them: who is there, where objects go, and what a rank that leaves takes along."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import nanokv
from nanokv.device.machines.native import NativeMachine
from nanokv.device.protocol.status import Status
from nanokv.errors import CacheClosed, HeapUnavailable, InvalidArgument, PeerLost, WaitTimeout
from nanokv.fsck import check_cache
from nanokv.heap.mapping import area_of, give_back
from nanokv.heap.shm import list_worlds
from tests.api.test_lost_ranks import at_home, told_of_ranks
from tests.support.until import until

PAGE = 4096
PAGES = 128
RANKS = 4
RAW = (0,) * 8
Cache = nanokv.NanoKVCache


class Elastic:
    """A world of at most RANKS ranks in this process, of which 0 and 2 are there."""

    def __init__(self, heap: str, name: str, **options: Any) -> None:
        self.heap, self.name = heap, name
        self.options = {"page_bytes": PAGE, "elastic": True, **options}
        self.caches: list[Cache] = []
        if heap == "local":
            self.caches = nanokv.local_world(RANKS, PAGES * PAGE, ranks=[2, 0], **self.options)
        else:
            self.join(0)
            self.join(2)

    def join(self, rank: int) -> Cache:
        if self.heap == "local":
            made = nanokv.join_local_world(next(cache for cache in self.caches if not cache.closed), rank)
        else:
            made = Cache(PAGES * PAGE, name=self.name, rank=rank, world_size=RANKS, **self.options)
        self.caches.append(made)
        return made

    def check(self) -> None:
        """fsck, and the end of every rank."""
        living = [cache for cache in self.caches if not cache.closed]
        for cache in living:
            cache.flush()
        report = check_cache(living) if living else None
        for cache in living:
            cache.close()
        assert report is None or report.clean, str(report)


@pytest.fixture(params=["local", "shm"])
def make(request: pytest.FixtureRequest, shm_name: str) -> Iterator[Any]:
    worlds = []

    def made(**options: Any) -> Elastic:
        worlds.append(Elastic(request.param, shm_name, **options))
        return worlds[-1]

    yield made
    for world in worlds:
        world.check()
    assert shm_name not in list_worlds()


@pytest.fixture
def world(make: Any) -> Elastic:
    result: Elastic = make(evict=False)
    return result


def fill(cache: Cache, what: str, count: int, segment: int | None = None, pages: int = 1) -> list[str]:
    keys = [f"{what}{i}" for i in range(count)]
    for i, key in enumerate(keys):
        cache.put(key, torch.full((pages * PAGE,), i, dtype=torch.uint8), preferred_segment=segment)
    return keys


def readable(cache: Cache, keys: list[str], pages: int = 1) -> list[str]:
    """The keys whose objects are as `fill` has put them."""
    return [
        key
        for i, key in enumerate(keys)
        if torch.equal(cache.get(key, torch.empty(0)), torch.full((pages * PAGE,), i, dtype=torch.uint8))
    ]


# --- who is there ---
def test_a_rank_that_has_not_come_is_as_one_that_has_closed(world: Elastic) -> None:
    zero, two = world.caches
    assert zero.members() == two.members() == [0, 2]
    assert [zero.alive(rank) for rank in range(RANKS)] == [True, False, True, False]
    keys = [key for home in range(RANKS) for key in at_home(zero, home, 10)]
    for key in keys:
        zero.put(key, torch.ones(3))
    assert {two.get_location(key).owner_rank for key in keys} == {0, 2}
    two.wait(keys, timeout=10.0)
    for rank in (1, 3):
        with pytest.raises(PeerLost, match=f"rank {rank} of .* has ended"):
            zero.put("other", torch.ones(3), preferred_segment=rank)
        assert zero.layouts(rank) == []
    with pytest.raises(InvalidArgument):
        zero.put("other", torch.ones(3), preferred_segment=RANKS)


def test_a_rank_joins_and_gets_objects(world: Elastic) -> None:
    zero = world.caches[0]
    told = told_of_ranks(zero)
    zero.flush()
    one = world.join(1)
    assert zero.members() == [0, 1, 2]
    until(lambda: ("rank joined", 1) in told)
    (key,) = at_home(zero, 1, 1)
    zero.put(key, torch.arange(5))
    assert one.get_location(key).owner_rank == 1 and one.get(key).tolist() == [0, 1, 2, 3, 4]
    one.leave()
    until(lambda: told[-1] == ("rank left", 1))
    assert zero.members() == [0, 2] and zero.get_location(key).owner_rank in (0, 2)
    assert one.closed
    with pytest.raises(CacheClosed):
        one.members()


def test_no_producer_gets_a_page_of_a_rank_that_is_not_there(world: Elastic) -> None:
    zero, two = world.caches
    machine = zero.engine.machine
    assert isinstance(machine, NativeMachine)
    data = torch.ones(PAGE, dtype=torch.uint8)
    two.leave()
    for owner in (1, 2):  # a kernel chooses its owner by itself, and asks nobody who is there
        for number in range(3):
            assert machine.put(owner, (number, number), data.data_ptr(), PAGE, RAW, 1) == Status.FULL
        assert machine.outlook(owner, 0) == 0


@pytest.mark.usefixtures("calls_in_python")
def test_a_put_that_chose_a_rank_before_it_left_goes_elsewhere(world: Elastic, monkeypatch: pytest.MonkeyPatch) -> None:
    zero, two = world.caches
    keys = at_home(zero, 2, 3)
    routing = zero.engine.allocation.routing  # type: ignore[attr-defined]
    two.leave()
    lately = [2]  # ranks that seem to be there when they are first asked about
    known = routing.has_gone

    def has_gone(rank: int) -> bool:
        if rank in lately:
            lately.remove(rank)
            return False
        return bool(known(rank))

    monkeypatch.setattr(routing, "has_gone", has_gone)
    zero.put(keys[0], torch.ones(2000))
    assert lately == []
    lately.append(2)
    zero.open_for_write(keys[1], 3 * PAGE)
    zero.commit(keys[1])
    assert lately == []
    assert [zero.get_location(key).owner_rank for key in keys[:2]] == [0, 0]
    monkeypatch.setattr(zero.engine.heap, "peer_closed", has_gone)
    lately.append(2)
    with pytest.raises(PeerLost, match="rank 2 has left the world"):
        zero.put(keys[2], torch.ones(2000), preferred_segment=2)


# --- leaving ---
def test_leave_and_move(world: Elastic) -> None:
    zero, two = world.caches
    keys = fill(zero, "k", 40, 2)
    zero.put("leased", torch.arange(9).view(3, 3), preferred_segment=2, hold=1000.0)
    zero.put("empty", torch.empty(0, 4), preferred_segment=2)
    with zero.pin("k3"):
        pass
    left = two.leave("move")
    assert left == nanokv.types.Left(moved=42, dropped=0, bytes=40 * PAGE + 72)
    assert readable(zero, keys) == keys
    assert {zero.get_location(key).owner_rank for key in keys} == {0}
    assert zero.get("leased").tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert zero.get("empty").shape == (0, 4)


def test_leave_and_drop(world: Elastic) -> None:
    zero, two = world.caches
    keys, others = fill(zero, "k", 40, 2), fill(two, "o", 20, 0)
    assert two.leave("drop", timeout=10.0) == (0, 40, 0)
    assert readable(zero, keys) == [] and readable(zero, others) == others
    assert zero.exists_many(keys) == [False] * 40
    assert fill(zero, "k", 40) == keys, "the keys are free"


def test_a_rank_that_left_may_come_back_to_an_empty_segment(world: Elastic) -> None:
    zero, two = world.caches
    for turn in range(3):
        keys = fill(zero, f"turn{turn} ", 30, 2, pages=turn + 1)
        two.flush()
        assert two.segment_count() == 30
        two.leave("drop" if turn else "move")
        two = world.join(2)
        assert two.engine.heap.incarnation == turn + 2
        assert two.segment_count() == 0 and two.stats()["free_pages"] == PAGES
        assert readable(two, keys) == ([] if turn else keys)
    fill(two, "last", PAGES, 2)  # every page is there again, once


def test_what_is_leased_stays_leased_and_what_was_used_lately_goes_first(make: Any) -> None:
    zero, two = make().caches
    old, new = fill(zero, "old", 60, 2), fill(zero, "new", 60, 2)
    here = fill(zero, "here", PAGES - 60, 0)
    assert two.leave() == (60, 60, 60 * PAGE)
    assert readable(zero, new) == new and readable(zero, old) == []
    assert readable(zero, here) == here, "nothing is evicted for what moves"
    assert zero.stats()["evictions"] == 0


def test_a_lease_moves_along(make: Any) -> None:
    zero, two = make().caches
    zero.put("leased", torch.ones(PAGE, dtype=torch.uint8), preferred_segment=2, hold=1000.0)
    assert two.leave().moved == 1
    fill(zero, "k", 2 * PAGES, 0)  # evicts all but it
    assert zero.exists("leased")


def test_checksums_and_layouts_move_along(make: Any) -> None:
    layout = nanokv.KVLayout(layers=2, kv_heads=2, head_size=8, block_size=4, dtype="float32")
    world = make(checksum=True, identity=nanokv.Identity("m", layout=layout))
    zero, two = world.caches
    keys = fill(zero, "k", 10, 2)
    assert zero.layouts(0) == [] and len(zero.layouts(2)) == 1
    assert two.leave().moved == 10
    assert readable(zero, keys) == keys
    assert [row.layout for row in zero.layouts(0)] == [layout]


def test_the_last_rank_that_leaves_takes_its_world_along(world: Elastic) -> None:
    zero, two = world.caches
    fill(zero, "k", 10)
    two.leave()
    assert zero.leave("move") == (0, 10, 0), "there is no other rank"


def test_leaving_while_this_process_puts(world: Elastic) -> None:
    two = world.caches[1]
    stop, errors = threading.Event(), list[Exception]()
    done = 0

    def work() -> None:
        nonlocal done
        while not stop.is_set():
            try:
                for key in fill(two, f"{done} ", 5):
                    two.remove_many([key])
                done += 1
            except CacheClosed:
                return
            except Exception as error:
                errors.append(error)
                return

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: done > 3 or bool(errors))
    two.leave()
    stop.set()
    thread.join()
    assert not errors or isinstance(errors[0], CacheClosed | HeapUnavailable), errors


# --- what keeps a rank from leaving ---
def test_a_pinned_object_keeps_the_rank(world: Elastic) -> None:
    zero, two = world.caches
    fill(zero, "k", 3, 2)
    pinned = zero.pin("k1")
    with pytest.raises(
        WaitTimeout, match=r"rank 2 of .* did not leave within 0.2 s, and stays: 1 objects are pinned in"
    ):
        two.leave(timeout=0.2)
    assert zero.members() == two.members() == [0, 2] and two.alive(2)
    assert pinned.tensor.tolist() == [1] * PAGE
    assert readable(zero, fill(two, "again", 5, 2)) == [f"again{i}" for i in range(5)]
    pinned.release()
    assert two.leave("drop").dropped == 6


def test_an_unfinished_object_keeps_the_rank(world: Elastic) -> None:
    zero, two = world.caches
    zero.open_for_write("plan", 100, preferred_segment=2)
    with pytest.raises(WaitTimeout, match="stays: 1 objects are unfinished"):
        two.leave(timeout=0.1)
    zero.commit("plan")
    assert two.leave() == (1, 0, 100)
    assert zero.get("plan").nbytes == 100


def test_own_plans_are_aborted(world: Elastic) -> None:
    zero, two = world.caches
    zero.put("other", torch.ones(3), preferred_segment=0)
    two.open_for_write("mine", 100, preferred_segment=2)
    assert two.leave() == (0, 0, 0)
    zero.put("mine", torch.ones(3))


def test_a_rank_that_only_closes_keeps_its_objects_there(world: Elastic) -> None:
    zero, two = world.caches
    keys = fill(zero, "k", 10, 2)
    two.close()
    assert readable(zero, keys) == keys and zero.members() == [0]
    if world.heap == "local":
        with pytest.raises(HeapUnavailable, match="rank 2 has closed without leaving"):
            world.join(2)
        assert zero.adopt(2) == (10, 0, 10 * PAGE)
        assert world.join(2).stats()["free_pages"] == PAGES
    else:
        assert readable(world.join(2), keys) == keys


def test_adopt(world: Elastic) -> None:
    zero, two = world.caches
    keys = fill(zero, "k", 10, 2)
    pinned = zero.pin("k3")
    for rank, why in ((1, "rank 1.* is absent"), (2, "rank 2.* is there"), (0, "rank 0.* is there")):
        with pytest.raises(HeapUnavailable, match=why):
            zero.adopt(rank)
    for wrong in (RANKS, -1, "2", None):
        with pytest.raises(InvalidArgument, match="rank must be 0 to 3"):
            zero.adopt(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="keys must be one of"):
        zero.adopt(2, "all")  # type: ignore[arg-type]
    two.close()
    with pytest.raises(WaitTimeout, match="stays: 1 objects are pinned"):
        zero.adopt(2, timeout=0.1)
    assert readable(zero, keys) == keys
    pinned.release()
    assert zero.adopt(2, "move") == (1, 0, PAGE)
    assert readable(zero, keys) == keys and {zero.get_location(key).owner_rank for key in keys} == {0}


# --- wrong calls ---
def test_wrong_calls(world: Elastic, make: Any) -> None:
    zero = world.caches[0]
    for wrong in ("Move", None, 3, ["move"], ""):
        with pytest.raises(InvalidArgument, match="keys must be one of"):
            zero.leave(wrong)  # type: ignore[arg-type]
    for timeout in ("1", float("nan"), None):
        with pytest.raises(InvalidArgument, match="timeout"):
            zero.leave(timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(HeapUnavailable, match=r"rank 2 is there already|rank 2 of world .* is taken"):
        world.join(2)
    assert zero.members() == [0, 2]


def test_a_world_that_is_not_elastic() -> None:
    (cache,) = nanokv.local_world(1, PAGES * PAGE, page_bytes=PAGE)
    with cache:
        assert cache.members() == [0]
        with pytest.raises(InvalidArgument, match="leave needs a world made with elastic=True"):
            cache.leave()
        with pytest.raises(InvalidArgument, match="only an elastic world can be joined"):
            nanokv.join_local_world(cache, 0)


def test_wrong_worlds(shm_name: str) -> None:
    sizes: dict[str, Any] = {"page_bytes": PAGE, "elastic": True}
    for ranks, why in (([], "at least one"), ([4], "must be 0 to 3, not 4"), ("0", "ranks"), ([True], "not True")):
        with pytest.raises(InvalidArgument, match=why):
            nanokv.local_world(RANKS, PAGES * PAGE, ranks=ranks, **sizes)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="ranks is for worlds with elastic=True"):
        nanokv.local_world(RANKS, PAGES * PAGE, page_bytes=PAGE, ranks=[0])
    with pytest.raises(InvalidArgument, match="elastic=True needs alloc='device': in v1"):
        nanokv.local_world(RANKS, PAGES * PAGE, alloc="host", **sizes)
    for heap in ("iris", "torch_symm"):
        with pytest.raises(InvalidArgument, match=f"elastic=True needs one of the heaps .*heap='{heap}'"):
            Cache(PAGES * PAGE, name=shm_name, rank=0, world_size=2, heap=heap, **sizes)
    with pytest.raises(InvalidArgument, match="member must be a NanoKVCache, not 3"):
        nanokv.join_local_world(3, 1)  # type: ignore[arg-type]
    (cache,) = nanokv.local_world(RANKS, PAGES * PAGE, ranks=[3], **sizes)
    with pytest.raises(InvalidArgument, match="rank must be 0 to 3, not 4"):
        nanokv.join_local_world(cache, 4)
    cache.close()
    with pytest.raises(CacheClosed):
        nanokv.join_local_world(cache, 1)
    with (
        Cache(PAGES * PAGE, name=shm_name, rank=0, world_size=2, **sizes) as cache,
        pytest.raises(InvalidArgument, match="not of heap='shm'"),
    ):
        nanokv.join_local_world(cache, 1)


# --- memory ---
def test_memory_that_is_given_back_is_zero_and_whole_pages_only() -> None:
    (cache,) = nanokv.local_world(1, PAGES * PAGE, page_bytes=PAGE)
    with cache:
        raw = cache.engine.heap.host_view(0)
        assert raw is not None
        (area, start), first = area_of(raw), cache.engine.geometry.offsets["heap_base"]
        assert start == 0
        raw[first:] = 7
        assert give_back(area, first + 1, 3 * PAGE)
        kept = torch.from_numpy(raw[first:]).view(-1, PAGE)[:5].amax(1).tolist()
        assert kept == [7, 0, 0, 7, 7]
        assert give_back(area, first + 1, PAGE)  # no whole page
        assert raw[first] == 7

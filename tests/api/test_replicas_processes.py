"""An owner is killed, and its memory may be lost: objects with copies are read from another rank."""

import time
from collections.abc import Iterator

import pytest
import torch

import nanokv
from nanokv.check.machine.rank_process import RankProcess, wait_until
from nanokv.check.machine.ranks import CacheRank, RankOptions, attach
from nanokv.errors import PeerLost
from nanokv.fsck import check_cache
from tests.support.plain_world import PAGE
from tests.support.rank_processes import new_folder

RANKS, OBJECTS = 3, 12
KEPT, LAST = 60, 30  #: objects


class Owner(CacheRank):
    """Puts objects with copies, then as many as it can until it is killed."""

    def put_some(self) -> None:
        for i in range(OBJECTS):
            self.cache.put(f"copied{i}", value(i), preferred_segment=self.cache.rank, replicas=1)
            self.cache.put(f"alone{i}", value(i), preferred_segment=self.cache.rank)

    def put_until_told(self) -> None:
        """Only the last ones stay: so nothing is evicted, however many there are."""
        while not self.told():
            step = self.progress.value
            self.cache.put(f"more{self.who}-{step}", value(step), preferred_segment=self.cache.rank, replicas=2)
            if step >= KEPT:
                self.cache.remove(f"more{self.who}-{step - KEPT}")
            self.progress.value += 1

    def copy_until_told(self) -> None:
        """Copies of what rank 0 has, made and removed."""
        while not self.told():
            self.cache.replicate("base")
            self.cache.remove("base")
            self.cache.put("base", value(0), preferred_segment=0, exist_ok=True)
            self.progress.value += 1


def value(i: int) -> torch.Tensor:
    return torch.full((PAGE // 2 + i,), i % 100, dtype=torch.uint8)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[nanokv.NanoKVCache, dict[int, RankProcess]]]:
    with new_folder(monkeypatch):
        options = ranks_options()
        ranks = {rank: RankProcess(Owner, rank, options) for rank in range(1, RANKS)}
        cache = attach(0, options)
        for rank in ranks.values():
            rank.arrive()
        yield cache, ranks
        for rank in ranks.values():
            rank.end()
        cache.close()


World = tuple[nanokv.NanoKVCache, dict[int, RankProcess]]


def lose(cache: nanokv.NanoKVCache, rank: int) -> None:
    """The memory of headers and payloads of a segment is gone: zeros."""
    segment, at = cache.engine.heap.segment(rank), cache.engine.geometry.offsets
    segment[at["hdr_base"] : at["desc_base"]] = 0
    segment[at["heap_base"] : at["heap_limit"]] = 0


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_no_object_with_a_copy_goes_with_its_owner(world: World, lost: bool) -> None:
    cache, ranks = world
    ranks[1].ask("put_some")
    ranks[1].kill()
    wait_until("the death is seen", lambda: not cache.alive(1))
    if lost:
        lose(cache, 1)
    for i in range(OBJECTS):
        assert torch.equal(cache.get(f"copied{i}"), value(i))
        assert cache.copies(f"copied{i}") == ([2] if lost else [1, 2])
        assert (f"alone{i}" in cache) == (not lost)
        assert cache.replicate(f"copied{i}")  # there are as many copies as before
    with pytest.raises(PeerLost):
        cache.replicate("copied0", 1)
    if lost:
        return
    for i in range(OBJECTS):
        cache.remove(f"copied{i}")
        assert cache.copies(f"copied{i}") == []


def test_an_owner_is_killed_while_it_puts_copies(world: World) -> None:
    cache, ranks = world
    for incarnation in (1, 2):
        ranks[1].send("put_until_told")
        before = ranks[1].steps
        wait_until("some puts", lambda before=before: ranks[1].steps > before + 40)  # type: ignore[misc]
        ranks[1].kill()
        done = ranks[1].steps
        wait_until("the death is seen", lambda: not cache.alive(1))
        for i in range(max(done - LAST, 0), done):
            assert torch.equal(cache.get(f"more{1 + 8 * incarnation}-{i}"), value(i))
        ranks[1] = RankProcess(Owner, 1, ranks_options())
        ranks[1].arrive()
    rest(cache)


def test_a_replicator_is_killed(world: World) -> None:
    cache, ranks = world
    cache.put("base", value(0), preferred_segment=0)
    for _ in range(3):
        ranks[2].send("copy_until_told")
        before = ranks[2].steps
        wait_until("some copies", lambda before=before: ranks[2].steps > before + 50)  # type: ignore[misc]
        ranks[2].kill()
        wait_until("the death is seen", lambda: not cache.alive(2))
        if "base" in cache:
            assert torch.equal(cache.get("base"), value(0))
            cache.remove("base")
        deadline = time.monotonic() + 60
        while True:  # what the dead one was about to put is given up
            cache.put("base", value(0), preferred_segment=0, exist_ok=True)
            if "base" in cache or time.monotonic() > deadline:
                break
        assert torch.equal(cache.get("base"), value(0))
        ranks[2] = RankProcess(Owner, 2, ranks_options())
        ranks[2].arrive()
    rest(cache)


def ranks_options() -> RankOptions:
    return RankOptions("w", RANKS, 256 * PAGE, PAGE, True, seed=0, keys=1, pins=False)


def rest(cache: nanokv.NanoKVCache) -> None:
    """fsck is clean once the sweepers have taken back what the dead held."""

    def clean() -> bool:
        cache.flush()
        return not check_cache([cache], patience=0.0).findings

    wait_until("a clean fsck", clean, lambda: check_cache([cache], patience=0.0).findings, pause=0.1)

"""Elastic worlds of processes: ranks join and leave while others put and get, and die at every step of it."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv.check.machine.rank_process import RankProcess, wait_until
from nanokv.check.report import CheckFailure
from nanokv.errors import HeapUnavailable, InvalidArgument, PeerLost
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.heap.shm_tools import inspect, list_worlds
from tests.support.elastic_ranks import DEATHS, PAGE, PAGES, RANKS, ElasticRank, join, value
from tests.support.rank_processes import Start, starter
from tests.support.until import until

PAYLOAD = PAGES * PAGE
STEPS = 60


@pytest.fixture
def ranks(folder: Path, name: str) -> Iterator[Start]:
    """Starts ranks of the elastic world `name`."""
    with starter(partial(ElasticRank, name=name)) as begin:
        yield begin


def arrived(start: Start, *numbers: int, **options: Any) -> list[RankProcess]:
    """Ranks that have joined, all at once."""
    started = [start(number, **options) for number in numbers]
    for rank in started:
        rank.arrive()
    return started


def held(folder: Path, name: str) -> int:
    """Bytes of memory that the file of a world has."""
    return (folder / f"nanokv.{name}").stat().st_blocks * 512


def keys_of(who: str, count: int = 40) -> list[str]:
    return [f"{who} key {i}" for i in range(count)]


def is_clean(name: str) -> bool:
    report = InspectedWorld(name).check()
    assert not report.breaches, str(report)
    return report.clean


def clean(name: str) -> None:
    """Wait until fsck finds nothing."""
    wait_until("that fsck finds nothing", lambda: is_clean(name), lambda: str(InspectedWorld(name).check()))


# --- joining ---
def test_ranks_that_have_not_come_take_no_memory(ranks: Start, folder: Path, name: str) -> None:
    (one,) = arrived(ranks, 1)
    info = inspect(name)
    base = (folder / f"nanokv.{name}").stat().st_size - RANKS * PAYLOAD
    assert held(folder, name) == base + PAYLOAD
    assert (info.alive, info.absent) == ([False, True, False, False], [True, False, True, True])
    one.ask("put", keys_of("one"))  # their homes, and places in directories, are in all segments
    assert one.ask("members") == [1] and held(folder, name) == base + PAYLOAD
    (three,) = arrived(ranks, 3)
    three.ask("put", keys_of("three"))
    assert one.ask("members") == three.ask("members") == [1, 3]
    assert one.ask("unreadable", keys_of("three")) == three.ask("unreadable", keys_of("one")) == []
    assert held(folder, name) == base + 2 * PAYLOAD
    three.ask("leave", "drop")
    assert held(folder, name) == base + PAYLOAD
    assert is_clean(name)
    one.ask("close")
    assert list_worlds() == []


def test_a_lazy_rank_takes_memory_as_it_is_written(folder: Path, name: str) -> None:
    options: dict[str, Any] = {"page_bytes": 4096, "name": name, "world_size": 2, "elastic": True, "max_objects": 64}
    with nanokv.NanoKVCache(64 << 20, rank=0, heap_options={"lazy": True}, **options) as lazy:
        before = held(folder, name)
        assert before < 16 << 20  # with the sixteenth part of its payload, which is kept ready
        lazy.put("k", torch.ones(512 << 10, dtype=torch.uint8))
        assert held(folder, name) - before < 6 << 20
        assert int(lazy.get("k").sum()) == 512 << 10
        with nanokv.NanoKVCache(64 << 20, rank=1, heap_options={"lazy": True}, **options) as other:
            assert int(other.get("k").sum()) == 512 << 10
            assert held(folder, name) - before < 12 << 20


def test_only_a_rank_of_an_elastic_world_may_be_lazy(folder: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="lazy must be"):
        nanokv.NanoKVCache(1 << 20, page_bytes=4096, name=name, rank=0, world_size=1, heap_options={"lazy": True})


def test_a_rank_joins_and_leaves_while_others_put_and_get(ranks: Start, name: str) -> None:
    others = arrived(ranks, 0, 1)
    for rank in others:
        rank.send("churn")
    for incarnation in (1, 2, 3):
        third = ranks(2)
        assert third.arrive() == incarnation
        third.ask("put", keys_of("third"))
        third.send("churn")
        go_on(*others, third)
        assert third.stop() == (0, 0)
        left = third.ask("leave")
        assert left.moved > 0 and left.dropped == 0
        go_on(*others)
        fourth = ranks(3)
        fourth.arrive()
        assert fourth.ask("unreadable", keys_of("third")) == []
        fourth.ask("remove", keys_of("third"))
        fourth.ask("leave")
    for rank in others:
        _, wrong = rank.stop()
        assert wrong == 0
    clean(name)


def go_on(*ranks: RankProcess) -> None:
    """Let each rank do STEPS steps of its churn."""
    aims = [(rank, rank.steps + STEPS) for rank in ranks]
    until(lambda: all(rank.steps >= aim for rank, aim in aims))


def test_two_ranks_join_at_once(ranks: Start, name: str) -> None:
    for _ in range(3):
        (one,) = arrived(ranks, 0)
        two, three = arrived(ranks, 1, 2)
        assert one.ask("members") == two.ask("members") == three.ask("members") == [0, 1, 2]
        two.ask("put", keys_of("two"))
        assert three.ask("unreadable", keys_of("two")) == []
        for rank in (three, two, one):
            rank.ask("close")
    assert list_worlds() == []


def test_all_ranks_begin_a_world_at_once(ranks: Start, name: str) -> None:
    everybody = arrived(ranks, *range(RANKS))
    assert [rank.ask("members") for rank in everybody] == [[0, 1, 2, 3]] * RANKS
    assert is_clean(name)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"elastic": False}, "elastic=True; rank 1 asks for elastic=False"),
        ({"evict": True}, "evict=False; rank 1 asks for evict=True"),
        ({"world_size": 3}, "world_size=4; rank 1 asks for world_size=3"),
        ({"page_bytes": 2 * PAGE}, "page_bytes"),
    ],
)
def test_a_rank_with_other_options_is_refused(ranks: Start, name: str, options: dict[str, Any], why: str) -> None:
    (one,) = arrived(ranks, 0)
    with pytest.raises(HeapUnavailable, match=why):
        join(name, 1, **options)
    with pytest.raises(HeapUnavailable, match=r"rank 0 of .* is taken by a living process"):
        join(name, 0)
    one.ask("put", keys_of("one"))
    arrived(ranks, 1)
    assert one.ask("members") == [0, 1]
    assert is_clean(name)


def test_without_memory_a_rank_cannot_join(ranks: Start, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = arrived(ranks, 0)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(HeapUnavailable, match=f"segment 1 of world '{name}' needs {PAYLOAD} bytes"):
            join(name, 1)
        with pytest.raises(HeapUnavailable, match="of 4 segments needs"):
            join("another", 1)
    assert one.ask("members") == [0] and list_worlds() == [name]
    arrived(ranks, 1)
    assert one.ask("members") == [0, 1]


# --- a barrier, events, lost peers ---
def test_a_barrier_waits_for_those_that_are_there(name: str) -> None:
    with join(name, 0) as one:
        one.engine.heap.barrier(10.0)
        one.engine.heap.barrier(10.0)
        with join(name, 2) as two:
            with pytest.raises(PeerLost, match=r"barrier: ranks \[2\] did not come within 0.05 s"):
                one.engine.heap.barrier(0.05)
            with pytest.raises(PeerLost, match=r"barrier: ranks \[0\] did not come within 0.05 s"):
                two.engine.heap.barrier(0.05)
            two.leave()
            one.engine.heap.barrier(10.0)


# --- deaths ---
@pytest.mark.parametrize("step", DEATHS)
def test_a_rank_that_dies_leaves_a_sound_world(ranks: Start, name: str, step: str) -> None:
    (one,) = arrived(ranks, 0)
    one.ask("put", keys_of("one"))
    dying = ranks(1, dies_at=step)
    if step.startswith("leave"):
        dying.arrive()
        dying.ask("put", keys_of("dying"), 1)
        dying.send("leave")
    with pytest.raises(CheckFailure, match="rank 1 ended with -9 before it answered"):
        dying.answer()
    assert not InspectedWorld(name).check().breaches
    until(lambda: one.ask("members") == [0])
    there = [key for key in keys_of("dying") if key not in one.ask("unreadable", keys_of("dying"))]
    if step == "leave, marked":
        assert there == keys_of("dying"), "they can be read, though their rank is dead"
    if step == "leave, some have moved":
        assert len(there) >= len(keys_of("dying")) - 1, "only the one that was being moved is lost"
    assert one.ask("unreadable", keys_of("one")) == []
    one.ask("put", keys_of("two"))
    again = ranks(1)
    again.arrive()
    assert again.ask("unreadable", [*there, *keys_of("one"), *keys_of("two")]) == []
    clean(name)
    again.ask("remove", [*keys_of("one"), *keys_of("two"), *there])
    until(lambda: again.ask("free_pages") == PAGES)
    clean(name)


def test_the_name_of_a_world_whose_first_rank_died_before_it_was_there(ranks: Start, name: str) -> None:
    for step in ("join, with the lock", "join, with memory"):
        with pytest.raises(CheckFailure, match="rank 0 ended"):
            ranks(0, dies_at=step).arrive()
        assert inspect(name).absent == [True] * RANKS
        with join(name, 2) as cache:  # nothing can be in that world
            assert cache.members() == [2]
        assert list_worlds() == []


def test_a_dead_elastic_world_is_not_replaced(ranks: Start, name: str) -> None:
    one, two = arrived(ranks, 0, 1)
    one.ask("put", keys_of("one"), 0)
    two.ask("put", keys_of("two"), 1)
    one.kill()
    two.kill()
    with pytest.raises(HeapUnavailable, match="whose ranks have all died"):
        join(name, 3)
    assert is_clean(name)
    with pytest.raises(HeapUnavailable, match="needs"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError("full")))
        join(name, 3, on_stale="recover")
    with join(name, 3, on_stale="recover") as cache:
        assert cache.members() == [3]
        for key in (*keys_of("one"), *keys_of("two")):
            assert torch.equal(cache.get(key), value(key))
        (again,) = arrived(ranks, 1)
        assert again.ask("unreadable", keys_of("one")) == []
        again.ask("remove", [*keys_of("one"), *keys_of("two")])
        again.ask("close")
        clean(name)
    assert list_worlds() == []


def test_an_elastic_world_of_that_name_may_be_replaced(ranks: Start, name: str) -> None:
    (one,) = arrived(ranks, 0)
    one.ask("put", keys_of("one"))
    one.kill()
    with join(name, 0, on_stale="replace") as cache:
        assert not cache.exists(keys_of("one")[0])


# --- adoption ---
@pytest.mark.parametrize("step", ["crash", "leave, marked", "leave, pages in hand", "leave, links cleared"])
@pytest.mark.parametrize("keys", ["move", "drop"])
def test_a_rank_adopts_what_a_dead_one_left(ranks: Start, folder: Path, name: str, step: str, keys: str) -> None:
    (one,) = arrived(ranks, 0)
    before = held(folder, name)
    dying = ranks(1, dies_at=None if step == "crash" else step)
    dying.arrive()
    dying.ask("put", keys_of("dying"), 1)
    one.ask("put", keys_of("one"))
    if step == "crash":
        dying.ask("plan", "plan", 1)
        dying.kill()
    else:
        dying.send("leave", "drop")
        with pytest.raises(CheckFailure, match="rank 1 ended"):
            dying.answer()
    until(lambda: not inspect(name).alive[1])  # the kernel gives its lock back a moment after its end
    there = sorted({*keys_of("dying")} - {*one.ask("unreadable", keys_of("dying"))})
    left = one.ask("adopt", 1, keys)
    assert left.moved + left.dropped >= len(there)
    assert one.ask("unreadable", there) == ([] if keys == "move" else there)
    assert held(folder, name) == before
    with pytest.raises(HeapUnavailable, match=r"rank 1 of .* is absent: there is nothing to adopt"):
        one.ask("adopt", 1)
    clean(name)
    again = ranks(1)
    assert again.arrive() == 2
    assert again.ask("free_pages") == PAGES
    again.ask("put", keys_of("again"), 1)
    assert one.ask("unreadable", keys_of("again")) == []
    clean(name)


def test_no_rank_adopts_one_that_lives(ranks: Start, name: str) -> None:
    one, two = arrived(ranks, 0, 1)
    for rank in (0, 1):
        with pytest.raises(HeapUnavailable, match=f"rank {rank} of .* is there, or is being adopted"):
            one.ask("adopt", rank)
    two.ask("put", keys_of("two"), 1)
    assert one.ask("members") == [0, 1] and one.ask("unreadable", keys_of("two")) == []


def test_an_adopting_rank_dies(ranks: Start, name: str) -> None:
    (one,) = arrived(ranks, 0)
    two, three = ranks(1), ranks(2, dies_at="leave, some have moved")
    two.arrive()
    three.arrive()
    two.ask("put", keys_of("two"), 1)
    two.kill()
    three.send("adopt", 1)
    with pytest.raises(CheckFailure, match="rank 2 ended"):
        three.answer()
    until(lambda: inspect(name).alive == [True, False, False, False])
    assert len(one.ask("unreadable", keys_of("two"))) <= 1
    assert not InspectedWorld(name).check().breaches
    for rank in (1, 2):
        one.ask("adopt", rank)
    assert len(one.ask("unreadable", keys_of("two"))) <= 1
    assert one.ask("members") == [0]
    clean(name)

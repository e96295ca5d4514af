"""Kill rounds: a short run, and proof that whatever a round looks at can fail it."""

import os
import re
from collections.abc import Callable, Iterator

import pytest

from nanokv.check.machine import rank_process
from nanokv.check.machine.kills.roles import KEYS, ROLES
from nanokv.check.machine.kills.run import differences, run_kills
from nanokv.check.machine.kills.world import ANCHOR, PAGE, WORLD_SIZE, KillWorld
from nanokv.check.machine.payloads import name, payload
from nanokv.check.report import CheckFailure
from nanokv.device.machines.records import Place
from nanokv.device.segment.layout import WORD
from nanokv.heap.shm import list_worlds
from nanokv.host_poller.sweeper import Sweeper
from tests.support.faults import Calls, Limits

HELD = 3000
VICTIM = 1


def test_short_run_holds_and_leaves_no_world() -> None:
    rows = run_kills(2 * len(ROLES), seed=11)
    assert [failure for row in rows for failure in row.failures] == []
    *victims, counts = rows
    assert [row.name for row in victims] == [f"{role} killed" for role in ROLES]
    assert [row.tried for row in victims] == [2] * len(ROLES)
    assert counts.tried == 4 and all(row.held for row in rows)
    assert not [world for world in list_worlds() if world.startswith(f"nanokv-kills-{os.getpid()}-")]


def test_no_rounds_hold_nothing() -> None:
    assert not any(row.held for row in run_kills(0, seed=1))


# --- each thing that is looked at can fail ----------------------------------------------------
@pytest.fixture(params=[False, True], ids=["keep", "evict"])
def world(request: pytest.FixtureRequest) -> Iterator[KillWorld]:
    made = KillWorld(1, evict=request.param, pins=True)
    yield made
    made.end()


def write_into(world: KillWorld, key: int) -> None:
    """Another word in the middle of an object."""
    cache = world.cache
    where = cache.get_location(name(key))
    cache.engine.single.payload(Place(where.owner_rank, 0, 0, where.payload_off, where.bytes_total))[
        where.bytes_total // 2
    ] ^= 1


def test_world_at_rest_passes_every_look(world: KillWorld) -> None:
    before = world.counts_at_rest()
    world.cache.put(name(0), payload(0, 7, 100), preferred_segment=2)
    world.all_is_back()
    world.check_anchors()
    assert world.check_objects() == 2 * WORLD_SIZE + 1
    world.clear()
    assert world.counts_at_rest() == before
    world.fill_each()


def test_torn_anchor_is_seen(world: KillWorld) -> None:
    write_into(world, ANCHOR + 3)
    with pytest.raises(CheckFailure, match=f"key {ANCHOR + 3} is torn"):
        world.check_anchors()


def test_lost_anchor_is_seen(world: KillWorld) -> None:
    world.let_go(ANCHOR + 3)
    world._anchors[ANCHOR + 3] = 1
    with pytest.raises(CheckFailure, match=f"anchor {ANCHOR + 3} is gone"):
        world.check_anchors()


def test_other_version_of_an_anchor_is_seen(world: KillWorld) -> None:
    world.let_go(ANCHOR + 3)
    world.cache.put(name(ANCHOR + 3), payload(ANCHOR + 3, 99, 10), preferred_segment=1)
    world.keep(ANCHOR + 3, 1)
    with pytest.raises(CheckFailure, match=f"anchor {ANCHOR + 3} has version 99"):
        world.check_anchors()


def test_torn_object_is_seen(world: KillWorld) -> None:
    world.cache.put(name(2), payload(2, 7, 100), preferred_segment=2)
    write_into(world, 2)
    with pytest.raises(CheckFailure, match="key 2 is torn"):
        world.check_objects()


def test_object_that_nobody_expects_is_seen(world: KillWorld) -> None:
    world.cache.put(name(KEYS), payload(KEYS, 7, 100))
    with pytest.raises(CheckFailure, match="11 objects are READY, 10 can be read"):
        world.check_objects()


@pytest.fixture
def impatient(limits: Limits) -> Callable[[], None]:
    """Call it when everybody has come: from then on waits fail after a second."""

    def hurry() -> None:
        limits(rank_process, PATIENCE=1.0)
        limits(rank_process.RankProcess, patience=1.0)

    return hurry


def lose_free_pages(world: KillWorld, owner: int = 2) -> None:
    """Take every free page of a segment out of all places."""
    machine = world.cache.engine.machine
    for size_class, pages in enumerate(machine.geometry.class_pages):
        if pages:
            machine.detach(owner, size_class)
    machine.detach_rest(owner)


def test_leak_is_seen(world: KillWorld, impatient: Callable[[], None]) -> None:
    before = world.counts_at_rest()
    impatient()
    lose_free_pages(world)
    assert "lost_pages in the segment of rank 2 are" in differences(before, world.counts())
    with pytest.raises(CheckFailure, match="I2 breach, rank 2"):
        world.all_is_back()
    with pytest.raises(CheckFailure, match="rank 2 has no room for its largest object"):
        world.fill_each()


def kill_a_burdened_rank(world: KillWorld) -> None:
    """It holds a pin and a plan in the segment of rank 0, whose sweeper runs in this process."""
    world.workers[VICTIM].ask("hold", ANCHOR, HELD, 0)
    world.kill(VICTIM, at=1)


def test_what_the_dead_held_comes_back(world: KillWorld) -> None:
    before = world.counts_at_rest()
    kill_a_burdened_rank(world)
    world.all_is_back()
    assert world.counts_at_rest() == before


def test_sweeper_that_does_nothing_is_seen(world: KillWorld, impatient: Callable[[], None], calls: Calls) -> None:
    calls.answer(Sweeper, "begin_pass", None)
    calls.answer(Sweeper, "tend", None)
    impatient()
    kill_a_burdened_rank(world)
    with pytest.raises(CheckFailure, match=r"1 objects are unfinished.*1 pins of readers that have ended"):
        world.all_is_back()


def test_worker_that_read_wrong_bytes_fails(world: KillWorld) -> None:
    world.cache.put(name(0), payload(0, 7, PAGE // WORD), preferred_segment=2)
    write_into(world, 0)
    worker = world.workers[VICTIM]
    worker.send("act", "owner")
    with pytest.raises(CheckFailure, match="key 0 is torn"):
        worker.answer()


# --- a failure of a run -----------------------------------------------------------------------
def test_failure_says_how_to_see_it_again(calls: Calls) -> None:
    calls.after(KillWorld, "check_objects", lambda world: write_into(world, ANCHOR), at=(3,))
    rows = run_kills(8, seed=5, worlds=1)
    (failure,) = [failure for row in rows for failure in row.failures]
    assert f"key {ANCHOR} is torn" in failure and "run_kills(8, 5, pins=True, worlds=1), world 0, round " in failure
    assert 3 <= sum(row.tried for row in rows) < 8, "the first failure of a world ends it"


def test_object_left_over_fails_the_counts(calls: Calls, impatient: Callable[[], None]) -> None:
    def leave_one(world: KillWorld) -> None:
        world.cache.put(name(KEYS), payload(KEYS, 7, 3 * PAGE // WORD), preferred_segment=2)
        impatient()

    calls.after(KillWorld, "clear", leave_one)
    *victims, counts = run_kills(2, seed=5, worlds=1)
    assert all(row.failures == [] for row in victims)
    (failure,) = counts.failures
    assert "objects in the segment of rank 2 are 3, not 2" in failure
    ((now, before),) = re.findall(r"pages in the segment of rank 2 are (\d+), not (\d+)", failure)
    assert int(now) == int(before) + 3

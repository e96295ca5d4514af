"""fsck: a healthy world is clean after any history; leftovers of dead ranks are told apart from breaches."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nanokv.device.machines.records import Begun, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import (
    ENTRY_PHASE_MASK,
    READY,
    WRITING,
    unpack,
)
from nanokv.space.coalesce import join_free_extents
from tests.support.fsck_fixture import PAGE, RANKS, RAW, Pin, World, digest, home_of, ten_objects

LOOKS = 200


@pytest.fixture
def world() -> World:
    return ten_objects()


# --- healthy worlds ---------------------------------------------------------------------------
class History:
    """Random operations on a world, by both ranks."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.pins: list[Pin] = []
        self.plans: list[tuple[int, int, Begun]] = []
        self.done: dict[str, int] = {}

    def step(self) -> None:
        name = self.random.choice(["put"] * 6 + ["remove"] * 3 + ["pin", "unpin", "plan", "end_plan", "join", "empty"])
        self.done[name] = self.done.get(name, 0) + bool(getattr(self, name)())

    def put(self) -> bool:
        size = self.random.choice([1, 4096, 5000, 20000, 70000])
        by, owner = self.random.randrange(RANKS), self.random.randrange(RANKS)
        return self.world.put(owner, self.random.randrange(60), size, by) == Status.OK

    def empty(self) -> bool:
        return self.world.put(self.random.randrange(RANKS), self.random.randrange(60), 0) == Status.OK

    def remove(self) -> bool:
        machine = self.world.machines[self.random.randrange(RANKS)]
        return machine.remove(digest(self.random.randrange(60))) == Status.OK

    def pin(self) -> bool:
        machine = self.world.machines[0]
        found = machine.lookup(digest(self.random.randrange(60)))
        if found.status != Status.OK:
            return False
        status, line = machine.pin(found.place)
        if status == Status.OK:
            self.pins.append(Pin(found.place, line))
        return status == Status.OK

    def unpin(self) -> bool:
        if not self.pins:
            return False
        pin = self.pins.pop(self.random.randrange(len(self.pins)))
        return self.world.machines[0].unpin(*pin) == Status.OK

    def plan(self) -> bool:
        by, owner = self.random.randrange(RANKS), self.random.randrange(RANKS)
        begun = self.world.begin(owner, self.random.randrange(60), 9000, by)
        if begun.status == Status.OK:
            self.plans.append((by, owner, begun))
        return begun.status == Status.OK

    def end_plan(self) -> bool:
        if not self.plans:
            return False
        by, owner, begun = self.plans.pop()
        machine = self.world.machines[by]
        if self.random.random() < 0.5:
            return machine.commit(begun.place) == Status.OK
        phase = machine.enter(owner)
        status = machine.abort(begun.place)
        machine.leave(owner, phase)
        return status == Status.OK

    def join(self) -> bool:
        return join_free_extents(self.world.machines[0], self.random.randrange(RANKS)) > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("may_evict", [True, False])
def test_a_world_is_clean_after_any_history(seed: int, may_evict: bool) -> None:
    world = World(may_evict=may_evict)
    history = History(world, seed)
    for i in range(600):
        history.step()
        if i % 50 == 0:
            for quiescent in (True, False, None):
                report = world.check(quiescent)
                assert report.clean, f"after step {i}: {report}"
    assert all(history.done[name] > 0 for name in ("put", "remove", "pin", "plan", "end_plan", "join"))
    report = world.check()
    assert report.clean, str(report)
    assert report.quiescent and report.segments == RANKS
    assert report.objects == sum(int(np.count_nonzero(v.headers["state"] & 0xFF == READY.value)) for v in world.views)


def test_a_new_world_is_clean() -> None:
    assert World().check().clean
    assert World("host").check().clean


def test_the_check_changes_nothing() -> None:
    world = World()
    for key in range(20):
        world.put(key % RANKS, key)
    before = [view.raw.copy() for view in world.views]
    world.check()
    world.check(None)
    assert all(np.array_equal(view.raw, was) for view, was in zip(world.views, before, strict=True))


# --- leftovers of dead ranks ------------------------------------------------------------------
def leftovers(world: World) -> set[str]:
    report = world.check()
    assert not report.breaches, str(report)
    return {finding.invariant for finding in report.leftovers}


def test_leaks_of_the_dead_are_leftovers_and_those_of_the_living_are_breaches(world: World) -> None:
    world.views[0].ctl["bump_ptr"] += np.uint64(PAGE)
    world.views[0].ctl["hdr_head"] += np.uint64(1)
    assert {f.invariant for f in world.check().breaches} == {"I2"}
    world.dead = {1}
    assert leftovers(world) == {"I2"}


def test_a_leak_after_a_rank_came_back_is_a_leftover(world: World) -> None:
    world.views[0].ctl["bump_ptr"] += np.uint64(PAGE)
    world.views[1].activity["incarnation"][1] = 2
    assert leftovers(world) == {"I2"}


def test_operations_of_the_dead_stay_counted(world: World) -> None:
    world.machines[1].enter(0)
    world.dead = {1}
    assert leftovers(world) == {"I6"}


def test_unfinished_objects_of_the_dead_are_leftovers(world: World) -> None:
    assert world.begin(0, 100, by=1).status == Status.OK
    assert world.check().clean
    world.dead = {1}
    assert leftovers(world) == {"I6"}


def test_quarantine_is_no_finding_while_its_owner_lives(world: World) -> None:
    begun = world.begin(0, 100, by=1)
    assert world.machines[0].give_up(0, begun.place.slot, begun.place.epoch)
    assert world.check().clean
    world.dead = {0}
    assert leftovers(world) == {"I6"}


def test_an_empty_object_that_was_given_up_waits_for_its_owner(world: World) -> None:
    begun = world.begin(0, 100, nbytes=0, by=1)
    assert world.machines[0].give_up(0, begun.place.slot, begun.place.epoch)
    assert world.check().clean
    world.dead = {0}
    assert leftovers(world) == {"I6"}


def test_pins_of_the_dead_are_leftovers(world: World) -> None:
    world.pin(0, by=1)
    assert world.check().clean
    world.dead = {1}
    assert leftovers(world) == {"I6"}


def test_a_tentative_entry_of_the_dead_is_a_leftover(world: World) -> None:
    begun = world.begin(0, 100, by=1)
    header = world.views[0].headers[begun.place.slot]
    header["state"], header["n_pages"] = 0, 0
    world.views[0].ctl["bump_ptr"] -= np.uint64(2 * PAGE)
    home = world.views[home_of(100)]
    place = np.flatnonzero(
        (unpack("ENTRY", "header", home.directory) == begun.place.slot) & (unpack("ENTRY", "rank", home.directory) == 0)
    )[-1]
    home.directory[place] = home.directory[place] & ~np.uint64(ENTRY_PHASE_MASK.value) | np.uint64(1)
    assert {f.invariant for f in world.check().breaches} == {"I6"}
    world.dead = {1}
    assert leftovers(world) == {"I6"}


# --- busy worlds ------------------------------------------------------------------------------
def test_a_world_with_an_operation_under_way_is_not_at_rest(world: World) -> None:
    assert world.check(None).quiescent
    phase = world.machines[0].enter(0)
    report = world.check(None)
    assert not report.quiescent and report.clean
    world.machines[0].leave(0, phase)
    assert world.check(None).quiescent


def test_an_object_that_is_being_written_is_no_breach(world: World) -> None:
    begun = world.machines[0].begin(0, digest(100), 5000, 0, RAW, 0)
    report = world.check(None)
    assert report.clean and not report.quiescent
    assert world.machines[0].finish(begun.place, begun.phase) == Status.OK
    assert world.check(None).objects == 11


@pytest.mark.parametrize("quiescent", [False, None])
def test_a_busy_world_has_no_false_breach(quiescent: bool | None) -> None:
    world = World()
    enough = threading.Event()

    def work(seed: int) -> None:
        history = History(world, seed)
        while not enough.is_set():
            history.step()

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work, seed) for seed in range(2)]
        try:
            for _ in range(LOOKS):
                report = world.check(quiescent)
                assert report.clean, str(report)
        finally:
            enough.set()
    for one in working:
        one.result()
    report = world.check()
    assert report.clean, str(report)


# --- v1 ---------------------------------------------------------------------------------------
@pytest.fixture
def hosted() -> World:
    """A world of v1 with two objects that the master placed in segment 0, and a dead slot that still names pages."""
    world = World("host")
    base = world.geometry.offsets["heap_base"]
    for slot, (first, nbytes) in enumerate([(0, 5000), (2, 12000), (0, 5000)]):
        machine = world.machines[0]
        epoch = machine.install(digest(slot), Place(0, slot, 0, base + first * PAGE, nbytes), 0, RAW, 1)
        if slot == 2:
            assert machine.kill(0, slot, WRITING.value, epoch) == WRITING.value | epoch << 32
        else:
            assert machine.commit(Place(0, slot, epoch)) == Status.OK
    return world


def test_host_mode_is_clean_without_lists_or_a_directory(hosted: World) -> None:
    report = hosted.check()
    assert report.clean, str(report)
    assert report.objects == 2 and report.mode == "host"


def test_host_mode_finds_objects_that_share_pages(hosted: World) -> None:
    hosted.views[0].headers["payload_base"][1] -= np.uint64(PAGE)
    assert [f.invariant for f in hosted.check().breaches] == ["I1"]


def test_host_mode_counts_pages_of_bytes_and_not_of_classes(hosted: World) -> None:
    # page 5 is beyond the three pages of object 1, and inside the extent that v2 would have given it
    machine, base = hosted.machines[0], hosted.geometry.offsets["heap_base"]
    machine.commit(Place(0, 3, machine.install(digest(3), Place(0, 3, 0, base + 5 * PAGE, 100), 0, RAW, 1)))
    assert hosted.check().clean


def test_host_mode_finds_a_key_with_two_objects(hosted: World) -> None:
    machine, base = hosted.machines[0], hosted.geometry.offsets["heap_base"]
    machine.commit(Place(1, 0, machine.install(digest(0), Place(1, 0, 0, base, 100), 0, RAW, 1)))
    assert {f.invariant for f in hosted.check().breaches} == {"I4"}


# --- the report -------------------------------------------------------------------------------
def test_a_report_names_places_in_runs_and_stays_short(world: World) -> None:
    world.views[0].directory[:] = 4
    (finding,) = [f for f in world.check().breaches if f.rank == 0 and f.invariant == "I10"]
    assert finding.where == f"entries 0-{len(world.views[0].directory) - 1}"
    world.views[0].directory[:] = 0
    world.views[0].directory[::2] = 4
    (finding,) = [f for f in world.check().breaches if f.rank == 0 and f.invariant == "I10"]
    assert finding.where.startswith("entries 0, 2, 4") and finding.where.endswith("more")

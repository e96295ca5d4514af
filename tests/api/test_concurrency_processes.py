"""Processes on one world of shared memory: random work, and SIGKILL at any moment.

The process of the test is rank 0. It keeps anchors: objects in each segment that no rank removes, and whose bytes must
be intact after every kill. Only the first test pins at random; readers killed between two steps of pinning are a
scenario of `nanokv check` (swept-pins). Pins that a victim *holds* when it is killed are taken away, and are held here.
"""

import random
from collections.abc import Callable, Iterator

import pytest

from nanokv.check.machine.concurrency import check_room
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.machine.rank_process import RankProcess, wait_until
from nanokv.check.machine.ranks import RankOptions, attach
from nanokv.errors import KeyNotFound
from nanokv.fsck import Report, check_cache
from tests.support.concurrency_workers import Worker
from tests.support.plain_world import PAGE

PAGES = 32
KEYS = 6
CHILDREN = (1, 2, 3)
STEPS = 1500
CALLS, HAMMER = "run_until_told", "hammer_until_told"
KILLS = 7
ANCHOR = 1000  #: anchors have keys beyond those of the workers
HELD = 2000

Start = Callable[[int], RankProcess]


class Processes:
    """A world of four ranks: this process, and three others."""

    def __init__(self, world: str, *, evict: bool, pins: bool) -> None:
        self.options = RankOptions(world, 1 + len(CHILDREN), PAGES * PAGE, PAGE, evict, seed=0, keys=KEYS, pins=pins)
        self.children = {rank: self.start(rank, rank) for rank in CHILDREN}
        self.cache = attach(0, self.options)
        for child in self.children.values():
            assert child.arrive() == (1, False)

    def start(self, rank: int, seed: int) -> RankProcess:
        return RankProcess(Worker, rank, self.options._replace(seed=seed))

    def report(self) -> Report:
        self.cache.flush()
        return check_cache([self.cache], patience=0.0)

    def findings(self, but: int | None = None) -> list[str]:
        """The findings of fsck, except those that only the dead rank `but` can settle when it attaches again.

        These are the ones in its segment, its activity words elsewhere, and entries of objects that it was about to
        put into its own segment.
        """
        found = [str(finding) for finding in self.report().findings if finding.rank != but]
        waits = ("TENTATIVE", f"activity of rank {but}") if but is not None else ()
        return [finding for finding in found if not any(what in finding for what in waits)]

    def put_anchors(self) -> None:
        for rank in range(self.cache.world_size):
            self.cache.put(name(ANCHOR + rank), payload(ANCHOR + rank, rank, 40), preferred_segment=rank)

    def check_anchors(self) -> None:
        """The anchors are intact; without eviction none is missing."""
        for rank in range(self.cache.world_size):
            try:
                assert check_payload(ANCHOR + rank, self.cache.get(name(ANCHOR + rank))) == rank
            except KeyNotFound:
                assert self.options.evict

    def end(self) -> None:
        for child in self.children.values():
            child.end()
        self.cache.close()


MakeProcesses = Callable[..., Processes]


@pytest.fixture
def processes(shm_name: str) -> Iterator[MakeProcesses]:
    made: list[Processes] = []

    def make(**options: bool) -> Processes:
        made.append(Processes(shm_name, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def assert_all_comes_back(world: Processes) -> None:
    """Once all objects are removed, every segment has room for the largest one."""
    for child in world.children.values():
        child.ask("clear")
    world.cache.clear()
    for key in [*range(KEYS), *range(ANCHOR, ANCHOR + 4)]:
        if world.cache.exists(name(key)):
            check_payload(key, world.cache.get(name(key)))
            world.cache.remove(name(key))
    check_room([world.cache])
    assert world.findings() == []


@pytest.mark.parametrize("evict", [False, True])
def test_random_work_of_processes(processes: MakeProcesses, evict: bool) -> None:
    world = processes(evict=evict, pins=True)
    for child in world.children.values():
        child.send("run", STEPS)
    counts = [child.answer() for child in world.children.values()]
    for step in ("put", "get", "remove", "pin", "plan", "DuplicateKey", "KeyNotFound"):
        assert sum(count.get(step, 0) for count in counts) > 0, f"{step} never happened: {counts}"
    assert not any(count.get("PeerLost") for count in counts)
    assert [child.ask("check") for child in world.children.values()] == ["", "", ""]
    assert world.findings() == []
    assert_all_comes_back(world)
    for child in world.children.values():
        child.ask("close")


def kill_at_work(world: Processes, victim: int, work: str, steps: int) -> None:
    """All ranks work; the victim is killed after some steps, at any instruction; the others go on."""
    for child in world.children.values():
        child.send(work)
    wait_until("the victim's work", lambda: world.children[victim].steps >= steps)
    world.children[victim].kill()
    survivors = {child: child.steps for rank, child in world.children.items() if rank != victim}
    wait_until("the survivors' work", lambda: all(child.steps > at + 50 for child, at in survivors.items()))
    world.check_anchors()
    done = [child.stop() for child in survivors]
    assert work != HAMMER or [wrong for *_, wrong in done] == [0] * len(done)
    wait_until("reclaiming", lambda: not world.findings(but=victim), world.report)


def bring_back(world: Processes, victim: int, seed: int) -> None:
    """The victim attaches again, to the segment that it left."""
    world.children[victim] = world.start(victim, seed)
    incarnation, recovered = world.children[victim].arrive()
    assert incarnation > 1 and recovered
    wait_until("recovery", lambda: not world.findings(), world.report)
    world.check_anchors()
    assert [child.ask("check") for child in world.children.values()] == ["", "", ""]


@pytest.mark.parametrize(
    "work, evict", [(CALLS, False), (HAMMER, True), pytest.param(HAMMER, False, marks=pytest.mark.exhaustive)]
)
def test_survivors_of_sigkill_go_on(processes: MakeProcesses, work: str, evict: bool) -> None:
    world = processes(evict=evict, pins=False)
    world.put_anchors()
    dice = random.Random(7 + evict)
    for kill in range(KILLS):
        victim = dice.choice(CHILDREN)
        if not evict:
            held = name(ANCHOR + dice.randrange(4))
            world.children[victim].ask("hold", held, name(HELD + kill), dice.randrange(4))
        kill_at_work(world, victim, work, world.children[victim].steps + dice.randint(1, 300))
        bring_back(world, victim, 100 * kill)
    assert_all_comes_back(world)

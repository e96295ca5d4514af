"""Scenarios of the announce ring, the index and the directory's limits."""

from functools import partial

from nanokv.check.protocol.model.scenario import PAGE, A, B, C, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol import ring
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import (
    ANN_HEAD,
    COUNT_MISSED,
    READY,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    STORED,
    WORD,
    unpack,
)


# --- the ring alone ---------------------------------------------------------------------------
def _lives(hints: list[int]) -> list[tuple[int, int]]:
    """The header slots and epochs of hints."""
    return [(int(unpack("RING", "header", hint)), int(unpack("RING", "epoch", hint))) for hint in hints]


def _subject(world: SmallWorld, slot: int) -> int:
    """The address of the word that the hints of a slot are about: it holds the epoch that was announced last."""
    return world.address("heap_base") + slot * PAGE


def _announce(world: SmallWorld, slot: int, *, stores: bool) -> None:
    """Announce two epochs of a slot. `stores`: the subject first."""
    for epoch in (1, 2):
        if stores:
            world.store(_subject(world, slot), epoch, "relaxed")
        world.on_segment(ring.announce)(STORED.value, slot, epoch)
        world.ended()


def _announce_run(world: SmallWorld) -> None:
    """Announce slots 0 and 1 by one run, of which a third member has no hint. The subjects first."""
    hints = world.address("heap_base", rank=1)
    said = [STORED.value | slot << RING_HEADER_SHIFT.value | 1 << RING_EPOCH_SHIFT.value for slot in (0, 1)]
    for at, word in enumerate((said[0], Status.DUPLICATE << RING_HEADER_SHIFT.value, said[1])):
        world.store(hints + at * WORD, word, "relaxed")
    for slot in (0, 1):
        world.store(_subject(world, slot), 1, "relaxed")
    world.on_segment(ring.announce_run)(hints, WORD, 3, 2)
    world.ended()


def _consume(world: SmallWorld, rounds: int, *, loads: bool) -> None:
    """Drain the ring. `loads`: the subject of each hint must be there."""
    tail = 0
    for _ in range(rounds):
        drained = world.machine().drain(0, tail, 8)
        tail = drained.hole
        hints = drained.hints.tolist()
        world.results["taken"].extend(hints)
        for slot, epoch in _lives(hints) if loads else []:
            seen = world.load(_subject(world, slot), "relaxed")
            expect(seen >= epoch, f"a hint about epoch {epoch} was taken, and its subject is {seen} still")
        world.ended()


def _taken_once(world: SmallWorld) -> None:
    hints = world.results["taken"]
    taken = _lives(hints)
    expect(len(set(taken)) == len(taken), f"a hint was taken twice: {taken}")
    expect(all(slot < 3 and epoch in (1, 2) for slot, epoch in taken), f"a hint that nobody gave: {taken}")
    expect(all(unpack("RING", "kind", hint) == STORED.value for hint in hints), "a hint without kind")


@Scenario(
    "ring",
    "three announce into two slots, one dies with a ticket, one drains",
    small(ring=2, ranks=2),
    _taken_once,
    mortal=("producer1",),
    rests=False,
)
def _three_announce(world: SmallWorld) -> None:
    world.results["taken"] = []
    for slot in range(3):
        world.spawn(f"producer{slot}", partial(_announce, world, slot, stores=True), rank=slot if slot else None)
    world.spawn("host", partial(_consume, world, 4, loads=True))


def _all_counted(world: SmallWorld) -> None:
    newest = world.simulation.memory.newest
    slots = [newest(world.address("ann_base") + at * WORD) for at in range(world.geometry.ann_capacity)]
    left, missed, taken = sum(map(bool, slots)), newest(world.address() + COUNT_MISSED.value), world.results["taken"]
    expect(all(epoch in (1, 2) for _, epoch in _lives(taken)), f"a hint that nobody gave: {taken}")
    expect(len(taken) + left + missed == 4, f"4 hints: {len(taken)} taken, {left} left, {missed} counted as missed")


@Scenario(
    "ring-count", "each hint is taken, is left, or is counted as missed", small(ring=2), _all_counted, rests=False
)
def _two_announce(world: SmallWorld) -> None:
    world.results["taken"] = []
    for slot in range(2):
        world.spawn(f"producer{slot}", partial(_announce, world, slot, stores=False))
    world.spawn("host", partial(_consume, world, 3, loads=False))


def _run_counted(world: SmallWorld) -> None:
    _taken_once(world)
    _all_counted(world)
    tickets = world.simulation.memory.newest(world.address() + ANN_HEAD.value)
    expect(tickets == 4, f"{tickets} tickets for 4 hints")


@Scenario(
    "ring-run", "a run of hints beside two single ones; one drains", small(ring=2, ranks=2), _run_counted, rests=False
)
def _run_announces(world: SmallWorld) -> None:
    world.results["taken"] = []
    world.spawn("run", partial(_announce_run, world))
    world.spawn("producer", partial(_announce, world, 2, stores=True))
    world.spawn("host", partial(_consume, world, 4, loads=True))


# --- the poller and its index -----------------------------------------------------------------
@Scenario(
    "polled",
    "the poller keeps its index while objects come and go in reused slots, and the ring overflows",
    small(objects=2, ring=2, ranks=2),
    prepare=stored(B),
    mortal=("producer",),
    hosted=True,
)
def _poll(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.poller(), 4))
    world.spawn("producer", lambda: (world.put(A, 1, rank=1), world.remove(A, rank=1)), rank=1)
    world.spawn("other", lambda: (world.put(C, 2), world.remove(B)))


# --- a directory and an arena that are too small ----------------------------------------------
def _entries_suffice(world: SmallWorld) -> None:
    answers = {A: world.results["one"], C: world.results["two"]}
    expect(set(answers.values()) <= {Status.OK, Status.NO_ENTRY}, f"{answers}")
    expect(Status.OK in answers.values(), "no put got the last entry")
    for key, status in answers.items():
        expect(world.find(key) == (Status.OK if status == Status.OK else Status.MISS), f"key {key} after {status!r}")
    for key, status in answers.items():
        if status != Status.OK:
            expect(world.put(key, 3, 1) == Status.OK, "I9: an entry that is free cannot be used")


@Scenario(
    "directory-full",
    "two puts for the last entry, a removal",
    small(objects=6),
    _entries_suffice,
    stored(7, 9, 11, words=0),  # three of the four entries are taken (`SMALL`)
)
def _last_entry(world: SmallWorld) -> None:
    world.spawn("one", lambda: world.put(A, 1, 1))
    world.spawn("two", lambda: world.put(C, 2, 1))
    world.spawn("remover", lambda: world.remove(7))


def _full_is_an_answer(world: SmallWorld) -> None:
    for key, name in ((A, "one"), (C, "two")):
        answer = world.results[name]
        expect(answer in (Status.OK, Status.NO_HEADER, Status.FULL), f"{answer!r}")
        expect(world.find(key) == (Status.OK if answer == Status.OK else Status.MISS), f"key {key} after {answer!r}")
        if answer == Status.OK:
            expect(world.remove(key) == Status.OK, "a key that was put cannot be removed")
    expect(world.put(9, 3, 8) == Status.OK, "I9: freed pages cannot be used")


@Scenario(
    "full",
    "two puts into a heap with one page and slot left, a removal",
    small(1, 1),
    _full_is_an_answer,
    stored(B),
)
def _no_slots(world: SmallWorld) -> None:
    world.spawn("one", lambda: world.put(A, 1))
    world.spawn("two", lambda: world.put(C, 2))
    world.spawn("remover", lambda: world.remove(B))


# --- eviction by the host ---------------------------------------------------------------------
@Scenario("host-evicts", "a host removes what it sees in the headers, as soon as it is there", small(2, 2))
def _host_evicts(world: SmallWorld) -> None:
    def evict() -> None:
        machine = world.machine()
        for _ in range(3):
            headers = machine.headers(0, 0, 2)
            for slot in range(2):
                if headers[slot]["state"] == READY.value:
                    machine.remove_slot(0, slot, int(headers[slot]["epoch"]))
            world.ended()

    world.spawn("producer", lambda: (world.put(A, 1), world.put(C, 2, 8)))
    world.spawn("host", evict)


# --- two segments -----------------------------------------------------------------------------
def _one_across(world: SmallWorld) -> None:
    one, two, removed = (world.results[name] for name in ("one", "two", "remover"))
    stored_both = [one, two].count(Status.OK)
    expect(stored_both >= 1, f"{one!r} and {two!r} for puts of one key")
    expect(stored_both == 1 or removed == Status.OK, "two puts of one key, and nobody removed it")


@Scenario("across", "two put one key into different segments, one removes", small(2, 2, ranks=2), _one_across)
def _across(world: SmallWorld) -> None:
    world.spawn("one", lambda: world.put(A, 1, rank=0, owner=0))
    world.spawn("two", lambda: world.put(A, 2, rank=1, owner=1), rank=1)
    world.spawn("remover", lambda: world.remove(A, rank=1), rank=1)

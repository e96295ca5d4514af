"""Scenarios of the announce ring, the index and the directory's limits."""

from nanokv.check.model.scenario import PAGE, Scenario, expect, small
from nanokv.check.model.small_world import Stage
from nanokv.device.protocol import ring
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import COUNT_MISSED, READY, STORED, WORD, unpack

A, B, C = 1, 3, 5  #: keys


# --- the ring alone ---------------------------------------------------------------------------
def _announce(stage: Stage) -> None:
    announce = stage.function(ring.announce)
    world, seg = stage.world.table(0), stage.world.bases[0]
    taken: list[int] = []
    stage.results["taken"] = taken
    load, store = (stage.simulation.vocabulary[name] for name in ("load64", "store64"))
    at = seg + stage.geometry.offsets["heap_base"]

    def producer(slot: int) -> None:
        for epoch in (1, 2):
            store(at + slot * PAGE, epoch, "relaxed")
            announce(world, seg, STORED.value, slot, epoch)
            stage.ended()

    def consumer() -> None:
        tail = 0
        for _ in range(4):
            drained = stage.machine().drain(0, tail, 8)
            tail = drained.hole
            taken.extend(drained.hints.tolist())
            for slot, epoch in _said(drained.hints.tolist()):
                seen = load(at + slot * PAGE, "relaxed")
                expect(seen >= epoch, f"a hint about epoch {epoch} was taken, and what it is about is {seen} still")
            stage.ended()

    for slot in range(3):
        stage.spawn(f"producer{slot}", lambda slot=slot: producer(slot), rank=slot if slot else None)  # type: ignore[misc]
    stage.spawn("host", consumer)


def _said(hints: list[int]) -> list[tuple[int, int]]:
    """The header slots and epochs of hints."""
    return [(int(unpack("RING", "header", said)), int(unpack("RING", "epoch", said))) for said in hints]


def _taken_once(stage: Stage) -> None:
    taken = _said(stage.results["taken"])
    expect(len(set(taken)) == len(taken), f"a hint was taken twice: {taken}")
    expect(all(slot < 3 and epoch in (1, 2) for slot, epoch in taken), f"a hint says what nobody said: {taken}")
    expect(all(unpack("RING", "kind", said) == STORED.value for said in stage.results["taken"]), "a hint without kind")


RING = Scenario(
    "ring",
    "three announce into two slots, one dies with a ticket, one drains",
    small(ring=2, ranks=2),
    _announce,
    _taken_once,
    mortal=("producer1",),
    rests=False,
)


def _announce_all(stage: Stage) -> None:
    announce = stage.function(ring.announce)
    world, seg = stage.world.table(0), stage.world.bases[0]
    taken: list[int] = []
    stage.results["taken"] = taken

    def consume() -> None:
        tail = 0
        for _ in range(3):
            drained = stage.machine().drain(0, tail, 8)
            tail = drained.hole
            taken.extend(drained.hints.tolist())
            stage.ended()

    def produce(slot: int) -> None:
        for epoch in (1, 2):
            announce(world, seg, STORED.value, slot, epoch)
            stage.ended()

    for slot in range(2):
        stage.spawn(f"producer{slot}", lambda slot=slot: produce(slot))  # type: ignore[misc]
    stage.spawn("host", consume)


def _all_counted(stage: Stage) -> None:
    newest, seg = stage.simulation.memory.newest, stage.world.bases[0]
    slots = [newest(seg + stage.geometry.offsets["ann_base"] + at * WORD) for at in range(stage.geometry.ann_capacity)]
    left, missed, taken = sum(map(bool, slots)), newest(seg + COUNT_MISSED.value), stage.results["taken"]
    expect(all(epoch in (1, 2) for _, epoch in _said(taken)), f"a hint says what nobody said: {taken}")
    expect(len(taken) + left + missed == 4, f"4 hints: {len(taken)} taken, {left} left, {missed} counted as missed")


RING_COUNT = Scenario(
    "ring-count",
    "each hint is taken, is left, or is counted as missed",
    small(ring=2),
    _announce_all,
    _all_counted,
    rests=False,
)


# --- the poller and its index -----------------------------------------------------------------
def _poll(stage: Stage) -> None:
    poller = stage.poller()

    def body() -> None:
        for step in range(4):
            poller.step(step)
            stage.ended()

    stage.spawn("host", body)
    stage.spawn("producer", lambda: (stage.put(A, 1, rank=1), stage.remove(A, rank=1)), rank=1)
    stage.spawn("other", lambda: (stage.put(C, 2), stage.remove(B)))


def _put_b(stage: Stage) -> None:
    expect(stage.put(B, 1) == Status.OK, "prepare")


POLLED = Scenario(
    "polled",
    "the poller keeps its index while objects come and go in reused slots, and the ring overflows",
    small(objects=2, ring=2, ranks=2),
    _poll,
    prepare=_put_b,
    mortal=("producer",),
    hosted=True,
)


# --- a directory and an arena that are too small ----------------------------------------------
def _crowd(stage: Stage) -> None:
    """Three of the four entries are taken (`SMALL`)."""
    for key in (7, 9, 11):
        expect(stage.put(key, 1, 0) == Status.OK, "prepare")


def _last_entry(stage: Stage) -> None:
    stage.spawn("one", lambda: stage.put(A, 1, 1))
    stage.spawn("two", lambda: stage.put(C, 2, 1))
    stage.spawn("remover", lambda: stage.remove(7))


def _entries_suffice(stage: Stage) -> None:
    said = [stage.results["one"], stage.results["two"]]
    expect(set(said) <= {Status.OK, Status.NO_ENTRY}, f"{said}")
    expect(Status.OK in said, "nobody got the last entry")
    for key, status in zip((A, C), said, strict=True):
        expect(stage.find(key) == (Status.OK if status == Status.OK else Status.MISS), f"key {key} after {status!r}")
    lacking = [key for key, status in zip((A, C), said, strict=True) if status != Status.OK]
    for key in lacking:
        expect(stage.put(key, 3, 1) == Status.OK, "I9: an entry that is free cannot be used")


DIRECTORY_FULL = Scenario(
    "directory-full", "two puts for the last entry, a removal", small(objects=6), _last_entry, _entries_suffice, _crowd
)


def _no_slots(stage: Stage) -> None:
    stage.spawn("one", lambda: stage.put(A, 1))
    stage.spawn("two", lambda: stage.put(C, 2))
    stage.spawn("remover", lambda: stage.remove(B))


def _full_is_an_answer(stage: Stage) -> None:
    for key, name in ((A, "one"), (C, "two")):
        said = stage.results[name]
        expect(said in (Status.OK, Status.NO_HEADER, Status.FULL), f"{said!r}")
        expect(stage.find(key) == (Status.OK if said == Status.OK else Status.MISS), f"key {key} after {said!r}")
        if said == Status.OK:
            expect(stage.remove(key) == Status.OK, "a key that was put cannot be removed")
    expect(stage.put(9, 3, 8) == Status.OK, "I9: what was freed cannot be used")


SLOTS_FULL = Scenario(
    "full",
    "two puts into a heap with one page and slot left, a removal",
    small(1, 1),
    _no_slots,
    _full_is_an_answer,
    _put_b,
)


# --- eviction by the host ---------------------------------------------------------------------
def _host_evicts(stage: Stage) -> None:
    def evict() -> list[Status]:
        machine, said = stage.machine(), []
        for _ in range(3):
            headers = machine.headers(0, 0, 2)
            for slot in range(2):
                if headers[slot]["state"] == READY.value:
                    said.append(Status(machine.remove_slot(0, slot, int(headers[slot]["epoch"]))))
            stage.ended()
        return said

    stage.spawn("producer", lambda: (stage.put(A, 1), stage.put(C, 2, 8)))
    stage.spawn("host", evict)


HOST_EVICTS = Scenario(
    "host-evicts", "a host removes what it sees in the headers, as soon as it is there", small(2, 2), _host_evicts
)


# --- two segments -----------------------------------------------------------------------------
def _across(stage: Stage) -> None:
    stage.spawn("one", lambda: stage.put(A, 1, rank=0, owner=0))
    stage.spawn("two", lambda: stage.put(A, 2, rank=1, owner=1), rank=1)
    stage.spawn("remover", lambda: stage.remove(A, rank=1), rank=1)


def _one_across(stage: Stage) -> None:
    one, two, removed = (stage.results.get(name) for name in ("one", "two", "remover"))
    if removed is not None and two is not None:
        stored = [one, two].count(Status.OK)
        expect(stored >= 1, f"{one!r} and {two!r} for puts of one key")
        expect(stored == 1 or removed == Status.OK, "two puts of one key, and nobody removed it")


ACROSS = Scenario(
    "across",
    "two put one key into different segments, one removes",
    small(2, 2, ranks=2),
    _across,
    _one_across,
)

SCENARIOS = [RING, RING_COUNT, POLLED, DIRECTORY_FULL, SLOTS_FULL, HOST_EVICTS, ACROSS]

"""The soak: a short one holds, and each of its verdicts can fail."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nanokv.allocation import producer
from nanokv.check.machine.rank_process import RankProcess
from nanokv.check.machine.soak import memory
from nanokv.check.machine.soak.memory import MIB, Sample, Trend, sample_folder
from nanokv.check.machine.soak.objects import HALF_PAGES, KEYS, bytes_of, check_object, make_object, new_version
from nanokv.check.machine.soak.probes import ProbeReport, Suspect
from nanokv.check.machine.soak.run import LEAST_ROUNDS, SoakWorld, run_soak
from nanokv.check.machine.soak.work import PAGE, Done, Ledger, SoakWorker
from nanokv.check.report import CheckFailure, Row, telling
from nanokv.device.machines.base import Machine
from nanokv.heap.shm import list_worlds
from nanokv.space import make_room as rooms
from nanokv.space.coalesce import join_free_extents
from nanokv.space.make_room import _JOIN_PATIENCE as JOIN_PATIENCE
from nanokv.tools.cli import app
from tests.support.faults import Calls, Limits

LEAKED: list[bytes] = []


# --- ranks with a fault -----------------------------------------------------------------------
class Leaking(SoakWorker):
    """Each put keeps 300 KB for ever."""

    def put(self) -> None:
        LEAKED.append(b"x" * 300_000)
        super().put()


class Corrupting(SoakWorker):
    """One byte of each fifth object is wrong."""

    def new(self, key: int) -> torch.Tensor:
        tensor = super().new(key)
        if self.versions % 5 == 0:
            tensor[tensor.numel() // 2] ^= 1
        return tensor


class Losing(SoakWorker):
    """Takes an extent out of its list, and keeps it."""

    def settle(self) -> int:
        for size_class, pages in enumerate(self.cache.engine.geometry.class_pages):
            if pages:
                self.cache.engine.machine.detach(self.rank, size_class)
        self.cache.engine.machine.detach_rest(self.rank)
        return super().settle()


class Greedy(SoakWorker):
    """Its puts at quiet moments evict an object more than they need to."""

    def probe(self, count: int) -> ProbeReport:
        put = self.cache.engine.single.put

        def put_and_evict(*arguments: object, **named: object) -> object:
            machine, owner = self.cache.engine.machine, arguments[2]
            assert isinstance(owner, int)
            machine.set_control(owner, "evicted", int(machine.control(owner)[0]["evicted"]) + 1)
            return put(*arguments, **named)  # type: ignore[arg-type]

        self.cache.engine.single.put = put_and_evict  # type: ignore[method-assign, assignment]
        try:
            return super().probe(count)
        finally:  # others of its puts name no owner
            self.cache.engine.single.put = put  # type: ignore[method-assign]


class Hasty(SoakWorker):
    """After FULL its puts at quiet moments evict at once, where no page is free, and join afterwards."""

    def probe(self, count: int) -> ProbeReport:
        rooms._FREE = 1  # a run with a free page costs more than any without one

        def make_room(machine: Machine, owner: int, nbytes: int) -> bool:
            gone = rooms._evict_run(machine, owner, nbytes, machine.geometry.n_pages)
            join_free_extents(machine, owner)
            return gone

        producer.make_room = make_room  # type: ignore[attr-defined]
        return super().probe(count)


class Deaf(SoakWorker):
    """Works on after it was told to stop."""

    def work(self) -> Done:
        while True:
            self.do(self.get)


def rows_by_name(rows: list[Row]) -> dict[str, Row]:
    return dict(zip(("calls", "memory", "pages", "bytes", "room"), rows, strict=True))


def failing(rows: list[Row]) -> list[str]:
    """The rows with a failure."""
    return [name for name, row in rows_by_name(rows).items() if row.failures]


# --- whole soaks ------------------------------------------------------------------------------
def test_a_short_soak_holds() -> None:
    done = CliRunner().invoke(app, ["check", "soak", "--seconds", "2", "--seed", "5", "--json"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["part"] for line in lines] == ["soak"] * 5 and all(line["held"] for line in lines)
    calls, memory, pages, compared, room = lines
    assert "seed 5" in calls["note"] and ", 0 kills" not in calls["note"] and ", 0 evictions" not in calls["note"]
    assert memory["tried"] == 3 * pages["tried"] and pages["tried"] >= LEAST_ROUNDS
    assert compared["tried"] > 1_000_000 and room["tried"] > 50 and " 0 of them in pieces" not in room["note"]


def test_a_process_that_leaks_is_seen() -> None:
    said: list[str] = []
    with telling(said.append):
        rows = run_soak(1, seed=1, worker=Leaking, kills=False)
    assert failing(rows) == ["memory"]
    assert len(said) >= LEAST_ROUNDS and f"round {LEAST_ROUNDS}," in said[LEAST_ROUNDS - 1]
    assert not [world for world in list_worlds() if world.startswith(f"nanokv-soak-{os.getpid()}-")]
    assert any("rss grew from" in failure and "--seed 1" in failure for failure in rows[1].failures)


def test_a_wrong_byte_is_seen() -> None:
    rows = run_soak(1, seed=1, worker=Corrupting, kills=False)
    assert failing(rows) == ["bytes"]
    assert "1 wrong bytes, the first at" in rows[3].failures[0]


def test_a_lost_extent_is_seen() -> None:
    rows = run_soak(1, seed=1, worker=Losing, kills=False, patience=1.0)
    assert failing(rows) == ["pages"]
    assert "I2 breach" in rows[2].failures[0] and "pages and 0 slots are lost" in rows[2].failures[0]


def test_an_eviction_without_need_is_seen() -> None:
    rows = run_soak(1, seed=1, worker=Greedy, kills=False)
    assert failing(rows) == ["room"]
    assert "evicted 1 objects after" in rows[4].failures[0] and "were free, in extents of" in rows[4].failures[0]


def test_a_put_that_evicts_before_it_joins_is_seen() -> None:
    rows = run_soak(1, seed=1, worker=Hasty, kills=False)
    assert failing(rows) == ["room"]
    assert "objects after" in rows[4].failures[0]


def test_a_rank_that_hangs_ends_the_soak(calls: Calls, limits: Limits) -> None:
    limits(RankProcess, end_seconds=0.1)
    calls.after(SoakWorld, "__init__", lambda *_: limits(RankProcess, patience=1.0))
    rows = run_soak(1, seed=1, worker=Deaf, kills=False)
    assert failing(rows) == ["calls"]
    assert "does not answer work within 1 s" in rows[0].failures[0]


# --- its parts --------------------------------------------------------------------------------
@pytest.mark.parametrize("size", range(len(HALF_PAGES)))
def test_every_byte_counts(size: int) -> None:
    version = new_version(3, 7, size)
    whole = make_object(KEYS - 1, version, PAGE)
    assert check_object(KEYS - 1, whole, PAGE, version) == whole.numel() == bytes_of(version, PAGE)
    for at in (0, 15, 16, whole.numel() // 2, whole.numel() - 1):
        wrong = whole.clone()
        wrong[at] ^= 1
        with pytest.raises(CheckFailure, match=f"key {KEYS - 1}"):
            check_object(KEYS - 1, wrong, PAGE, version)
    for other in (whole[:-1], whole.roll(8), whole.view(torch.int8)):
        with pytest.raises(CheckFailure):
            check_object(KEYS - 1, other, PAGE, version)
    with pytest.raises(CheckFailure, match="not version"):
        check_object(KEYS - 1, whole, PAGE, version + 256)


GROWN = [
    ("rss", 5 * MIB),
    ("objects", 2000),
    ("fds", 3),
    ("threads", 4),
    ("indexed", 1),
    ("files", 1),
    ("file_bytes", 2 * MIB),
]


@pytest.mark.parametrize(("name", "more"), GROWN)
def test_each_thing_that_grows_is_seen(name: str, more: int) -> None:
    start = Sample(rss=100 * MIB, objects=50_000, fds=20, threads=3)
    samples = [start._replace(**{name: getattr(start, name) + more * at // 8}) for at in range(13)]
    trend = Trend.of("rank 0", samples)
    assert trend is not None and [text.split()[2] for text in trend.growth()] == [name]
    assert {name for name, _ in GROWN} == set(memory.BOUNDS) == set(Sample._fields)


def test_a_warm_up_and_one_wild_sample_are_no_growth() -> None:
    flat = Sample(rss=100 * MIB)
    samples = [Sample(), Sample(), Sample(), *[flat] * 9]
    samples[-2] = Sample(rss=500 * MIB)
    trend = Trend.of("rank 0", samples)
    assert trend is not None and trend.growth() == []
    assert Trend.of("rank 0", [flat] * 2) is None


def test_files_are_sampled(tmp_path: Path) -> None:
    (tmp_path / "world").write_bytes(np.ones(8192, np.uint8).tobytes())
    assert sample_folder(tmp_path).files == 1 and sample_folder(tmp_path).file_bytes >= 8192


def test_a_lost_slot_is_seen() -> None:
    whole = Ledger(2, 100, 60, 30, 10, 50, 20, 25, 5)
    assert whole.lost == ""
    assert "0 pages and 1 slots are lost" in whole._replace(free_slots=24).lost
    assert "-1 pages and 0 slots" in whole._replace(used=61).lost


@pytest.mark.parametrize(("seconds", "joined", "excused"), [(1.0, 1, 1), (1.0, 0, 0), (JOIN_PATIENCE / 2, 1, 0)])
def test_only_a_slow_joiner_is_an_excuse(seconds: float, joined: int, excused: int) -> None:
    class Rank:
        asked = 0

        def ask(self, command: str, count: int) -> ProbeReport:
            self.asked += 1
            return ProbeReport(1, 1, 1, 1, [Suspect(2, seconds, "it evicted")])

    world, rank = SoakWorld.__new__(SoakWorld), Rank()
    world.ranks = {0: rank}  # type: ignore[dict-item]
    world.ask_all = lambda command: dict.fromkeys(range(4), joined * rank.asked)  # type: ignore[method-assign]
    report, found = world.probe(0, 1)
    assert len(report.suspects) == 1 and len(found) == excused

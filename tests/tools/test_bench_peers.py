"""NanoKV's peers run and move the right bytes. No duration is looked at."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nanokv.bench.peers import systems
from nanokv.bench.peers.base import Guarantees, Ring, System
from nanokv.bench.peers.copy import Copy
from nanokv.bench.peers.systems import SYSTEMS
from nanokv.bench.peers.turns import EVERY, EXISTS_MANY, ROUND_TRIP, Stamp, Turns
from nanokv.bench.questions import peers
from nanokv.bench.suite.question import Run
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.worlds import Worlds
from nanokv.heap import shm
from tests.support.faults import Calls, Limits
from tests.support.peer_lanes import members, running, wishes

LEFT_OUT = systems.left_out()
ROUNDS, WARM = 15, 3
OURS = ("NanoKV", "NanoKV as Mooncake Store", "shared memory and a flag", "gloo", "copy")
KEYED = {"put", "get", "exists", "remove", EXISTS_MANY}
OPERATIONS = dict.fromkeys(SYSTEMS, KEYED) | {
    "NIXL, reused handle": {"put", "get"},
    "NIXL, new handle": {"put", "get"},
    "shared memory and a flag": {"put", "get"},
    "gloo": {"put", "get", ROUND_TRIP},
    "copy": {"put", "get"},
}


@pytest.fixture(autouse=True)
def _needs_shm() -> None:
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OURS[:1] else pytest.mark.exhaustive) for name in SYSTEMS]
)
def test_a_system_stores_and_returns_bytes(name: str) -> None:
    """The rounds compare what they read; every call of every round has been timed."""
    if name in LEFT_OUT:
        pytest.skip(f"{name}: {LEFT_OUT[name]}")
    with running(wishes(name, 64 << 10)) as one:
        assert one.error is None
        turns = [one.turn(ROUNDS, 60.0, WARM) for _ in range(2)]
        group = one._process.pid
        assert one.error is None
    assert one.error is None and members(group) == []
    for found in turns:
        assert set(found) == OPERATIONS[name]
        for operation, samples in found.items():
            rare = operation in (EXISTS_MANY, ROUND_TRIP)
            assert len(samples) == (-(-ROUNDS // EVERY) if rare else ROUNDS)
            assert min(samples) > 0


def test_what_needs_no_peer_is_never_left_out() -> None:
    assert set(OURS).isdisjoint(LEFT_OUT)
    assert {"nanokv", "torch"} <= set(peers.versions())


def test_the_same_seed_is_the_same_payload() -> None:
    with Copy(Ring(4096, 4)) as one, Copy(Ring(4096, 4)) as other:
        payloads = [Turns(system, 3, control=False)._source for system in (one, other)]
        assert torch.equal(*payloads)
        assert not torch.equal(payloads[0], Turns(other, 4, control=False)._source)


def test_a_stamp_is_in_both_ends() -> None:
    tensor = torch.zeros(17, dtype=torch.uint8)
    stamp = Stamp(tensor)
    stamp.write(258)
    assert stamp.read() == (258, 258) and tensor.tolist() == [2, 1, *[0] * 7, 2, 1, *[0] * 6]
    tensor[9] = 3
    assert stamp.read() == (258, 259)


@pytest.mark.exhaustive
def test_the_question_has_figures_for_those_that_work(tmp_path: Path) -> None:
    settings = Settings(rounds=20, repeats=2, ring_bytes=1 << 20)
    errors: list[str] = []
    said: list[str] = []
    with Worlds() as worlds:
        names = ["copy", "no such system", "shared memory and a flag"]
        run = Run(settings, worlds, said.append)
        figures = list(peers.measure_size(run, names, 1024, errors, control=True))
    cases = [
        {"size": 1024, "operation": operation, "system": system}
        for operation in ("put", "get")
        for system in ("copy", "shared memory and a flag")
    ]
    assert [figure.case for figure in figures] == cases
    for figure in figures:
        assert figure.question == "peers" and figure.unit == "us" and figure.better == "lower"
        assert [one["n"] for one in figure.repetitions] == [20, 20]
        assert str(SYSTEMS[str(figure.case["system"])].guarantees) in figure.note and "torch 2" in figure.note
    assert len(errors) == 1 and errors[0].startswith("no such system, 1 KiB: KeyError")
    assert any("copy, starting" in text for text in said)


def test_the_whole_question_by_its_command(tmp_path: Path, calls: Calls, limits: Limits) -> None:
    limits(peers, SYSTEMS={"copy": Copy})
    calls.answer(systems, "left_out", {})
    from nanokv.bench.__main__ import main

    file = tmp_path / "peers.json"
    counts = ["--quick", "--rounds", "10", "--repeats", "1", "--ring", "1M"]
    assert main(["peers", *counts, "--sizes", "64,1K", "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert [figure["case"] for figure in found["figures"]] == [
        {"size": 1024, "operation": "put", "system": "copy"},
        {"size": 1024, "operation": "get", "system": "copy"},
    ]


def test_a_failure_is_reported_when_all_figures_are_there(calls: Calls, limits: Limits) -> None:
    limits(peers, SYSTEMS={"copy": Copy, "no such system": Copy})
    calls.answer(systems, "left_out", {"copy": "nobody wants it"})
    with Worlds() as worlds:
        found = peers.measure(Run(Settings(sizes=(1024,), rounds=10, repeats=1), worlds, lambda _: None))
        with pytest.raises(peers.PeersFailed, match="no such system, 1 KiB: KeyError"):
            list(found)


def test_sizes_that_are_too_small_are_left_out() -> None:
    assert peers.why_not(Settings(sizes=(64, 1024))) is None
    assert peers.why_not(Settings(sizes=(64,))) == "peers are measured from 1 KiB up"


def test_counts_that_percentiles_need() -> None:
    """Rounds of a turn: p99.9 for small objects, p99 for large ones, and what --rounds says if it is less."""
    per_repetition = {size: peers._rounds(Settings(), size) * peers.TURNS for size in (1024, 1 << 20, 8 << 20)}
    assert per_repetition == {1024: 10_000, 1 << 20: 1000, 8 << 20: 1000}
    assert peers._rounds(Settings(rounds=50), 8 << 20) * peers.TURNS == 50


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert SYSTEMS["Redis"].why_not() == "there is no redis-server (Debian: redis-server)"
    monkeypatch.setattr("nanokv.bench.peers.mooncake._has", lambda library: library != "libibverbs.so.1")
    monkeypatch.setattr(System, "why_not", classmethod(lambda _: None))
    assert SYSTEMS["Mooncake TCP"].why_not() == "libibverbs.so.1 cannot be loaded (Debian: libibverbs1)"


def test_every_system_states_its_guarantees() -> None:
    for name, system in SYSTEMS.items():
        assert system.name == name and all(system.guarantees)
        assert str(system.guarantees).count(";") >= len(Guarantees._fields) - 1

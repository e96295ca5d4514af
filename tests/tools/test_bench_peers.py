"""NanoKV's peers run, move the right bytes, and can fail without taking the others along. No duration is looked at."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanokv.bench.peers import isolation, lane, systems
from nanokv.bench.peers.base import Guarantees, Ring, System, SystemFailed
from nanokv.bench.peers.child import Wishes
from nanokv.bench.peers.copy import Copy
from nanokv.bench.peers.lane import Lane
from nanokv.bench.peers.server import Server
from nanokv.bench.peers.systems import SYSTEMS
from nanokv.bench.peers.turns import BATCH, EVERY, EXISTS_MANY, ROUND_TRIP, Stamp, Turns
from nanokv.bench.questions import peers
from nanokv.bench.suite.environment import child_environment
from nanokv.bench.suite.question import Run
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.worlds import Worlds
from nanokv.heap import shm

LEFT_OUT = systems.left_out()
ROUNDS, WARM = 15, 3
OURS = ("NanoKV", "shared memory and a flag", "gloo", "copy")
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


def wishes(system: str, size: int = 1024, slots: int = BATCH) -> Wishes:
    isolated = isolation.prefix() is not None
    return Wishes(system, size, slots, seed=7, threads=1, control=True, isolated=isolated)


@contextlib.contextmanager
def running(wanted: Wishes) -> Iterator[Lane]:
    one = Lane(wanted)
    try:
        one.wait()
        yield one
    finally:
        one.close()


def members(group: int) -> list[int]:
    """The processes of a process group, without those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("name", SYSTEMS)
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


class Faulty(Copy):
    """A copy with a fault, which begins when `faulty` is set."""

    faulty = ""

    def get_into(self, key: int, tensor: torch.Tensor) -> None:
        super().get_into((key + 1) % self.ring.slots if self.faulty == "another object" else key, tensor)
        if self.faulty == "a changed byte":
            tensor[self.ring.size // 2] += 1
        if self.faulty == "half an object":
            tensor[self.ring.size // 2 :] = 0


@pytest.mark.parametrize("fault", ["another object", "a changed byte", "half an object"])
def test_other_bytes_are_noticed(fault: str) -> None:
    with Faulty(Ring(1024, 8)) as system:
        turns = Turns(system, 1, control=True)
        turns.fill()
        assert set(turns.run(20, 60.0, 1)) == {"put", "get"}
        system.faulty = fault
        with pytest.raises(SystemFailed, match="a read of object"):
            turns.run(20, 60.0, 1)


class Forgetful(Copy):
    """Says that all objects are there, or that none is."""

    says = True

    def exists(self, key: int) -> bool:
        return self.says


@pytest.mark.parametrize("says", [True, False])
def test_a_wrong_answer_to_exists_is_noticed(says: bool) -> None:
    with Forgetful(Ring(1024, 8)) as system:
        system.says = says
        turns = Turns(system, 1, control=False)
        turns.fill()
        with pytest.raises(SystemFailed, match=f"exists does not answer {not says}"):
            turns.check()


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


def test_a_slow_system_has_fewer_samples() -> None:
    with Copy(Ring(1024, 4)) as system:
        turns = Turns(system, 1, control=False)
        turns.fill()
        assert {name: len(samples) for name, samples in turns.run(1000, 0.0, 5).items()} == {"put": 1, "get": 1}


def test_a_crash_is_that_systems_alone() -> None:
    with running(wishes("shared memory and a flag")) as one, running(wishes("copy")) as other:
        group = one._process.pid
        folders = [Path(word) for word in _environment(group, "TMPDIR", "NANOKV_SHM_DIR")]
        assert len(members(group)) == 2 and all(folder.is_dir() for folder in folders)
        os.kill(group, signal.SIGKILL)
        assert one.turn(ROUNDS, 60.0, WARM) == {}
        assert one.error is not None and "signal 9 ended it" in one.error
        assert one.turn(ROUNDS, 60.0, WARM) == {}
        assert members(group) == []
        assert not any(folder.exists() for folder in folders)
        assert len(other.turn(ROUNDS, 60.0, WARM)["put"]) == ROUNDS and other.error is None


def _environment(pid: int, *names: str) -> list[str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return [value for name, _, value in (pair.partition("=") for pair in pairs) if name in names]


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(wishes("copy")) as one:
        group = one._process.pid
        monkeypatch.setattr(lane, "GRACE_SECONDS", 0.2)
        os.kill(group, signal.SIGSTOP)
        assert one.turn(ROUNDS, 0.0, WARM) == {}
        assert one.error is not None and "did not answer" in one.error
        assert members(group) == []


def test_a_system_that_does_not_start_says_why() -> None:
    with running(wishes("no such system")) as one:
        assert one.error is not None and one.error.startswith("KeyError: 'no such system'")
        assert one.turn(ROUNDS, 60.0, WARM) == {}


def test_a_server_that_ends_or_is_late_says_what_it_said(tmp_path: Path) -> None:
    class Starts(Copy):
        command = "print('no room'); raise SystemExit(3)"

        def start(self) -> None:
            server = Server([sys.executable, "-c", self.command], tmp_path / "log", self.stack)
            server.until(lambda: False, seconds=5.0 if "SystemExit" in self.command else 0.1)

    with pytest.raises(SystemFailed, match=r"ended with 3: no room"), Starts(Ring(1024, 4)):
        pass
    Starts.command = "import os; print(os.getpid(), flush=True); import time; time.sleep(60)"
    with pytest.raises(SystemFailed, match="was not ready after 0 s"), Starts(Ring(1024, 4)):
        pass
    said = (tmp_path / "log").read_text()
    assert not said or not Path(f"/proc/{said.strip()}").exists()


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


def test_the_whole_question_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SYSTEMS", {"copy": Copy})
    monkeypatch.setattr(systems, "left_out", dict)
    from nanokv.bench.__main__ import main

    file = tmp_path / "peers.json"
    counts = ["--quick", "--rounds", "10", "--repeats", "1", "--ring", "1M"]
    assert main(["peers", *counts, "--sizes", "64,1K", "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert [figure["case"] for figure in found["figures"]] == [
        {"size": 1024, "operation": "put", "system": "copy"},
        {"size": 1024, "operation": "get", "system": "copy"},
    ]


def test_a_failure_is_reported_when_all_figures_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SYSTEMS", {"copy": Copy, "no such system": Copy})
    monkeypatch.setattr(systems, "left_out", lambda: {"copy": "nobody wants it"})
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


def test_a_network_of_its_own_has_loopback_alone() -> None:
    before = isolation.prefix()
    if before is None:
        pytest.skip("this user cannot make a network namespace")
    program = (
        "import socket; from nanokv.bench.peers import isolation\n"
        "isolation.enter()\n"
        "here = socket.create_server(('127.0.0.1', 50051)); socket.create_connection(here.getsockname(), 5).close()\n"
        "up = [n for _, n in socket.if_nameindex() if isolation._flags(here, n) & isolation._UP]; print(up)"
    )
    command = [*before, sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=child_environment())
    assert done.stdout == "['lo']\n", done.stderr


def test_without_a_network_of_its_own_nothing_listens_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "prefix", lambda: None)
    monkeypatch.setattr("nanokv.bench.peers.mooncake._Mooncake.why_not", classmethod(lambda _: None))
    found = systems.left_out()
    for name in ("Mooncake TCP", "Mooncake shared memory"):
        assert "listens on all interfaces" in found[name]
    assert "copy" not in found and "gloo" not in found


def test_outside_a_network_of_its_own_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.setattr(isolation, "_flags", lambda *_: isolation._UP)
    with pytest.raises(isolation.NotIsolated, match="eth0"):
        isolation.enter()


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


@pytest.mark.parametrize("name", ["gloo", "NIXL, new handle", "Redis"])
def test_what_listens_is_on_loopback_alone(name: str) -> None:
    """They run without a network of their own, too: nothing of them may be reachable from outside."""
    if name in LEFT_OUT:
        pytest.skip(f"{name}: {LEFT_OUT[name]}")
    plain = Wishes(name, 1024, 8, seed=1, threads=1, control=False, isolated=False)
    with running(plain) as one:
        assert one.error is None
        inodes = {link for pid in members(one._process.pid) for link in _sockets(pid)}
        listening = [words for words in _tcp() if words[3] == "0A" and words[9] in inodes]
        assert bool(listening) == (name != "Redis")
        assert {words[1].partition(":")[0] for words in listening} <= {"0100007F"}


def _sockets(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]


def _tcp() -> Iterator[list[str]]:
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        yield from (line.split() for line in Path(file).read_text().splitlines()[1:])

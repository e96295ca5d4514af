"""A peer that lies, crashes, hangs, or could be reached from outside. No duration is looked at."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nanokv.bench.peers import isolation, lane, systems
from nanokv.bench.peers.base import Ring, SystemFailed
from nanokv.bench.peers.child import Wishes
from nanokv.bench.peers.copy import Copy
from nanokv.bench.peers.server import Server
from nanokv.bench.peers.turns import Turns
from nanokv.bench.suite.environment import child_environment
from nanokv.heap import shm
from tests.support.faults import Limits
from tests.support.peer_lanes import members, running, wishes

LEFT_OUT = systems.left_out()
ROUNDS, WARM = 15, 3


@pytest.fixture(autouse=True)
def _needs_shm() -> None:
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")


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


def test_a_slow_system_has_fewer_samples() -> None:
    with Copy(Ring(1024, 4)) as system:
        turns = Turns(system, 1, control=False)
        turns.fill()
        assert {name: len(samples) for name, samples in turns.run(1000, 0.0, 5).items()} == {"put": 1, "get": 1}


@pytest.mark.exhaustive
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


def test_a_hang_ends(limits: Limits) -> None:
    with running(wishes("copy")) as one:
        group = one._process.pid
        limits(lane, GRACE_SECONDS=0.2)
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
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.setattr(isolation, "_flags", lambda *_: isolation._UP)
    with pytest.raises(isolation.NotIsolated, match="eth0"):
        isolation.enter()


@pytest.mark.exhaustive
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

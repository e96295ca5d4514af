"""`nanokv check nodes`: runs that hold and leave nothing, deliberate bugs that it finds, and what it needs."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanokv.check import command
from nanokv.check.lab.layout import LayoutError, loopback, namespaces
from nanokv.check.nodes import run
from nanokv.check.nodes.faults import FAULTS, Scene
from nanokv.check.report import Row
from nanokv.errors import InvalidArgument
from nanokv.tools.cli import app
from tests.check.test_check_command import one_row
from tests.support.faults import Calls
from tests.support.needed import leave_out

SHORT = "stopped, shorter than timeout"
KILLED_NODE = "killed, started again"
RUN_SECONDS = 400  #: a bound for a busy machine; a run takes about 10 seconds
RUN = CliRunner()

pytestmark = pytest.mark.timeout(RUN_SECONDS + 60)


@pytest.fixture(scope="module", params=run.LINKS)
def link(request: pytest.FixtureRequest) -> str:
    """How the nodes exchange objects. Skips where NIXL is not installed, and need not be."""
    problem = run.lacking(request.param)
    if problem:
        leave_out("nixl", problem)
    return str(request.param)


def failures(rows: list[Row]) -> str:
    """All that failed."""
    return "\n".join(f"{row.name}: {failure}" for row in rows for failure in row.failures)


def can_make_namespaces() -> bool:
    """Whether this user may."""
    try:
        with namespaces(f"probe-{os.getpid()}", ["one"]):
            return True
    except LayoutError:
        return False


def left_behind() -> set[str]:
    """Namespaces and folders of this process's checks: other tests run theirs beside it."""
    own = f"nanokv-check-{os.getpid()}-"
    listed = ""
    if shutil.which("ip") is not None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False, timeout=60).stdout
    folders = Path(tempfile.gettempdir()).glob(f"{own}*")
    return {*re.findall(rf"{own}\S+", listed), *map(str, folders)}


# --- whole runs ---
def test_a_short_run_holds(link: str) -> None:
    before = left_behind()
    rows = run.run_nodes(0.1, seed=3, link=link, faults=[SHORT], apart=False)
    assert not failures(rows)
    place, fault, calls, worlds = rows
    assert all(row.held for row in rows)
    assert place.name == "nodes on LOOPBACK, without namespaces" and "LEFT OUT: link down" in place.note
    assert "seed 3" in place.note
    assert (fault.name, fault.tried) == (SHORT, 1) and calls.tried > 100 and worlds.tried == len(run.NODES)
    assert left_behind() <= before


@pytest.mark.exhaustive
def test_faults_are_survived(link: str) -> None:
    before, apart = left_behind(), link != "mapped" and can_make_namespaces()
    rows = run.run_nodes(45.0, seed=8, link=link)
    assert not failures(rows)
    assert all(row.held for row in rows)
    assert ("network namespaces" in rows[0].name) == apart
    kinds = {fault.name: fault for fault in FAULTS}
    tried = [row for row in rows if row.name in kinds]
    assert len(tried) >= 3
    for row in tried:
        assert "back" in row.numbers
        if kinds[row.name].until_left:
            assert "left" in row.numbers, row
            # in the memory of a node that is stopped all goes on until it leaves
            assert "lost" in row.numbers or (link == "mapped" and not kinds[row.name].kills), row
    assert left_behind() <= before


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mutant", "fault", "says"),
    [
        ("keys-alike", SHORT, r"holds the bytes of key \d+"),
        ("acknowledged-early", SHORT, "not linearizable"),
        ("not-freed", KILLED_NODE, "when all is removed, .* not 0"),
    ],
)
def test_a_deliberate_bug_is_found(link: str, mutant: str, fault: str, says: str) -> None:
    if link == "mapped" and fault == KILLED_NODE:
        pytest.skip(
            "a put in mapped memory takes 0.2 ms, which a kill seldom meets: `check model` kills guests at each step"
        )
    before = left_behind()
    # the first violation ends it: nearly always in the first round, but a producer must die amid a put
    rows = run.run_nodes(400.0, seed=1, link=link, faults=[fault], apart=False, mutant=mutant)
    assert re.search(says, failures(rows)), failures(rows)
    assert not all(row.held for row in rows)
    assert left_behind() <= before


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: it is the beginning of the paths of sockets."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    before = left_behind()
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-m", "nanokv", "check", "nodes", "--seconds", "500"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as check:
        while not list(folder.glob("nanokv-check-*/*.layout/1.0.0.0.calls")):  # until the first threads work
            assert check.poll() is None
            time.sleep(0.05)
        check.send_signal(number)
        _, errors = check.communicate(timeout=60)
    assert check.returncode == command.STOPPED and "stopped: no process" in errors
    end = time.monotonic() + 60.0  # the guard of the namespaces works on
    while (left_behind() - before or list(folder.iterdir())) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_behind() <= before and not list(folder.iterdir())


# --- what is missing ---
def test_an_unknown_fault_is_refused(calls: Calls) -> None:
    calls.answer(run, "lacking", None)
    with pytest.raises(InvalidArgument, match="no fault flood; there are: killed"):
        run.run_nodes(1.0, 0, faults=["flood"])


def test_a_fault_that_cannot_be_had_is_refused(calls: Calls) -> None:
    calls.answer(run, "lacking", None)
    with pytest.raises(InvalidArgument, match="cannot be had here"):
        run.run_nodes(1.0, 0, faults=["no route between two"], apart=False)


def test_without_nixl_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(InvalidArgument, match=r"nodes need ZeroMQ: pip install 'nanokv\[cluster\]'"):
        run.run_nodes(1.0, 0)
    monkeypatch.undo()
    monkeypatch.setattr(run, "_PROBE", "raise ValueError('NIXL is not installed')")
    with pytest.raises(InvalidArgument, match="nodes need NIXL: NIXL is not installed"):
        run.run_nodes(1.0, 0, link="nixl")


@pytest.mark.parametrize("problem", ["nodes need NIXL: it is not installed", None])
def test_all_leaves_it_out_with_a_line(calls: Calls, problem: str | None) -> None:
    asked = calls.instead(command, "run_supervised", one_row)
    calls.answer(run, "lacking", problem)
    done = RUN.invoke(app, ["check", "--all"])
    assert done.exit_code == 0
    assert ("nodes" in asked[0][0]) == (problem is None)
    assert ("nodes: left out: nodes need NIXL: it is not installed" in done.stderr) == (problem is not None)
    RUN.invoke(app, ["check"])
    assert "nodes" not in asked[1][0]


# --- faults and layouts ---
def test_whom_a_fault_cuts_off() -> None:
    kinds = {fault.name: fault for fault in FAULTS}
    scene = Scene(None, None, "a", "b")  # type: ignore[arg-type]
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("b", "c"), ("a", "a")]

    def cut(name: str) -> list[bool]:
        return [kinds[name].is_cut(scene, *pair) for pair in pairs]

    assert cut(KILLED_NODE) == [True, True, True, False, False]
    assert cut("no route between two") == [True, True, False, False, False]
    assert not any(cut("etcd killed, started again"))


def test_a_layout_on_loopback_has_what_it_says() -> None:
    with loopback(f"test-nodes-{os.getpid()}", ["a", "b"]) as layout:
        assert layout.folder.is_dir() and [host.name for host in layout.hosts] == ["a", "b"]
        possible = {fault.name for fault in FAULTS if fault.is_possible(layout)}
        assert "no route between two" not in possible and KILLED_NODE in possible
        assert ("etcd killed, started again" in possible) == (layout.etcd is not None)
        if layout.etcd is not None:
            layout.etcd.kill()
            layout.etcd.start()
    assert not layout.folder.exists()

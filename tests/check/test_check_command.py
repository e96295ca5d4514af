"""`nanokv check`: the table, its exit codes, and its refusals."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanokv.check import command, run
from nanokv.check.command import print_table
from nanokv.check.report import CheckFailure, Row
from nanokv.check.supervised import Began, Event, PartProgress
from nanokv.tools.cli import app
from tests.support.faults import Calls, Limits

RUN = CliRunner()


def rows(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_threads_hold_on_this_machine() -> None:
    done = RUN.invoke(app, ["check", "threads", "--seconds", "1", "--alloc", "device", "--json"])
    assert done.exit_code == 0, done.output
    lines = rows(done.stdout)
    assert [row["part"] for row in lines] == ["threads", "threads"]
    assert all(row["held"] and isinstance(row["tried"], int) and row["tried"] > 0 for row in lines)


def test_the_table_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row("threads", "something", unit="rounds")
    with row.timed():
        row.tried = 3
        raise CheckFailure("I4: two words differ; seed 7")
    assert not print_table([row])
    output = capsys.readouterr().out
    assert "I4: two words differ; seed 7" in output and "1 failures" in output


def test_nothing_tried_is_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert not print_table([Row("threads", "idle")])
    assert "nothing was tried" in capsys.readouterr().out
    assert not print_table([])


def test_what_does_not_hold_is_exit_code_1(calls: Calls) -> None:
    def failing(names: list[str], options: run.Options) -> Iterator[Began | Row]:
        yield Began("threads")
        yield Row("threads", "something", tried=3, failures=["I4"])

    calls.instead(command, "run_supervised", failing)
    assert RUN.invoke(app, ["check", "threads"]).exit_code == 1
    done = RUN.invoke(app, ["check", "threads", "--json"])
    assert done.exit_code == 1 and rows(done.stdout)[0]["failures"] == ["I4"]
    assert "threads, part 1 of 1; this and the rest take 10 s or more" in done.stderr


def test_an_error_of_the_checks_is_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    done = RUN.invoke(app, ["check", "threads", "--device", "there is none"])
    assert done.exit_code == 2 and "ended with" in done.output


def group(pid: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: it is the beginning of the paths of sockets."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_an_interrupted_check_leaves_nothing(folder: Path, number: int) -> None:
    (folder / "shm").mkdir()
    (folder / "tmp").mkdir()
    environment = os.environ | {"NANOKV_SHM_DIR": str(folder / "shm"), "TMPDIR": str(folder / "tmp")}
    command = [sys.executable, "-m", "nanokv", "check", "kills", "--seconds", "500"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as check:
        assert check.stderr is not None
        assert "kills, part 1 of 1" in check.stderr.readline()
        while not list((folder / "shm").glob("nanokv-check-*/*")):  # until there is a world, with its ranks
            assert check.poll() is None
            time.sleep(0.05)
        (child,) = Path(f"/proc/{check.pid}/task/{check.pid}/children").read_text().split()
        assert len(group(int(child))) > 1
        check.send_signal(number)
        _, errors = check.communicate(timeout=60)
    assert check.returncode == 130
    assert errors == "stopped: no process and no world is left\n"
    assert group(int(child)) == []
    assert list((folder / "shm").iterdir()) == [] and list((folder / "tmp").iterdir()) == []


def test_replay() -> None:
    assert RUN.invoke(app, ["check", "--replay", "same-key/weak: plain"]).exit_code == 0
    done = RUN.invoke(app, ["check", "--replay", "same-key: plain"])
    assert done.exit_code == 2 and "a replay string is" in done.output


def test_replay_of_compiled_code() -> None:
    assert RUN.invoke(app, ["check", "--replay", "list/weak/sm_90: plain"]).exit_code == 0
    done = RUN.invoke(app, ["check", "--replay", "list/weak/sm_75: plain"])
    assert done.exit_code == 2 and "there are sm_80, sm_90, sm_100" in done.output


def test_a_mutant_of_ptx() -> None:
    done = RUN.invoke(app, ["check", "--mutant", "ptx:push_marked#2:release>relaxed"])
    assert done.exit_code == 0 and "noticed: CheckFailure" in done.output and "list/weak/sm_90" in done.output
    assert "ptx:barriers:none: no barrier at all" in RUN.invoke(app, ["check", "--mutant", "ptx:list"]).output
    done = RUN.invoke(app, ["check", "--mutant", "ptx:nothing"])
    assert done.exit_code == 2 and "--mutant ptx:list" in done.output


def one_row(names: list[str], _: object) -> Iterator[Event]:
    """What parts tell that are not run."""
    yield Began(names[0])
    yield PartProgress("30 of 600 s")
    yield Row(names[0], "something", tried=3)


def test_compiled_names_the_part(calls: Calls) -> None:
    asked = calls.instead(command, "run_supervised", one_row)
    for arguments in (
        ["--compiled"],
        ["compiled"],
        ["--compiled", "compiled", "--target", "sm_80"],
        ["kills", "--compiled"],
    ):
        assert RUN.invoke(app, ["check", *arguments]).exit_code == 0
    assert [(names, options.target) for names, options in asked] == [
        (["compiled"], "sm_90"),
        (["compiled"], "sm_90"),
        (["compiled"], "sm_80"),
        (["kills", "compiled"], "sm_90"),
    ]
    assert "compiled" in run.PARTS


def test_compiled_code_without_a_compiler_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = RUN.invoke(app, ["check", "--compiled"])
    assert done.exit_code == 2 and "TRITON_INTERPRET is set" in done.output
    monkeypatch.setitem(sys.modules, "triton", None)
    done = RUN.invoke(app, ["check", "--compiled"])
    assert done.exit_code == 2 and "pip install" in done.output and "triton" in done.output


def test_a_soak_must_be_named(calls: Calls, limits: Limits) -> None:
    asked = calls.instead(command, "run_supervised", one_row)
    limits(command, PLAIN_SECONDS=0.0)
    for arguments in ([], ["--all"], ["soak", "--seconds", "600"]):
        done = RUN.invoke(app, ["check", *arguments])
        assert done.exit_code == 0 and "30 of 600 s" in done.stderr
    assert "soak" in run.PARTS and ["soak" in names for names, _ in asked] == [False, False, True]


def test_an_unknown_part_is_refused() -> None:
    done = RUN.invoke(app, ["check", "everything"])
    assert done.exit_code == 2 and "threads" in done.output


def test_without_greenlet_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    for arguments in (["model"], ["--mutant", "no-tag"], ["--mutant", "list"], ["--replay", "same-key/weak: plain"]):
        done = RUN.invoke(app, ["check", *arguments])
        assert done.exit_code == 2 and "pip install 'nanokv[check]'" in done.output


def test_a_row_that_failed_is_not_held() -> None:
    row = Row("part", "name")
    assert not row.held
    row.tried = 1
    assert row.held
    with row.timed():
        raise CheckFailure("it broke")
    assert not row.held and row.failures == ["it broke"] and row.seconds >= 0

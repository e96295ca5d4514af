"""`python -m bench` as a command: what it prints, refuses, and keeps when a question fails or the user ends it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanokv.bench.__main__ import main
from nanokv.bench.questions import sweep
from nanokv.bench.suite.question import Question
from nanokv.bench.suite.record import read
from nanokv.bench.suite.ring import Mismatch
from nanokv.tools.cli import app

ROOT = Path(__file__).parents[2]
SMALL = [
    "--quick",
    "--rounds",
    "6",
    "--sizes",
    "64",
    "--ring",
    "2M",
    "--pages",
    "256",
    "--objects",
    "1500",
    "--heap",
    "local",
]


def bench(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """`python -m bench`, in an 80 columns wide pipe."""
    command = [sys.executable, "-W", "error", "-m", "bench", *arguments]
    environment = os.environ | {"COLUMNS": "80"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, **options)


def test_a_pipe_gets_plain_lines_of_80_columns(tmp_path: Path) -> None:
    done = bench("announce", "pieces", *SMALL, "--json", str(tmp_path / "a.json"))
    out, err = done.communicate(timeout=200)
    assert done.returncode == 0, err
    assert "\x1b" not in out + err
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"busy +NanoKV v2 +\d[\d,.]* \(\d[\d,.]*-\d[\d,.]*\)", out), out
    assert "[1/2] announce: How soon" in err and "[2/2] pieces" in err


@pytest.mark.exhaustive
def test_help_and_list_are_the_same_from_both_commands() -> None:
    for options in (["--list"], ["-h"]):
        shown = []
        for command in (["bench"], ["nanokv", "bench"]):
            done = subprocess.run(
                [sys.executable, "-m", *command, *options],
                cwd=ROOT,
                env=os.environ | {"COLUMNS": "80"},
                capture_output=True,
                text=True,
                timeout=100,
                check=True,
            )
            shown.append(re.sub(r"\s+", " ", done.stdout.replace("python -m bench", "nanokv bench")))
        assert shown[0] == shown[1]
        assert "latency" in shown[0] or options == ["-h"]
    assert any(command.callback and command.callback.__name__ == "bench" for command in app.registered_commands)


def test_help_imports_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "bench", "-h"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported and not imported & {"torch", "numba", "numpy"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["--sizes", "0"],
        ["--sizes", "1G"],
        ["--sizes", "33M"],
        ["--rounds", "0"],
        ["--repeats", "0"],
        ["--ring", "x"],
        ["--json", "/nowhere/at/all.json"],
        ["--html", "."],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err.splitlines()[-1]


def test_a_report_needs_its_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["pieces", *SMALL, "--html", str(tmp_path / "a.html")]) == 2
    assert "pip install 'nanokv[bench]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_question_that_raises_does_not_lose_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(run: Any) -> Any:
        yield from list(sweep.measure(run))[:1]
        raise Mismatch("other bytes")

    monkeypatch.setattr(sweep, "QUESTION", Question("sweep", "?", broken, "!"))
    file = tmp_path / "a.json"
    assert main(["announce", "sweep", "pieces", *SMALL, "--json", str(file)]) == 1
    record = read(file)
    assert [outcome.state for outcome in record.outcomes] == ["done", "failed", "done"]
    assert record.outcomes[1].why == "Mismatch: other bytes"
    assert len(record.of("sweep")) == 1 and record.of("announce") and record.of("pieces")
    printed = capsys.readouterr()
    assert "failed: Mismatch: other bytes" in printed.out and "failed: sweep" in printed.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_keeps_what_was_found(tmp_path: Path, number: int) -> None:
    file = tmp_path / "a.json"
    many = ["--quick", "--rounds", "100000", "--sizes", "64,1K", "--ring", "2M", "--repeats", "3"]
    running = bench("pieces", "latency", "sweep", *many, "--heap", "local", "--json", str(file), start_new_session=True)
    assert running.stderr is not None
    for line in running.stderr:
        if "] latency" in line:
            break
    if number == signal.SIGINT:  # Ctrl-C goes to the whole group
        os.killpg(running.pid, number)
    else:
        running.send_signal(number)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 130, err
    assert "stopped" in err and "not begun: sweep" in err and "Traceback" not in err
    record = read(file)
    assert [outcome.state for outcome in record.outcomes] == ["done", "stopped", "not begun"]
    assert record.of("pieces") and "pieces" in out

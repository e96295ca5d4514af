"""The demo, as a user runs it: real processes, a real model, both allocation modes."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nanokv.tools.demo.prompts import BLOCK_TOKENS, SHARED_TOKENS, make_prompts, whole_blocks
from nanokv.tools.demo.run import DemoResult

pytest.importorskip("transformers", reason="the demo needs the extra nanokv[demo]")

from nanokv.tools.demo import children
from nanokv.tools.demo.children import Crew, DemoFailed
from nanokv.tools.demo.job import ROLES
from nanokv.tools.demo.run import run_demo
from tests.support.faults import Calls, Limits

TOKENS = 8
RUN_SECONDS = 240  #: a bound for a busy machine; a run takes about ten seconds
pytestmark = pytest.mark.timeout(RUN_SECONDS + 60)


def run(**arguments: object) -> tuple[int, str]:
    """Run a small demo without a terminal: its exit code and its output."""
    out = io.StringIO()
    code = run_demo(tokens=TOKENS, console=Console(file=out, width=120), **arguments)  # type: ignore[arg-type]
    return code, out.getvalue()


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No run leaves a name in shared memory or a process."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        monkeypatch.setenv("NANOKV_SHM_DIR", directory)
        yield
        assert not list(Path(directory).iterdir())
    assert not [pid for pid, parent in _all_workers() if parent == os.getpid()]


def _all_workers() -> list[tuple[int, int]]:
    """Process id and parent of every worker on this host."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if "nanokv.tools.demo.worker" in (entry / "cmdline").read_text():
                found.append((int(entry.name), int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])))
        except OSError:
            continue  # it ended meanwhile
    return found


def row(report: str, title: str) -> list[str]:
    """The cells of a row of the table."""
    line = next(line for line in report.splitlines() if title in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")[1:]]


# --- the pieces ---
def test_the_first_two_prompts_share_whole_blocks_and_no_more() -> None:
    first, second = make_prompts(2, 0)
    assert first[:SHARED_TOKENS] == second[:SHARED_TOKENS] and SHARED_TOKENS % BLOCK_TOKENS == 0
    assert first[SHARED_TOKENS:][:BLOCK_TOKENS] != second[SHARED_TOKENS:][:BLOCK_TOKENS]


def test_prompts_end_in_and_at_blocks() -> None:
    ends = [len(prompt) % BLOCK_TOKENS for prompt in make_prompts(3, 0)]
    assert 0 in ends
    assert any(ends)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, ""),
        ({"tokens": [[1, 9]]}, "1 of 2 tokens differ"),
        ({"tokens": [[1]]}, "2 of 2 tokens differ"),
        ({"digests": [["b"]]}, "1 of 1 blocks differ"),
        ({"control": [1, 2]}, "did not change the tokens"),
    ],
)
def test_outcome_complains(changes: dict[str, object], complaint: str) -> None:
    decoded = {"tokens": [[1, 2]], "digests": [["a"]], "control": [1, 3]} | changes
    outcome = DemoResult("device", {}, decoded, [[1, 2]], [["a"]])
    assert len(outcome.complaints) == bool(complaint)
    assert complaint in "".join(outcome.complaints)


# --- whole runs ---
@pytest.mark.exhaustive
def test_both_modes_equal_the_single_process() -> None:
    outcomes: list[DemoResult] = []
    code, report = run(alloc="both", prompts=3, report=outcomes.extend)
    assert code == 0, report
    data = json.loads(json.dumps([outcome.as_dict() for outcome in outcomes]))  # as `nanokv demo --json` prints it
    assert [(each["alloc"], each["equal"], each["complaints"]) for each in data] == [
        ("device", True, []),
        ("host", True, []),
    ]
    assert "\x1b" not in report  # plain text: this is no terminal
    prompts = make_prompts(3, 0)
    blocks = sum(whole_blocks(prompt) for prompt in prompts)
    reused = SHARED_TOKENS // BLOCK_TOKENS
    assert row(report, "blocks put") == [str(blocks - reused)] * 2
    assert row(report, "blocks reused") == [str(reused)] * 2
    assert row(report, "blocks read") == [str(blocks)] * 2
    assert row(report, "objects in the index") == [str(blocks - reused)] * 2
    assert row(report, "tokens equal") == [f"{3 * TOKENS} of {3 * TOKENS}"] * 2
    assert row(report, "KV blocks equal") == [f"{blocks} of {blocks}"] * 2
    assert row(report, "altered block") == ["yes"] * 2
    assert row(report, "announcements drained")[0] == str(blocks - reused)
    assert "Every token and every KV block equals" in report


@pytest.mark.exhaustive
def test_one_altered_byte_is_found() -> None:
    code, report = run(alloc="device", prompts=2, corrupt=17)
    assert code == 1
    blocks = sum(whole_blocks(prompt) for prompt in make_prompts(2, 0))
    assert row(report, "KV blocks equal")[0] != f"{blocks} of {blocks}"
    assert "blocks differ from the single process" in report


@pytest.mark.exhaustive
def test_a_dead_worker_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = Crew.listen

    def listen_and_kill(crew: Crew) -> tuple[str, dict[str, Any]]:
        role, message = listen(crew)
        if message["event"] == "put":  # v1's master is at work, and rank 1 waits for it
            os.kill(crew.pids[ROLES.index("prefill")], signal.SIGKILL)
        return role, message

    monkeypatch.setattr(Crew, "listen", listen_and_kill)
    code, report = run(alloc="host", prompts=2)
    assert code == 1
    assert "the prefill process ended unexpectedly (exit status -9)" in report


def test_a_worker_that_notices_a_death_before_the_parent_is_not_blamed(calls: Calls, limits: Limits) -> None:
    calls.answer(Crew, "_start", None)
    limits(children, NOTICE=60.0)
    with Crew(0) as crew:
        crew._logs["prefill"] = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        killed = crew._processes["prefill"] = subprocess.Popen(["sleep", "600"], text=True)
        crew._inbox.put(("decode", {"event": "failed", "error": "connection closed by peer"}))
        death = threading.Timer(0.1, killed.kill)
        death.start()
        with pytest.raises(DemoFailed, match=r"the prefill process ended unexpectedly \(exit status -9\)"):
            crew.listen()
        death.join()


@pytest.mark.parametrize(
    ("number", "alloc"), [(signal.SIGINT, "device"), (signal.SIGKILL, "host")], ids=["ctrl-c", "killed"]
)
@pytest.mark.exhaustive
def test_an_interrupted_demo_leaves_nothing(number: signal.Signals, alloc: str) -> None:
    # six prompts: on a loaded machine it must not end before the signal arrives
    script = f"from nanokv.tools.demo.run import run_demo; raise SystemExit(run_demo({alloc!r}, 6, 120))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    demo = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    watchdog = threading.Timer(RUN_SECONDS, demo.kill)
    watchdog.start()
    assert demo.stdout is not None
    lines: list[str] = []
    workers: list[int] = []
    with demo, demo.stdout as out:
        for line in out:
            lines.append(line)
            if not workers and "prompt 0:" in line:  # both ranks are at work
                workers = [pid for pid, parent in _all_workers() if parent == demo.pid]
                demo.send_signal(number)
    watchdog.cancel()
    assert demo.returncode == (130 if number == signal.SIGINT else -number), "".join(lines)
    assert (lines[-1] == "interrupted\n") == (number == signal.SIGINT)
    assert len(workers) == len(ROLES)
    assert_ended(workers)


def assert_ended(pids: list[int]) -> None:
    """Wait until none of these processes runs."""
    deadline = time.monotonic() + 30
    while any(pid in pids for pid, _ in _all_workers()):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alloc": "gpu"}, "alloc must be"),
        ({"prompts": 1}, "prompts must be 2 to 64, not 1"),
        ({"prompts": 65}, "prompts must be"),
    ],
)
def test_refuses_what_it_cannot_do(arguments: dict[str, object], message: str) -> None:
    code, report = run(**arguments)
    assert code == 2
    assert message in report


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, report = run()
    assert code == 2
    assert "pip install 'nanokv[demo]'" in report

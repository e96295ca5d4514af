"""Random calls of many threads in a process that reuses no memory unseen; its end amid calls; what many worlds leave.

The programs are those of tests/support/random_callers.py. Memory that is given back is overwritten (MALLOC_PERTURB_),
by Python too (PYTHONMALLOC), and threads take turns each 10 us, so what is used after its end is seen.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanokv.heap import shm
from nanokv.heap.shm import list_worlds

ROOT = Path(__file__).parents[2]
RUNS = 5  #: of a program that ends amid calls
ENDS = (("returns", 0), ("exits", 7))  #: how, and with which code
PATIENCE = 120.0  #: seconds for a program; each takes some
DROPPED = 300  #: worlds
#: what the process may have more after them, in KiB: 30 for each world, of whose heap a rank has 1,024
GROWTH = 8192
#: answers of each kind that must have come
ANSWERS = {
    *("put", "put, exists", "put, DuplicateKey", "put, refused"),
    *("get", "get, KeyNotFound", "get, default", "get, wrong dst"),
    *("get new", "get new, KeyNotFound", "get new, default", "exists", "remove", "remove, KeyNotFound"),
}


@pytest.fixture(autouse=True, scope="module")
def _needs_shm() -> None:
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of random_callers."""
    environment = os.environ | {"MALLOC_PERTURB_": "85", "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.support.random_callers", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program printed; it must have ended well, and have said nothing else."""
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def calls(shm_prefix: str) -> dict[str, Any]:
    """What four threads did and saw in two worlds."""
    return told(run("calls", f"{shm_prefix}-calls"))


def test_each_answer_is_what_was_put(calls: dict[str, Any]) -> None:
    assert calls["wrong"] == []
    assert {name for name, count in calls["done"].items() if count} >= ANSWERS


def test_the_counters_are_exact(calls: dict[str, Any]) -> None:
    assert all(calls["counted"].values())
    assert calls["stats"] == calls["counted"]


def end_amid(what: str, shm_prefix: str) -> None:
    """Daemon threads go on while the main thread ends, with caches that are open: nobody hears of it."""
    for number in range(RUNS):
        name, (how, code) = f"{shm_prefix}-{what}-{number}", ENDS[number % 2]
        done = run("ends", name, how, what)
        assert (done.returncode, done.stdout, done.stderr[-3000:]) == (code, "", "")
        assert name not in list_worlds()


def test_the_end_of_a_process_amid_look_ups_and_removals(shm_prefix: str) -> None:
    end_amid("finds", shm_prefix)


def test_worlds_that_are_gone_leave_nothing(shm_prefix: str) -> None:
    found = told(run("drops", f"{shm_prefix}-drops", str(DROPPED)))
    before, after = found["before"], found["after"]
    assert found["wrong"] == []
    assert (after["lines of the world"], after["threads"]) == (0, 1)
    assert after["references"] == before["references"]
    assert after["files"] <= before["files"]
    assert after["lines"] <= before["lines"] + DROPPED // 10  # of malloc and of threads: some, by chance
    assert after["KiB"] <= before["KiB"] + GROWTH


def test_the_end_of_a_process_amid_puts_and_gets(shm_prefix: str) -> None:
    end_amid("moves", shm_prefix)

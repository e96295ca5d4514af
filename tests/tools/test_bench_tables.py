"""The benchmarks of their own run, at the size of a moment: their output, and what they refuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = {
    "crowd": (["--objects", "3000", "--calls", "50"], "put 3,000 get"),
    "full": (["--puts", "40", "--size", "4K"], "room evicts refused"),
    "replicas": (["--calls", "8"], "put copies replicate remove KiB"),
    "space": (["--turns", "1", "--pages", "1024"], "fragmentation"),
    "sweep": (["--objects", "2000"], "pass index"),
}


def run(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *args],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_runs(name: str) -> None:
    args, words = RUNS[name]
    done = run(name, *args)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words.split()), done.stdout
    assert any(char.isdigit() for char in done.stdout.splitlines()[-2])


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_refuses_what_cannot_be(name: str) -> None:
    done = run(name, RUNS[name][0][0], "0")
    assert done.returncode == 2 and RUNS[name][0][0] in done.stderr.splitlines()[-1]

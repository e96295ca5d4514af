"""A user's kernel fills a plan, and the kernel or the host commits it, with both allocators."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_the_example_commits_and_reads_back(alloc: str) -> None:
    done = subprocess.run(
        [sys.executable, "examples/producer_kernel.py"],
        env=os.environ | {"NANOKV_ALLOC": alloc, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"committed=1, 20000 bytes on rank 1, alloc={alloc}"] * 2

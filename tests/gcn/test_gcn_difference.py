"""Random calls on compiled kernels for gfx942 and on the native machine: the same answers, the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.mark.parametrize("options", [("1",), ("2",), ("3", "--weak")], ids=" ".join)
def test_segments_are_equal_after_each_call(options: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.gcn_difference", "--seed", *options],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.startswith("equal after 150 calls")

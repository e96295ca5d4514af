"""Triton's interpreter and the native code agree on every protocol function, byte by byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.proved("tests.support.conformance"),
    pytest.mark.timeout(1800),
]  # the first test of a group pays for all of it

GROUPS = [
    ("freelist,extent,header", 3),
    pytest.param("freelist,extent,header", 6, marks=pytest.mark.exhaustive),
    pytest.param("directory,claim,ring,activity,pins", 5, marks=pytest.mark.exhaustive),
    pytest.param("joining,joinable,lease,quotas,evict", 5, marks=pytest.mark.exhaustive),
    pytest.param("replicate,put_copied", 4, marks=pytest.mark.exhaustive),
    pytest.param("checksum,retire,put,get,remove,reclaim,host_alloc,host_calls", 6, marks=pytest.mark.exhaustive),
]


def compare(*options: str) -> subprocess.CompletedProcess[str]:
    """Run support/conformance.py in a process of its own: TRITON_INTERPRET is read when a function is decorated."""
    return subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.support.conformance", *options],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.parametrize(("modules", "rounds"), GROUPS)
def test_interpreter_and_native_agree(modules: str, rounds: int) -> None:
    done = compare("--modules", modules, "--rounds", str(rounds))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "compared" in done.stdout


@pytest.mark.parametrize(("module", "function"), [("extent", "class_of"), ("ring", "announce")])
def test_a_planted_bug_is_found(module: str, function: str) -> None:
    """The bug makes `class_of` return other values, and `announce` leave other bytes."""
    done = compare("--modules", module, "--only", function, "--rounds", "10", "--plant")
    assert done.returncode == 1, done.stdout + done.stderr[-3000:]
    assert f"DIFFERS (--modules {module} --only {function} --seed" in done.stdout

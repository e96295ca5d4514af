"""Which of the dear tests CI runs for which sources."""

import subprocess
import sys
from pathlib import Path

from tests.support.share import is_in_share

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
def test_cheap(): pass
@pytest.mark.exhaustive
@pytest.mark.parametrize("n", range(90))
def test_dear(n): pass
"""


def collected(file: Path, *options: str) -> set[str]:
    """The tests that pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--noconftest", "-c", "/dev/null", "-p"]
    done = subprocess.run(
        [*command, "tests.support.share", "--rootdir", file.parent, *options, file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}


def test_a_third_of_the_dear_tests_runs_and_every_other(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    everything, third = collected(file), collected(file, "--one-in", "3")
    assert len(everything) == 91 and "test_cheap" in third
    assert 10 < len(third) < 60 and third < everything
    assert third == collected(file, "--one-in", "3")


def test_other_sources_run_others_and_none_is_left_out_for_ever() -> None:
    tests = [f"tests/a/test_b.py::test_c[{n}]" for n in range(300)]
    of = [{test for test in tests if is_in_share(f"{sources:x}", test, 3)} for sources in range(40)]
    assert len({frozenset(some) for some in of}) == len(of)
    assert set.union(*of) == set(tests)

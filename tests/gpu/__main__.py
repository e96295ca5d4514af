"""`make test-gpu`: run the tests marked `gpu`, and write what happened to bench/results/ as JSON.

Without a GPU it says so and does nothing: that is no failure, and no result either.
"""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

RESULTS = Path(__file__).parents[2] / "bench" / "results"


class Recorder:
    """A pytest plugin: the outcome and the seconds of each test."""

    def __init__(self) -> None:
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
            self.tests.append(row | ({"why": str(report.longrepr)[-2000:]} if report.outcome != "passed" else {}))


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip() if done.stdout else None


def _machine() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or torch.version.hip,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": _first_line("git", "rev-parse", "HEAD"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    """Run, and return pytest's exit status; 0 without a GPU."""
    if not torch.cuda.is_available():
        print("No GPU here: the tests marked `gpu` were not run.")
        return 0
    recorder = Recorder()
    status = int(pytest.main(["-m", "gpu", "-v", *sys.argv[1:]], plugins=[recorder]))
    machine = _machine()
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in machine["device"].lower())
    path = RESULTS / f"gpu-tests-{name}.json"
    path.write_text(json.dumps({"machine": machine, "status": status, "tests": recorder.tests}, indent=1) + "\n")
    print(f"wrote {path}")
    return status


if __name__ == "__main__":
    sys.exit(main())

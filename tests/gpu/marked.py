"""The tests of pytest that need a GPU, as items of the plan: `python -m tests.gpu.marked --items ... --rows FILE`.

They are those marked `gpu`, without the bodies, which run by themselves (`test_gpu_local`). pytest runs here in the
plan's children, with a plugin that writes how each test ended; several children take their share each.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nanokv.bench.gpu.children import leave_if_unusable, write

ROOT = Path(__file__).parents[2]
FILES = ("tests/heap/test_heap_providers.py", "tests/sequences/test_layouts.py")
AT_ONCE = 6
#: no cache: the folder may be read-only; and a warning is no error on a machine with other versions of what we use
OPTIONS = ("-q", "-W", "default", "-p", "no:cacheprovider", "-m", "gpu")


class Rows:
    """A plugin: writes when a test begins, and how it ended."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = 0.0
        self._said: list[str] = []
        self._passed = True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        write(self._file, {"began": nodeid})
        self._start, self._said, self._passed = time.perf_counter(), [], True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed &= not report.failed
        if report.skipped:
            self._said.append(f"skipped: {report.longrepr[2] if isinstance(report.longrepr, tuple) else ''}")
        elif report.failed:
            self._said.append(report.longreprtext)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.perf_counter() - self._start, 2)
        write(self._file, {"name": nodeid, "ok": self._passed, "seconds": seconds, "note": "\n".join(self._said)})
        if not self._passed:
            leave_if_unusable(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))  # type: ignore[no-untyped-call]


class Names:
    """A plugin: keeps the names of the tests that were chosen, of those that one GPU can run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.nodeid for item in session.items if "two GPUs" not in item.nodeid]


def main(arguments: Sequence[str] | None = None) -> int:
    """List or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.marked")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--items", type=json.loads, default=[])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--device", help="is what torch finds")
    parser.add_argument(
        "--toy", action="store_true", help="changes nothing: without a GPU they say that they are skipped"
    )
    given = parser.parse_args(arguments)
    if given.list:
        names = Names()
        code = pytest.main([*OPTIONS, "--collect-only", *(str(ROOT / file) for file in FILES)], plugins=[names])
        print(json.dumps({f"tests-{n}": part for n in range(AT_ONCE) if (part := names.names[n::AT_ONCE])}))
        return int(code)
    return int(pytest.main([*OPTIONS, "--rootdir", str(ROOT), *given.items], plugins=[Rows(given.rows)]))


if __name__ == "__main__":
    sys.exit(main())

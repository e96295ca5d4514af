"""Collects what tests show of a drop-in (`@pytest.mark.surface`), for the table of docs/integrations.md.

A plugin of pytest: `-p tests.integrations.surface_rows`. With NANOKV_SURFACES=FILE a run writes its rows there, as
JSON; `tests.integrations.run` puts them together.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "NANOKV_SURFACES"
_rows: dict[tuple[str, str], dict[str, Any]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Note for each method that a test is about whether it passed."""
    report = yield
    failed = report.outcome == "failed"
    if report.when == "call" or failed:
        for mark in item.iter_markers("surface"):
            _note(*mark.args, **mark.kwargs, passed=report.outcome == "passed", failed=failed)
    return report


def _note(interface: str, method: str, *, passed: bool, failed: bool, differs: str = "", refused: str = "") -> None:
    row = _rows.setdefault((interface, method), {"passed": 0, "failed": 0, "differs": [], "refused": []})
    row["passed"] += passed
    row["failed"] += failed
    for kind, text in (("differs", differs), ("refused", refused)):
        if text and text not in row[kind]:
            row[kind].append(text)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the rows, if a file is named. With several processes each has its own rows, and its own file."""
    path = os.environ.get(VARIABLE)
    if path and _rows:
        rows = [{"interface": interface, "method": method, **row} for (interface, method), row in sorted(_rows.items())]
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        Path(f"{path}{worker and '.' + worker}").write_text(json.dumps(rows, indent=1), encoding="utf-8")

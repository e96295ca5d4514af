"""The table of docs/integrations.md: interface, method, and whether it works, differs, or is refused.

Its rows are what tests have shown (`tests.integrations.surface_rows`), so a method without a test has no row.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MARK = "<!-- what follows is written by make test-integrations -->\n"
HEAD = "| interface | method | verdict | tests |\n|---|---|---|---|\n"


def put_into(page: Path, files: Iterable[Path]) -> None:
    """Write the table into a page, in place of what follows the mark. Raises ValueError if there is no mark."""
    text = page.read_text(encoding="utf-8")
    if MARK not in text:
        raise ValueError(f"{page} has no line {MARK.strip()!r}")
    page.write_text(text[: text.index(MARK) + len(MARK)] + "\n" + written(files), encoding="utf-8")


def written(files: Iterable[Path]) -> str:
    """The table in Markdown, of the rows in these files."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for file in files:
        for row in json.loads(file.read_text(encoding="utf-8")):
            known = rows.setdefault((row["interface"], row["method"]), row | {"passed": 0, "failed": 0})
            for count in ("passed", "failed"):
                known[count] += row[count]
            for kind in ("differs", "refused"):
                known[kind] = list(dict.fromkeys([*known[kind], *row[kind]]))
    return HEAD + "".join(_line(interface, method, row) for (interface, method), row in sorted(rows.items()))


def _line(interface: str, method: str, row: dict[str, Any]) -> str:
    return f"| {interface} | `{method}` | {_verdict(row)} | {row['passed']} |\n"


def _verdict(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"**fails** ({row['failed']} tests)"
    if not row["passed"]:
        return "not run"
    if row["refused"]:
        return "refused: " + "; ".join(row["refused"])
    return "differs: " + "; ".join(row["differs"]) if row["differs"] else "works"

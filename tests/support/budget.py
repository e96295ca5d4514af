"""Budgets: each folder of tests has CPU seconds, in tests/budget.toml; a run that takes more says so, in red.

Counted are the seconds of the process that runs a test and of all processes that it starts, dead or living; not those
of importing and collecting. They are of a run in which no test has a stamp. A machine that does other work counts more
for the same work, up to twice, so nothing fails for it. The seconds of each test are in build/cpu-TIER.txt after a run.
"""

import os
import resource
import time
import tomllib
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("quick", "all")  #: of `make test` and of `make test-all`
DEAREST = 5  #: tests of a folder that are named
_TICK = os.sysconf("SC_CLK_TCK")


class Folder(NamedTuple):
    """What a folder of tests took."""

    seconds: float
    tests: list[tuple[float, str]]  #: tests and their seconds


Taken = dict[str, Folder]


def add(taken: Taken, name: str, seconds: float, tests: list[tuple[float, str]]) -> None:
    """Add seconds to a folder."""
    before = taken.get(name, Folder(0.0, []))
    before.tests.extend(tests)
    taken[name] = Folder(before.seconds + seconds, before.tests)


def ended_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def living_seconds() -> float:
    """CPU seconds of the processes below this one that live, and of their children that have ended."""
    below: dict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        below[int(fields[1])].append(pid)
        seconds[pid] = sum(map(int, fields[11:15])) / _TICK
    waiting, total = below[os.getpid()], 0.0
    while waiting:
        pid = waiting.pop()
        total += seconds[pid]
        waiting += below[pid]
    return total


class Account:
    """Counts the tests of this process; in the controller of xdist, adds up those of the workers."""

    def __init__(self) -> None:
        self.taken: Taken = {}
        self._living = 0.0

    @staticmethod
    def folder_of(path: Path) -> str:
        """`api` for tests/api/test_api.py."""
        return path.relative_to(ROOT / "tests").parts[0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        """Count a test; after the last one of a file, the processes that still live too."""
        before = ended_seconds()
        result = yield
        took = ended_seconds() - before
        add(self.taken, self.folder_of(item.path), took, [(took, item.nodeid)])
        if nextitem is None or nextitem.path != item.path:
            living = living_seconds()
            add(self.taken, self.folder_of(item.path), max(living - self._living, 0.0), [])
            self._living = living
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send a worker's count to the controller, which writes the list."""
        config: Any = session.config
        if hasattr(config, "workerinput"):
            config.workeroutput["taken"] = {name: tuple(of) for name, of in self.taken.items()}
            return
        tier = config.getoption("--budget")
        tests = sorted((test for of in self.taken.values() for test in of.tests), reverse=True)
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / f"cpu-{tier}.txt").write_text("".join(f"{took:8.2f}  {test}\n" for took, test in tests))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker of xdist has counted."""
        for name, (seconds, tests) in getattr(node, "workeroutput", {}).get("taken", {}).items():
            add(self.taken, name, seconds, [tuple(each) for each in tests])

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print a line per folder, and for one beyond its budget the tests that take most."""
        tier = config.getoption("--budget")
        budget = budgets(tier)
        terminalreporter.section(f"CPU seconds of each folder, and its budget ({tier}, tests/budget.toml)")
        lines = [f"{name} {of.seconds:.0f}/{budget.get(name, 0)}" for name, of in sorted(self.taken.items())]
        terminalreporter.line(", ".join(lines))
        for name, of in beyond(self.taken, tier).items():
            terminalreporter.line(f"tests/{name} took {of.seconds:.0f} CPU seconds of {budget.get(name, 0)}:", red=True)
            for seconds, test in sorted(of.tests, reverse=True)[:DEAREST]:
                terminalreporter.line(f"  {seconds:6.1f}  {test}")


def budgets(tier: str) -> dict[str, int]:
    """The budget of each folder in a tier. A folder that has none has no seconds."""
    found: dict[str, dict[str, int]] = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    return {name: of[tier] for name, of in found.items()}


def beyond(taken: Taken, tier: str) -> Taken:
    """The folders that took more than their budget."""
    budget = budgets(tier)
    return {name: of for name, of in taken.items() if of.seconds > budget.get(name, 0)}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--budget`."""
    parser.addoption("--budget", choices=TIERS, help="compare each folder's CPU seconds with tests/budget.toml")


def pytest_configure(config: pytest.Config) -> None:
    """Count if it was asked for."""
    if config.getoption("--budget"):
        config.pluginmanager.register(Account())

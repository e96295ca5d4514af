"""Stamps and budgets of tests, in a small project: what runs again after which change, and what a run may take."""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import kept, stamps
from tests.support.budget import TIERS, budgets
from tests.support.stamps import ONE_IN, Stamp, closure

ROOT = Path(__file__).parents[2]
COUNT = 24  #: tests of the small project that have a stamp after a run; some of them run again on any day

FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['proved', 'usual']\naddopts = ['-rs']\n",
    "nanokv/__init__.py": "",
    "nanokv/device/__init__.py": "",
    "nanokv/device/memory/__init__.py": "",
    "nanokv/device/memory/warps.py": "",
    "nanokv/device/kernels/__init__.py": "",
    "nanokv/device/kernels/many.py": "from nanokv.device.memory import warps\n",
    "nanokv/device/protocol/__init__.py": "",
    "nanokv/device/protocol/put.py": "VALUE = 1\n",
    "nanokv/device/machines/__init__.py": "",
    "nanokv/device/machines/code_cache.py": "",
    "nanokv/scenarios/__init__.py": "from importlib import import_module\nimport_module(f'{__name__}.list')\n",
    "nanokv/scenarios/list.py": "",
    "nanokv/host_poller/__init__.py": "",
    "nanokv/host_poller/sweeper.py": "",
    "nanokv/engines/__init__.py": "",
    "nanokv/engines/connector.py": "def program_of():\n    return 'nanokv.program'\n",
    "nanokv/program.py": "import tests.support.loaded\nprint('ran')\n",
    "nanokv/other.py": "import tests.support.loaded\n",
    "nanokv/unused.py": "",
    "tests/conftest.py": "pytest_plugins = ['tests.support.stamps', 'tests.support.budget', 'tests.fixtures']\n",
    "tests/fixtures.py": "import pytest\n@pytest.fixture\ndef seed():\n    return 7\n",
    "tests/helper.py": "",
    "tests/one/test_proved.py": f"""
import subprocess, sys
from typing import TYPE_CHECKING
import pytest
import nanokv.scenarios
from nanokv.device.kernels import many
from nanokv.device.machines import code_cache
if TYPE_CHECKING:
    from nanokv import unused
pytestmark = pytest.mark.proved('nanokv.program', 'docs/table.md')

@pytest.mark.parametrize('number', range({COUNT}))
def test_it(number, seed):
    from nanokv.host_poller import sweeper
    from nanokv.engines import connector
    from tests import helper
    open('docs/table.md').close()
    if number == 0:
        subprocess.run([sys.executable, '-m', connector.program_of()], check=True)
""",
    "docs/table.md": "",
    "tests/one/test_usual.py": "def test_usual():\n    pass\n",
}
#: of each kind, a source that the tests of the small project load, and that one byte is added to
KINDS = {
    "kernel": "nanokv/device/kernels/many.py",
    "function that runs while Triton compiles": "nanokv/device/memory/warps.py",
    "protocol, as native code is compiled from it": "nanokv/device/protocol/put.py",
    "scenario, imported by a computed name": "nanokv/scenarios/list.py",
    "host, imported in a function": "nanokv/host_poller/sweeper.py",
    "connector": "nanokv/engines/connector.py",
    "program that is started": "nanokv/program.py",
    "package": "nanokv/engines/__init__.py",
    "test": "tests/one/test_proved.py",
    "module of the tests": "tests/helper.py",
    "fixture": "tests/fixtures.py",
    "document that is read": "docs/table.md",
    "conftest": "tests/conftest.py",
    "stamps themselves": "tests/support/stamps.py",
    "settings of pytest": "pyproject.toml",
}


class Project:
    """The small project, with stamps of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = 0  #: of the last run
        for name in ("loaded.py", "kept.py", "stamps.py", "budget.py"):
            self.write(f"tests/support/{name}", (ROOT / "tests" / "support" / name).read_text())
        self.write("nanokv/device/sources.py", "COMPILED_ROOMS = ('memory', 'protocol')\n")
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """A file, as if it had been there for a minute: a run leaves no stamp for sources that are newer."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        before = path.stat().st_mtime - 60
        os.utime(path, (before, before))

    def run(self, *options: str, **settings: str) -> str:
        """What pytest says; at the end how many tests passed, and how many were skipped."""
        environment = (
            os.environ | {"NANOKV_CACHE_DIR": str(self.root / "cache"), "PYTHONPATH": str(self.root)} | settings
        )
        command = [sys.executable, "-B", "-m", "pytest", "-q", "--import-mode=importlib", "tests", *options]
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        self.code = done.returncode
        return done.stdout + done.stderr

    def skipped(self, *options: str, **settings: str) -> int:
        """How many tests a run leaves out. All others pass."""
        last = self.run("--stamps", *options, **settings).strip().splitlines()[-1]
        assert "passed" in last and "failed" not in last and "error" not in last, last
        found = re.search(r"(\d+) skipped", last)
        return int(found[1]) if found else 0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def not_today() -> int:
    """How many of the small project's tests do not run today if they have a stamp."""
    names = [f"tests/one/test_proved.py::test_it[{number}]" for number in range(COUNT)]
    return sum(not Stamp("", name).runs_today(datetime.date.today()) for name in names)


@pytest.mark.exhaustive
def test_what_has_passed_is_left_out_until_a_source_changes(project: Project) -> None:
    """Each kind of source: with one byte more everything runs again. As it was, nothing does: stamps go by content."""
    assert project.skipped() == 0
    assert project.skipped() == not_today() > COUNT / 2
    assert "passed" in project.run() and "skipped" not in project.run(), "without the option nothing is left out"
    for kind, name in KINDS.items():
        text = (project.root / name).read_text()
        project.write(name, text + "\n")
        assert project.skipped() == 0, kind
        project.write(name, text)
    project.write("nanokv/unused.py", "CHANGED = True\n")  # named for types only
    assert project.skipped() == not_today()
    project.write("nanokv/scenarios/more.py", "")  # a package may look for its modules
    assert project.skipped() == 0
    (project.root / "nanokv/scenarios/more.py").unlink()
    assert project.skipped(NANOKV_ALLOC="host") == 0, "a setting from outside"


def test_the_skips_are_printed_with_the_day_and_the_stamp(project: Project) -> None:
    project.run()
    assert re.search(
        r"SKIPPED \[\d+\] tests/one/test_proved.py:\d+: proved by these sources on 20\d\d-", project.run("--stamps")
    )


@pytest.mark.exhaustive
def test_a_test_that_fails_has_no_stamp(project: Project) -> None:
    program = project.root / "nanokv/engines/connector.py"
    text = program.read_text()
    project.write("tests/helper.py", "assert False\n")
    assert f"{COUNT} failed" in project.run("--stamps")
    assert f"{COUNT} failed" in project.run("--stamps")
    project.write("tests/helper.py", "")
    for other, why in (
        ("nanokv.other", "nanokv.other"),  # a program that the mark does not name
        ("nanokv.unused", "nanokv.unused"),
    ):
        project.write("nanokv/engines/connector.py", text.replace("nanokv.program", other))
        said = project.run("--stamps")
        assert f"the mark `proved` must name what else the test uses: ['{why}" in said and "1 failed" in said
    project.write("nanokv/engines/connector.py", text)
    project.write("nanokv/program.py", "from nanokv.device.machines import code_cache\n")
    assert "it does not import tests.support.loaded" in project.run("--stamps")
    project.write(
        "nanokv/program.py", FILES["nanokv/program.py"] + "import importlib; importlib.import_module('nanokv.unused')\n"
    )
    assert "must name what else the test uses: ['nanokv.unused']" in project.run("--stamps")
    project.write("nanokv/program.py", FILES["nanokv/program.py"])


def test_a_source_that_is_newer_than_the_run_gives_no_stamp(project: Project) -> None:
    name = "tests/helper.py"
    project.write(name, "# new\n")
    later = (project.root / name).stat().st_mtime + 3600
    os.utime(project.root / name, (later, later))
    assert project.skipped() == 0
    assert project.skipped() == 0
    project.write(name, "")


@pytest.mark.exhaustive
def test_workers_skip_the_same(project: Project) -> None:
    project.run()
    assert project.skipped("-n", "2", "--dist", "load") == not_today()


def test_each_test_runs_on_one_day_of_eight() -> None:
    today = datetime.date.today()
    days = [today + datetime.timedelta(days=n) for n in range(ONE_IN)]
    for number in range(100):
        assert sum(Stamp("", f"test[{number}]").runs_today(day) for day in days) == 1


def test_the_versions_of_packages_and_the_interpreter_are_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stamps.digest_of({}, stamps.surroundings())
    for name, value in (("version", "3.99"), ("platform", "plan9")):
        stamps.surroundings.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, value)
            changed = stamps.digest_of({}, stamps.surroundings()) != before
        assert changed == (name == "version")
    stamps.surroundings.cache_clear()
    monkeypatch.syspath_prepend(str(Path(pytest.__file__).parents[1] / "setuptools" / "_vendor"))
    assert stamps.digest_of({}, stamps.surroundings()) == before, "what a package brings to the path is not installed"
    assert any(str(each).startswith("triton==") for each in stamps.surroundings()[3])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("test", "sources"),
    [
        (
            "tests.check.test_model",
            ("device.protocol.put", "check.protocol.model.scenarios.freelist", "host_poller.sweeper"),
        ),
        ("tests.check.test_mutants", ("device.protocol.put", "cluster.pulling")),
        (
            "tests.check.test_ptx_mutants",
            ("device.memory.warps", "device.ptx.scheduler", "check.protocol.compiled.calls"),
        ),
        ("tests.compiled.test_bodies", ("device.memory.warps", "device.kernels.many", "host_poller.poller", "cache")),
        ("tests.machines.test_library", ("device.library.launch", "device.library.parts")),
        ("tests.gcn.test_gcn_bodies", ("device.gcn.wave", "device.kernels.many")),
    ],
)
def test_stamps_of_the_project_cover_what_they_should(test: str, sources: tuple[str, ...]) -> None:
    __import__(test)  # what it imports by a computed name is noted
    assert {f"nanokv.{name}" for name in sources} <= closure([test]).keys()


def test_what_is_old_or_too_much_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kept, "MOST_BYTES", 250)
    for name, days in (("new", 0), ("used", 1), ("less", 2), ("old", kept.KEPT_DAYS + 1)):
        file = kept.kept("triton") / name / "kernel.ptx"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(100))
        os.utime(file, (file.stat().st_atime - days * 86400,) * 2)
    (kept.kept("triton") / "begun").mkdir()
    kept.forget_old()
    assert {each.name for each in kept.kept("triton").iterdir()} == {"new", "used", "begun"}


# --- budgets ----------------------------------------------------------------------------------
BURN = "import subprocess, sys\nBURN = 'sum(range(20_000_000))'\n"


@pytest.mark.exhaustive
def test_a_folder_beyond_its_budget_is_named_with_its_dearest_tests(project: Project) -> None:
    project.write(
        "tests/two/test_burn.py",
        BURN
        + "def test_self(): exec(BURN)\ndef test_child(): subprocess.run([sys.executable, '-c', BURN], check=True)\n",
    )
    project.write("tests/budget.toml", "one = { quick = 50, all = 50 }\ntwo = { quick = 0, all = 90 }\n")
    for workers in ("0", "2"):
        said = project.run("--budget", "quick", "-n", workers, "--dist", "loadfile")
        assert "tests/two took" in said and "tests/one took" not in said
        assert {*re.findall(r"test_burn.py::(test_\w+)", said)} == {"test_self", "test_child"}
        assert project.code == 0, "seconds of a busy machine fail no run"
        said = project.run("--budget", "all", "-n", workers, "--dist", "loadfile")
        assert " took " not in said.partition("CPU seconds")[2]
    seconds, name = (project.root / "build" / "cpu-quick.txt").read_text().splitlines()[0].split()
    assert float(seconds) > 0 and "test_burn.py::" in name


def test_every_folder_of_tests_has_a_budget() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    for tier in TIERS:
        assert budgets(tier).keys() == folders

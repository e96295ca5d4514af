"""Stamps: what is a function of its sources and its seed is not proved again by the same sources.

A test marked `proved` has no race, no clock, no process that others see: the same sources, interpreter and packages
give the same verdict. When it passes, a stamp is left whose name is a digest of all these. `pytest --stamps`, which the
Makefile says, skips a test that has its stamp, and prints that it does (`-rs`); without the option everything runs.

What the digest covers is computed, not declared: the test's module, those of its fixtures, and whatever these import,
in any function and through any number of modules (blocks of TYPE_CHECKING aside), with the names of all files beside
them; what they imported by a computed name while tests were collected; and all that native code is compiled from, if
they run any. Programs that a test starts are named in its mark. While such a test runs, it is watched: it fails if it
opens a file of the project, imports a module or starts a program of Python's that its digest does not cover.

One test in eight runs in spite of its stamp, another eighth each day, in case all this misses something.
"""

import ast
import datetime
import hashlib
import importlib
import os
import platform
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from nanokv.device.sources import COMPILED_ROOMS
from tests.support import loaded
from tests.support.kept import forget_old, kept
from tests.support.loaded import TOPS

ROOT = Path(__file__).resolve().parents[2]
WATCHED = (*TOPS, "device", "host_poller", "compat_v1", "bench", "docs")
ALWAYS = ("tests.conftest", "tests.support.stamps")  #: what every test is run by
SETTINGS = ("TRITON_", "NANOKV_", "NUMBA_", "HYPOTHESIS_")  #: variables of the environment that may change a verdict
NO_SETTINGS = ("TRITON_CACHE_DIR", "NANOKV_CACHE_DIR", "NANOKV_TESTS_NEED", "NANOKV_UV", loaded.VARIABLE)
COMPILES = "nanokv.device.machines.code_cache"  #: who imports it runs native code
ONE_IN = 8

Closure = dict[str, Path]  #: modules of the project by name, and other files by their path


@cache
def modules() -> dict[str, Path]:
    """Every module of the project and its tests, by its full name."""
    found = {}
    for top in TOPS:
        for folder, _, names in os.walk(ROOT / top, followlinks=True):
            for path in (Path(folder) / name for name in names if name.endswith(".py")):
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _name_of(path: Path) -> str:
    return next(name for name, other in modules().items() if other.samefile(path))


def _import_statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from _import_statements(node)


@cache
def imports(name: str) -> frozenset[str]:
    """The modules of the project that a module imports, wherever it does, with the packages that they are in."""
    named = set()
    for node in _import_statements(ast.parse(modules()[name].read_bytes())):
        if isinstance(node, ast.ImportFrom):
            named |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        else:
            named |= {alias.name for alias in node.names}
    for each in list(named):
        parts = each.split(".")
        named |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return frozenset(named & modules().keys())


def closure(roots: Iterable[str]) -> Closure:
    """Some modules and all that they import, directly or through others; files that are no modules, as they are."""
    found: Closure = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if "/" in name:
            found[name] = ROOT / name
        elif name not in found:
            found[name] = modules()[name]
            waiting += imports(name) | _watch.imported.get(name, set())
            waiting += _compiled_from() if name == COMPILES else ()
    return found


@cache
def _compiled_from() -> tuple[str, ...]:
    rooms = tuple(f"nanokv.device.{room}." for room in COMPILED_ROOMS)
    return tuple(name for name in modules() if name.startswith(rooms))


def digest_of(covered: Closure, about: object = None) -> str:
    """A digest of sources, of the names of all modules beside them, of pytest's settings, and of `about`."""
    digest = hashlib.blake2b(repr(about).encode() + (ROOT / "pyproject.toml").read_bytes(), digest_size=12)
    for name, path in sorted(covered.items()):
        beside = sorted(each.name for each in path.parent.glob("*.py")) if path.name == "__init__.py" else ()
        digest.update(repr((name, beside)).encode() + hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


@cache
def surroundings() -> tuple[object, ...]:
    """The interpreter, the processor, the packages and their versions, and the settings from outside.

    Asked before anything is imported: setuptools adds packages of its own, and tests may change the settings.
    """
    installed = metadata.distributions(path=list(dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))))
    packages = sorted(f"{each.name}=={each.version}" for each in installed if each.name != "nanokv")
    settings = {n: v for n, v in os.environ.items() if n.startswith(SETTINGS) and n not in NO_SETTINGS}
    return sys.version, platform.machine(), _processor(), packages, sorted(settings.items())


def _processor() -> str:
    """The model of the CPU: native code is compiled for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("model name", "CPU part"))), "")


class Stamp(NamedTuple):
    """Where the stamp of a test is, or would be."""

    sources: str  #: the digest of all that its verdict depends on
    test: str  #: its node id

    @property
    def path(self) -> Path:
        """The file; it states the test and the time."""
        return kept("stamps") / self.sources / hashlib.blake2b(self.test.encode(), digest_size=10).hexdigest()

    def made_before(self, moment: float) -> str | None:
        """The day on which the stamp was made, if that was before a moment (seconds since the epoch)."""
        try:
            at = self.path.stat().st_mtime
        except OSError:
            return None
        return datetime.datetime.fromtimestamp(at).strftime("%Y-%m-%d") if at < moment else None

    def runs_today(self, day: datetime.date) -> bool:
        """Whether it runs on a day although it has a stamp."""
        number = int.from_bytes(hashlib.blake2b(self.test.encode(), digest_size=4).digest(), "big")
        return (number + day.toordinal()) % ONE_IN == 0

    def leave(self) -> None:
        """Leave the stamp. A folder that cannot be written to has none."""
        if not self.path.exists():
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(f"{self.test}\n{datetime.datetime.now().isoformat()}\n")
            except OSError:
                return


def _loading(frame: FrameType | None) -> str:
    """The module that is being loaded: who asks for `nanokv.X` asks it of a function of `nanokv`."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _is_for_constants(frame: FrameType | None) -> bool:
    """Whether hypothesis reads a file: it draws constants of all modules that are loaded, whoever has loaded them."""
    while frame is not None and not frame.f_code.co_filename.endswith("hypothesis/internal/constants_ast.py"):
        frame = frame.f_back
    return frame is not None


class Watch:
    """Looks at what a test opens, imports and starts. An audit hook stays for good, so there is one."""

    def __init__(self) -> None:
        self.imported: dict[str, set[str]] = {}  #: by module, those that it imported by a computed name
        self._files: set[Path] | None = None
        self._names: set[str] = set()
        self._strange: set[str] = set()
        self._told = Path()  # where programs tell what they have loaded
        self._programs = 0
        sys.addaudithook(self._hook)
        self._import = importlib.import_module
        importlib.import_module = self._import_module

    def begin(self, covered: Closure) -> None:
        """Begin to watch a test that may use these modules."""
        self._strange, self._names, self._programs = set(), {*covered}, 0
        fd, name = tempfile.mkstemp(prefix="nanokv-loaded-")
        os.close(fd)
        self._told = Path(name)
        os.environ[loaded.VARIABLE] = name
        self._files = {path.resolve() for path in covered.values()}

    def end(self) -> set[str]:
        """End it. Returns what else it used."""
        self._files = None
        told = self._told.read_text().split()
        self._told.unlink()
        del os.environ[loaded.VARIABLE]
        if self._programs and not told:
            self._strange.add("what a program has loaded: it does not import tests.support.loaded")
        return self._strange | {name for name in told if name in modules() and name not in self._names}

    def _import_module(self, name: str, package: str | None = None) -> Any:
        """`importlib.import_module`: of a module that is loaded already, no event tells."""
        if name in modules():
            if self._files is None:
                self.imported.setdefault(_loading(sys._getframe(1)), set()).add(name)
            elif name not in self._names:
                self._strange.add(name)
        return self._import(name, package)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._files is None:
            return
        if event == "open" and isinstance(args[0], str):
            self._opened(args[0])
        elif event == "subprocess.Popen":
            self._started([args[1]] if isinstance(args[1], str) else [str(word) for word in args[1]])
        elif event in ("os.fork", "os.forkpty"):
            self._strange.add(event)

    def _opened(self, name: str) -> None:
        path = Path(os.path.realpath(name))
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in WATCHED or path.is_dir():
            return
        if path.parent.name == "__pycache__":
            path = path.parents[1] / f"{path.name.partition('.')[0]}.py"
        if path not in (self._files or ()) and not _is_for_constants(sys._getframe()):
            self._strange.add(str(path.relative_to(ROOT)))

    def _started(self, words: list[str]) -> None:
        if Path(words[0]).name.startswith("python"):
            program = words[words.index("-m") + 1] if "-m" in words else "a program of Python's without -m"
            self._programs += 1
            if program not in self._names:
                self._strange.add(program)


_watch = Watch()
_began = time.time()  #: when this run of tests did, or in a worker of xdist, when that did
_covers = pytest.StashKey[Closure]()
_stamp = pytest.StashKey[Stamp]()
_passed = pytest.StashKey[list[bool]]()  #: of the phases so far


def roots_of(item: pytest.Item) -> frozenset[str]:
    """The modules from which the closure of a test begins, and the files that it reads, which have a `/`."""
    defined: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    used = {each.func.__module__ for several in defined.values() for each in several}
    named = {name for mark in item.iter_markers("proved") for name in mark.args}
    strange = [name for name in named if name not in modules() and not (ROOT / name).is_file()]
    assert not strange, f"{item.nodeid}: the mark `proved` names no module and no file: {strange}"
    return frozenset({_name_of(item.path), *ALWAYS, *(used & modules().keys()), *named})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--stamps`."""
    about = "skip tests marked `proved` that have passed with the same sources; one in eight of them runs all the same"
    parser.addoption("--stamps", action="store_true", help=about)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All workers of xdist look at the stamps of one moment, so that they skip the same tests."""
    node.workerinput["began"] = _began


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find the stamp of each test, and skip those that have theirs."""
    began = getattr(config, "workerinput", {}).get("began", _began)
    day = datetime.date.fromtimestamp(began)
    known: dict[frozenset[str], tuple[Closure, str]] = {}
    for item in items:
        if item.get_closest_marker("proved") is None:
            continue
        roots = roots_of(item)
        if roots not in known:
            covered = closure(roots)
            known[roots] = covered, digest_of(covered, surroundings())
        item.stash[_covers], sources = known[roots]
        stamp = item.stash[_stamp] = Stamp(sources, item.nodeid)
        if config.getoption("--stamps") and not stamp.runs_today(day) and (made := stamp.made_before(began)):
            item.add_marker(pytest.mark.skip(f"proved by these sources on {made}: stamp {sources[:8]}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the fixtures of a test."""
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test."""
    return (yield from _watched(item))


def _watched(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch what runs meanwhile, and fail it if it used what the digest of the test does not cover."""
    if _covers not in item.stash:
        return (yield)
    _watch.begin(item.stash[_covers])
    try:
        result = yield
    finally:
        strange = _watch.end()
    assert not strange, f"the mark `proved` must name what else the test uses: {sorted(strange)}"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Leave a stamp once a test has passed, its fixtures' ends too; not if its sources have changed meanwhile."""
    report = yield
    if _stamp in item.stash:
        passed = item.stash.setdefault(_passed, [])
        passed.append(report.passed)
        if report.when == "teardown" and passed == [True] * 3:
            began = getattr(item.config, "workerinput", {}).get("began", _began)
            if all(path.stat().st_mtime < began for path in item.stash[_covers].values()):
                item.stash[_stamp].leave()
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Look at what is around."""
    surroundings()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Forget old stamps."""
    if not hasattr(config, "workerinput"):
        forget_old()

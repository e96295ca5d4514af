"""The scripts of CI and the Makefile, as far as they can be looked at without running them."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [path for path in sorted((ROOT / ".ci").iterdir()) if path.read_text().startswith("#!/usr/bin/env bash")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_two_tiers_differ_in_nothing_but_what_they_leave_out() -> None:
    lines = {}
    for tier in ("test", "test-all"):
        command = ["make", "-n", "--no-print-directory", tier, "WORKERS=3", "ONE_IN=1"]  # CI has another one
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        lines[tier] = done.stdout.splitlines()[-1]
    quick = lines["test"].removesuffix(' -m "not exhaustive"')
    everything = lines["test-all"].removesuffix(" --one-in 1")
    assert quick.replace("--budget quick", "--budget all") == everything
    assert quick != lines["test"] and everything != lines["test-all"]
    assert "--stamps" in lines["test"]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`.ci/pip` as a module."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("ci_pip", str(ROOT / ".ci" / "pip"))
    spec = importlib.util.spec_from_loader("ci_pip", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_uv_looks_where_pip_does(pip: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(f"[global]\nfind-links = {tmp_path}/a {tmp_path}/b\n[install]\nconstraint = {tmp_path}/c\n")
    for name in ("PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined] # this one may have no pip
    found = " ".join(pip.settings())
    for each in (f"--find-links {tmp_path}/a", f"--find-links {tmp_path}/b", f"--constraint {tmp_path}/c"):
        assert each in found, found


def test_without_uv_it_is_pip(pip: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NANOKV_UV", "0")
    assert pip.uv() is None
    monkeypatch.delenv("NANOKV_UV")
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pip, "works", lambda *command: False)
    assert pip.uv() is None


def test_wrong_words_are_answered_with_how_it_is_used() -> None:
    for words in ((), ("env", "list"), ("env", "sync", "x")):
        command = [sys.executable, ROOT / ".ci" / "pip", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "ENVIRONMENT torch CONSTRAINTS" in done.stderr

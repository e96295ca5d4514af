"""What is built from a clone: a wheel, an sdist that holds everything, and nothing from a clone without links."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", "77")

ROOT = Path(__file__).parents[2]
LINKED = ("bench", "compat_v1", "device", "host_poller")
BUILT = ("build", "dist")
HIDDEN = (".ci", ".gitignore")  #: all other hidden names are made by tools


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, as far as it is not made by tools."""
    to = tmp_path_factory.mktemp("clone") / "nanokv"

    def ignored(folder: str, names: list[str]) -> set[str]:
        made = {name for name in names if name == "__pycache__" or name.endswith((".egg-info", ".pyc", "_cache"))}
        if Path(folder) == ROOT:
            made |= {name for name in names if name in BUILT or (name[0] == "." and name not in HIDDEN)}
        return made

    return shutil.copytree(ROOT, to, symlinks=True, ignore=ignored)


def run_python(code: str, where: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=500, check=False)


def build(kind: str, where: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    done = run_python(f"from setuptools import build_meta as b; b.build_{kind}({str(to)!r})", where)
    assert done.returncode == 0, done.stderr
    (path,) = to.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    return build("wheel", clone, clone.parent / "wheel")


@pytest.fixture(scope="module")
def unpacked(clone: Path) -> Path:
    """The sdist, unpacked."""
    with tarfile.open(build("sdist", clone, clone.parent / "sdist")) as sdist:
        sdist.extractall(clone.parent / "unpacked", filter="data")
    (folder,) = (clone.parent / "unpacked").iterdir()
    return folder


def files(folder: Path) -> set[str]:
    """Of a folder, links to folders followed."""
    found = (Path(at) / name for at, _, names in os.walk(folder, followlinks=True) for name in names)
    return {path.relative_to(folder).as_posix() for path in found}


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


def test_the_wheel_has_all_packages(wheel: Path) -> None:
    code = {name for name in content(wheel) if name.startswith("nanokv/")}
    assert code == {
        f"nanokv/{name}" for name in files(ROOT / "nanokv") if name.endswith((".py", "py.typed", "report.html"))
    }
    assert {f"nanokv/{name}/__init__.py" for name in LINKED} <= code


def test_the_sdist_has_everything(clone: Path, unpacked: Path) -> None:
    wanted = {name for name in files(clone) if name.split("/")[0] not in {*LINKED, "nanokv.egg-info", "build"}}
    assert {"Makefile", "constraints.txt", "docs/design.md", "tests/support/compiling.py", ".ci/run"} <= wanted
    assert wanted <= files(unpacked)


def test_the_sdist_builds_the_same_wheel(wheel: Path, unpacked: Path) -> None:
    assert content(build("wheel", unpacked, unpacked.parent / "wheel")) == content(wheel)


@pytest.mark.exhaustive
def test_the_tests_of_the_sdist_can_be_collected(unpacked: Path) -> None:
    options = ["-q", "--collect-only", "-p", "no:cacheprovider"]
    code = f"import sys, pytest; sys.path.insert(0, ''); sys.exit(pytest.main({options}))"
    done = run_python(code, unpacked)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_clone_without_links_builds_nothing(clone: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(clone, tmp_path / "clone", symlinks=True)
    for name in LINKED:  # as git writes them where core.symlinks is false
        link = broken / "nanokv" / name
        link.unlink()
        link.write_text(f"../{name}")
    for kind in ("wheel", "sdist", "editable"):
        done = run_python(f"from setuptools import build_meta as b; b.build_{kind}('built')", broken)
        assert done.returncode != 0
        assert "nanokv/bench, nanokv/compat_v1, nanokv/device, nanokv/host_poller must be symbolic links" in done.stderr
    assert not (broken / "built").exists() or not list((broken / "built").iterdir())

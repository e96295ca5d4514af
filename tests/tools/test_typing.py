"""A user's type checker sees NanoKV's types, from a wheel and from an editable install; and the types are right."""

import shutil
import subprocess
import sys
import sysconfig
import typing
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

import nanokv
from nanokv.config import CacheOptions, LocalOptions, Options
from nanokv.statistics import Stats

ROOT = Path(__file__).resolve().parents[2]

#: as `mypy --strict` wants it: a mistake that it does not notice is an unused `type: ignore`
USER = """
from typing import assert_type

import nanokv

cache = nanokv.NanoKVCache(1 << 20, page_bytes=4096, checksum=True, water=(80, 90), size_classes=[1, 2])
assert_type(cache, nanokv.NanoKVCache)
assert_type(cache.stats()["puts"], int)
assert_type(cache.stats()["usage"], float)
assert_type(nanokv.local_world(2, 1 << 20, alloc="host"), list[nanokv.NanoKVCache])
assert_type(nanokv.errors.WaitTimeout("late"), nanokv.errors.WaitTimeout)
assert_type(nanokv.device.__name__, str)
cache.stats()["nothing"]  # type: ignore[typeddict-item]
cache.put("k", "no tensor", preferred_segment="0")  # type: ignore[arg-type]
nanokv.NanoKVCache(1 << 20, chekcsum=True)  # type: ignore[call-arg]
nanokv.NanoKVCache(1 << 20, alloc="hots")  # type: ignore[arg-type]
nanokv.local_world(2, 1 << 20, heap="shm")  # type: ignore[call-arg]
"""
CONFIG = """
[mypy]
strict = true
[mypy-torch.*,triton.*,numba.*,numpy.*]
follow_imports = skip
"""


def source_tree(folder: Path) -> Path:
    """The checkout, as far as a build reads it, in a folder where a build may leave files."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("nanokv", "device", "host_poller", "compat_v1"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def install(kind: str, folder: Path) -> Path:
    """An environment with NanoKV, and the packages of this one; its interpreter."""
    hook = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    built = subprocess.run(
        [sys.executable, "-c", hook], cwd=source_tree(folder / "src"), capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = folder.glob("*.whl")
    ZipFile(wheel).extractall(site)
    return folder / "env" / "bin" / "python"


@pytest.mark.parametrize("kind", [pytest.param("editable", marks=pytest.mark.exhaustive), "wheel"])
def test_mypy_of_a_user(kind: str, tmp_path: Path) -> None:
    python = install(kind, tmp_path)
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", f"--python-executable={python}", "user.py"]
    checked = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert checked.stdout == "Success: no issues found in 1 source file\n", checked.stdout + checked.stderr


def test_the_options_are_those_of_the_dataclass() -> None:
    taken, declared = typing.get_type_hints(CacheOptions), typing.get_type_hints(Options)
    assert (taken.pop("size_classes"), taken.pop("costs")) == (Sequence[int] | None, Sequence[float] | None)
    assert declared.pop("size_classes") == tuple[int, ...] | None  # kept as tuples
    assert declared.pop("costs") == tuple[float, ...] | None
    assert taken == declared
    assert {*LocalOptions.__annotations__} < {*Options.__annotations__}
    assert not CacheOptions.__required_keys__


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_the_statistics_are_those_of_a_cache(alloc: typing.Literal["device", "host"]) -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, alloc=alloc)
    with cache:
        found = cache.stats()
    assert {name: type(value) for name, value in found.items()} == typing.get_type_hints(Stats)

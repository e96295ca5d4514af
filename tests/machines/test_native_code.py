"""The cache of compiled code: what makes a new digest, and that code is loaded for exactly the sources it came from."""

import shutil
from pathlib import Path

import pytest

from nanokv.device.machines.entries import ENTRIES
from nanokv.device.machines.native_code import COMPILED_ROOMS, DEVICE, compiled, source_digest


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of `device/`, to be changed."""
    return shutil.copytree(DEVICE, tmp_path / "device", ignore=shutil.ignore_patterns("__pycache__"))


def test_a_copy_has_the_same_digest(copied: Path) -> None:
    assert source_digest(copied) == source_digest()


@pytest.mark.parametrize("room", COMPILED_ROOMS)
def test_a_change_of_what_is_compiled_is_seen(copied: Path, room: str) -> None:
    before = source_digest(copied)
    path = next(path for path in sorted((copied / room).glob("*.py")) if path.name != "__init__.py")
    path.write_text(path.read_text() + "\n")
    assert source_digest(copied) != before


def test_a_change_below_a_subfolder_is_seen(copied: Path) -> None:
    before = source_digest(copied)
    (copied / "protocol" / "deeper").mkdir()
    (copied / "protocol" / "deeper" / "more.py").write_text("")
    added = source_digest(copied)
    (copied / "protocol" / "deeper" / "more.py").rename(copied / "protocol" / "deeper" / "other.py")
    assert len({before, added, source_digest(copied)}) == 3


@pytest.mark.parametrize(
    "path", ["__init__.py", "library/steps.py", "kernels/many.py", "machines/native.py", "sim/memory.py"]
)
def test_a_change_of_what_is_not_compiled_is_not(copied: Path, path: str) -> None:
    before = source_digest(copied)
    (copied / path).write_text((copied / path).read_text() + "\n")
    assert source_digest(copied) == before


def test_every_compiled_function_comes_from_a_room_of_the_digest() -> None:
    for entry in ENTRIES.values():
        parts = Path(entry.function.fn.__code__.co_filename).resolve().relative_to(DEVICE.resolve()).parts
        assert parts[0] in COMPILED_ROOMS
    assert compiled().keys() == ENTRIES.keys()

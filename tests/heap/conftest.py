"""Worlds of processes: a folder and a name for each test, and ranks that end with it."""

import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.heap_ranks import HeapRank
from tests.support.rank_processes import Start, new_folder, starter


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with new_folder(monkeypatch) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"w{secrets.token_hex(4)}"


@pytest.fixture
def start(folder: Path, name: str) -> Iterator[Start]:
    """Starts ranks of the world `name`, as `HeapRank` takes them."""
    with starter(partial(HeapRank, name=name)) as begin:
        yield begin

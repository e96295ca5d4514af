"""Stores for the tests: a world of their own, in a folder of their own."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanokv.integrations.mooncake import MooncakeDistributedStore

_numbers = itertools.count()
LEASE_MS = 300_000  #: no test waits for the end of a lease; one that needs it sets its own
Start = Callable[..., MooncakeDistributedStore]


@pytest.fixture
def master() -> str:
    """The address of the test's store."""
    return f"test-{next(_numbers)}:1"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str) -> Iterator[Start]:
    """A function that makes a client of the test's store: `start(segment=..., local=..., host=..., tenant=...)`."""
    monkeypatch.setenv("NANOKV_SHM_DIR", str(tmp_path))
    monkeypatch.setenv("NANOKV_MOONCAKE_LEASE_MS", str(LEASE_MS))
    monkeypatch.setenv("NANOKV_MOONCAKE_RANKS", "4")
    made = []

    def started(
        segment: int = 16 << 20, local: int = 8 << 20, host: str = "localhost", tenant: str = "default"
    ) -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        assert store.setup(host, "P2PHANDSHAKE", segment, local, "tcp", "", master, tenant_id=tenant) == 0
        made.append(store)
        return store

    yield started
    for store in made:
        store.close()


@pytest.fixture
def store(start: Start) -> MooncakeDistributedStore:
    """A client with a segment."""
    return start()

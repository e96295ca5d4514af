"""The scheduler's questions to workers in other processes: over sockets, of a folder that nobody else can enter."""

import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

import nanokv
from nanokv.errors import HeapUnavailable
from nanokv.heap.shm_tools import list_worlds
from nanokv.integrations.vllm import lookup
from nanokv.integrations.vllm.lookup import LookupServer, Workers, place_of
from nanokv.integrations.vllm.metadata import Asked
from nanokv.integrations.vllm.worker import remove_dead_worlds

HASHES = [b"%032d" % i for i in range(5)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class First:
    """A worker that has the first `count` of HASHES."""

    def __init__(self, count: int) -> None:
        self.count, self.resets = count, 0

    def found(self, asked: Sequence[Asked]) -> list[bytes]:
        assert all(each.hashes == HASHES[: len(each.hashes)] for each in asked)
        return [bytes(i < self.count for i in range(len(each.hashes)))[: self._most(each)] for each in asked]

    def _most(self, asked: Asked) -> int | None:
        return self.count if asked.is_prefix else None

    def reset(self, number: int) -> bool:
        self.resets, self.count = number, 0
        return number < 2


@pytest.fixture
def workers() -> Iterator[list[LookupServer]]:
    made = [LookupServer(place_of("engine", "world", part), First(count)) for part, count in enumerate((4, 3))]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it: from then on workers are asked by their sockets, as from another process."""
    return lambda: monkeypatch.setattr(lookup, "_here", {})


def prefix_length(workers: Workers, hashes: list[bytes]) -> int:
    prefix, each = workers.found([Asked(0, hashes, True), Asked(1, hashes, False)])
    assert len(each) in (0, len(hashes)) and sum(each) == len(prefix)
    return len(prefix)


def asking() -> Workers:
    return Workers([place_of("engine", "world", part) for part in range(2)])


@pytest.mark.parametrize("by_socket", [False, True])
def test_a_block_is_there_if_every_worker_has_its_part(
    workers: list[LookupServer], apart: Callable[[], None], by_socket: bool
) -> None:
    if by_socket:
        apart()
    asked = asking()
    assert [prefix_length(asked, HASHES[:count]) for count in (5, 2, 0)] == [3, 2, 0]
    asked.close()


@pytest.mark.parametrize("by_socket", [False, True])
def test_a_reset_is_done_when_every_worker_says_so(
    workers: list[LookupServer], apart: Callable[[], None], by_socket: bool
) -> None:
    if by_socket:
        apart()
    asked = asking()
    assert prefix_length(asked, HASHES) == 3
    assert asked.reset(1)
    assert prefix_length(asked, HASHES) == 0
    assert not asked.reset(2), "a worker could not tell everybody"
    asked.close()
    workers[0].close()
    apart()
    assert not asking().reset(3), "a worker has gone"


def test_nothing_is_there_if_a_worker_does_not_answer(workers: list[LookupServer], apart: Callable[[], None]) -> None:
    asked = asking()
    workers[0].close()
    apart()
    assert prefix_length(asked, HASHES) == 0


def test_answers_belong_to_their_questions_after_a_worker_went_away(
    workers: list[LookupServer], apart: Callable[[], None]
) -> None:
    apart()
    asked = asking()
    assert prefix_length(asked, HASHES) == 3
    workers[1].close()
    prefix_length(asked, HASHES)  # may have been on its way when the worker went
    assert [prefix_length(asked, HASHES[:4]), prefix_length(asked, HASHES)] == [0, 0]
    workers[1] = LookupServer(place_of("engine", "world", 1), First(3))
    lookup._here.clear()
    assert [prefix_length(asked, each) for each in (HASHES[:1], HASHES, HASHES[:2])] == [1, 3, 2]
    asked.close()


def test_the_sockets_of_killed_workers_are_removed(folder: Path, workers: list[LookupServer]) -> None:
    left = Path(place_of("killed", "world", 0))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    assert left.exists()
    LookupServer(place_of("next", "world", 0), First(0)).close()
    assert not left.exists()
    assert prefix_length(asking(), HASHES) == 3  # the living ones answer still


def test_the_folder_must_be_this_users(folder: Path) -> None:
    place = Path(place_of("engine", "world", 0))
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    place.parent.chmod(0o755)
    with pytest.raises(HeapUnavailable, match="nobody else can enter"):
        place_of("engine", "world", 0)


def test_worlds_of_dead_engines_without_a_name_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none that somebody has named, or that lives."""
    monkeypatch.setenv("NANOKV_SHM_DIR", str(tmp_path))
    dead, data_parallel, living = (f"vllm-{uuid.uuid4()}" for _ in range(3))
    named = ["vllm-mine", "vllm", "other"]
    code = """
import os, sys, nanokv
asked = {"page_bytes": 4096, "rank": 0, "world_size": 1, "heap": "shm"}
made = [nanokv.NanoKVCache(1 << 20, name=name, **asked) for name in sys.argv[1:]]
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, dead, f"{data_parallel}_dp1", *named], check=True, timeout=120)
    with nanokv.NanoKVCache(1 << 20, page_bytes=4096, name=living, rank=0, world_size=1, heap="shm"):
        assert len(list_worlds()) == 6
        remove_dead_worlds()
        assert list_worlds() == sorted([living, *named])

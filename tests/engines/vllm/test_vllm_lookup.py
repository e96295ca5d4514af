"""The scheduler's questions to workers in other processes: over sockets, of a folder that nobody else can enter."""

import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.engines.vllm import lookup
from nanokv.engines.vllm.lookup import Lookup, LookupServer, place_of
from nanokv.errors import HeapUnavailable

HASHES = [b"%032d" % i for i in range(5)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def first(count: int) -> lookup.Prefix:
    """A worker that has the first `count` of HASHES."""

    def prefix(hashes: Sequence[bytes]) -> int:
        assert list(hashes) == HASHES[: len(hashes)]
        return min(count, len(hashes))

    return prefix


@pytest.fixture
def workers() -> Iterator[list[LookupServer]]:
    made = [LookupServer(place_of("engine", "world", part), first(count)) for part, count in enumerate((4, 3))]
    yield made
    for server in made:
        server.close()


def asking() -> Lookup:
    return Lookup([place_of("engine", "world", part) for part in range(2)])


@pytest.mark.parametrize("by_socket", [False, True])
def test_a_block_is_there_if_every_worker_has_its_part(
    workers: list[LookupServer], monkeypatch: pytest.MonkeyPatch, by_socket: bool
) -> None:
    if by_socket:
        monkeypatch.setattr(lookup, "_here", {})
    asked = asking()
    assert [asked(HASHES[:count]) for count in (5, 2, 0)] == [3, 2, 0]
    asked.close()


def test_nothing_is_there_if_a_worker_does_not_answer(
    workers: list[LookupServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking()
    workers[0].close()
    monkeypatch.setattr(lookup, "_here", {})
    assert asked(HASHES) == 0


def test_answers_belong_to_their_questions_after_a_worker_went_away(
    workers: list[LookupServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_here", {})
    asked = asking()
    assert asked(HASHES) == 3
    workers[1].close()
    asked(HASHES)  # may have been on its way when the worker went
    assert [asked(HASHES[:4]), asked(HASHES)] == [0, 0]
    workers[1] = LookupServer(place_of("engine", "world", 1), first(3))
    lookup._here.clear()
    assert [asked(HASHES[:1]), asked(HASHES), asked(HASHES[:2])] == [1, 3, 2]
    asked.close()


def test_the_sockets_of_killed_workers_are_removed(folder: Path, workers: list[LookupServer]) -> None:
    left = Path(place_of("killed", "world", 0))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    assert left.exists()
    LookupServer(place_of("next", "world", 0), first(0)).close()
    assert not left.exists()
    assert asking()(HASHES) == 3  # the living ones answer still


def test_the_folder_must_be_this_users(folder: Path) -> None:
    place = Path(place_of("engine", "world", 0))
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    place.parent.chmod(0o755)
    with pytest.raises(HeapUnavailable, match="nobody else can enter"):
        place_of("engine", "world", 0)

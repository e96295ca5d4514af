"""Segments that take memory as they are used, in a folder that has too little: puts find no room, and nobody dies.

A page that is written without memory would be SIGBUS where the folder is full. Here the folder has memory, and the file
is asked how much it has taken: no more than was granted.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv.device.protocol.status import Status
from nanokv.errors import NanoKVError, OutOfMemory
from nanokv.heap.locks import LockFile
from nanokv.heap.world_file import path_of
from tests.support.worlds import close_and_check

PAGE = 4096
HEAP = 16 << 20
GRANTED = 4 << 20  #: bytes of payload that the folder gives
World = list[nanokv.NanoKVCache]


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The folder of worlds gives so many bytes more."""
    left, real = [GRANTED], LockFile.allocate

    def allocate(self: LockFile, start: int, nbytes: int) -> bool:
        if nbytes > left[0]:
            return False
        left[0] -= nbytes
        return real(self, start, nbytes)

    monkeypatch.setattr(LockFile, "allocate", allocate)
    return left


def attach(name: str, rank: int, *, lazy: bool = True, **options: Any) -> nanokv.NanoKVCache:
    common: dict[str, Any] = {"page_bytes": PAGE, "world_size": 2, "elastic": True, "water": (100, 100)}
    more: dict[str, Any] = {"heap_options": {"lazy": True}} if lazy else {}
    return nanokv.NanoKVCache(HEAP, name=name, rank=rank, **common, **more, **options)


def taken(name: str) -> int:
    return path_of(name).stat().st_blocks * 512


def value(number: int, nbytes: int) -> torch.Tensor:
    return torch.full((nbytes,), number % 251, dtype=torch.uint8)


Put = Callable[[nanokv.NanoKVCache, str, torch.Tensor], object]


def plan(cache: nanokv.NanoKVCache, key: str, tensor: torch.Tensor) -> None:
    opened = cache.open_for_write(key, tensor.nbytes, preferred_segment=0)
    cache.engine.heap.segment(0)[opened.payload_base : opened.payload_base + tensor.nbytes] = tensor
    cache.commit(key)


def many(cache: nanokv.NanoKVCache, key: str, tensor: torch.Tensor) -> None:
    (error,) = cache.put_many([key], tensor[None], preferred_segment=0)
    if error is not None:
        raise error


PUTS: dict[str, Put] = {
    "put": lambda cache, key, tensor: cache.put(key, tensor, preferred_segment=0),
    "put, in steps": lambda cache, key, tensor: cache.put(key, tensor.repeat(2)[::2], preferred_segment=0),
    "put, checksum": lambda cache, key, tensor: cache.put(key, tensor, preferred_segment=0),
    "put_many": many,
    "a plan": plan,
}


@pytest.mark.parametrize("evict", [True, False], ids=["evict", "no-evict"])
@pytest.mark.parametrize("nbytes", [4 * PAGE, 50 * PAGE])
@pytest.mark.parametrize("name", PUTS)
def test_puts_take_no_memory_that_is_not_there(
    shm_name: str, granted: list[int], name: str, nbytes: int, evict: bool
) -> None:
    options = {"checksum": name == "put, checksum", "evict": evict}
    owner, other = attach(shm_name, 0, **options), attach(shm_name, 1, **options)
    try:
        before, refused, kept = taken(shm_name) + granted[0], 0, []
        for number in range(int(1.5 * GRANTED) // nbytes):
            try:
                PUTS[name](other, f"k{number}", value(number, nbytes))
                kept.append(number)
            except OutOfMemory:
                refused += 1
                if refused == 5:
                    break
        assert taken(shm_name) <= before + (1 << 16)
        assert granted[0] < GRANTED // 2 and len(kept) * nbytes > GRANTED // 3
        assert (refused == 0) == evict, (refused, len(kept))
        assert torch.equal(owner.get(f"k{kept[-1]}").view(-1), value(kept[-1], nbytes))
        # of those before, each may have gone: after a pause the newest is ripe as well
        got = {number: owner.get(f"k{number}", None) for number in kept}
        assert sum(tensor is not None for tensor in got.values()) * nbytes > GRANTED // 3
        for number, tensor in got.items():
            assert tensor is None or torch.equal(tensor.view(-1), value(number, nbytes))
    finally:
        close_and_check([owner, other])


def test_in_a_full_folder_larger_objects_find_room_too(shm_name: str, granted: list[int]) -> None:
    """Most free pages have no memory then; those of several small objects that lie together must go."""
    owner, other = attach(shm_name, 0), attach(shm_name, 1)
    try:
        sizes = [4, 50, 1, 20, 4, 100]  # in pages
        for number in range(600):
            nbytes = sizes[number // 100] * PAGE
            other.put(f"k{number}", value(number, nbytes), preferred_segment=0)
            assert torch.equal(owner.get(f"k{number}").view(-1), value(number, nbytes))
        assert granted[0] < GRANTED // 2
    finally:
        close_and_check([owner, other])


def test_in_a_full_folder_what_a_removal_gave_back_is_found(shm_name: str, granted: list[int]) -> None:
    owner, other = attach(shm_name, 0, evict=False), attach(shm_name, 1, evict=False)
    try:
        kept = 0
        with pytest.raises(OutOfMemory):
            for number in range(HEAP // PAGE):
                other.put(f"k{number}", value(number, 4 * PAGE), preferred_segment=0)
                kept += 1
        for number in range(kept):
            owner.remove(f"k{number}")
            other.put(f"again{number}", value(number, 4 * PAGE), preferred_segment=0)
    finally:
        close_and_check([owner, other])


def test_a_copy_takes_no_memory_that_is_not_there(shm_name: str, granted: list[int]) -> None:
    owner, other = attach(shm_name, 0), attach(shm_name, 1, lazy=False)
    try:
        before, made = taken(shm_name) + granted[0], 0
        for number in range(40):
            other.put(f"k{number}", value(number, 50 * PAGE), preferred_segment=1)
            try:
                made += other.replicate(f"k{number}", 0)
            except OutOfMemory:
                break
        assert 5 < made < 40 and taken(shm_name) <= before + (1 << 16)
    finally:
        close_and_check([owner, other])


def test_when_memory_comes_back_puts_find_room(shm_name: str, granted: list[int]) -> None:
    owner = attach(shm_name, 0, evict=False)
    try:
        granted[0] = 0
        with pytest.raises(OutOfMemory):
            for number in range(HEAP // PAGE):
                owner.put(f"k{number}", value(number, PAGE))
        granted[0] = HEAP
        owner.put("again", value(1, PAGE))
    finally:
        close_and_check([owner])


def test_a_full_folder_is_told_with_both_numbers(
    shm_name: str, granted: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    granted[0] = 0
    attach(shm_name, 0).close()
    assert "is full: segment 0 of world" in caplog.text and f"of the {HEAP} bytes that it may take" in caplog.text


def test_a_rank_that_left_gives_its_memory_back_and_takes_it_again(shm_name: str) -> None:
    stays = attach(shm_name, 1)
    for _ in range(2):
        leaves = attach(shm_name, 0)
        leaves.put("k", value(1, 1 << 19), preferred_segment=0)
        with_it = taken(shm_name)
        leaves.leave("drop")
        assert with_it - taken(shm_name) >= 1 << 19
    stays.close()


def test_a_segment_whose_rank_is_absent_gets_no_memory(shm_name: str) -> None:
    stays = attach(shm_name, 1)
    before = taken(shm_name)
    with pytest.raises(NanoKVError):
        stays.put("k", value(1, PAGE), preferred_segment=0)
    assert stays.engine.machine.begin(0, (1, 2), PAGE, 0, (0,) * 8, 1).status == Status.FULL
    stays.put("k", value(1, PAGE), preferred_segment=1)
    with pytest.raises(NanoKVError):
        stays.replicate("k", 0)
    assert taken(shm_name) - before < 4 << 20
    stays.close()


def test_the_system_itself_refuses(tmp_path: Path) -> None:
    """No more is asked for than is free: a try would take all that there is, and give it back."""
    with (tmp_path / "file").open("w+b") as file:
        locks = LockFile(os.dup(file.fileno()))
        about = os.statvfs(tmp_path)
        assert not locks.allocate(0, about.f_bavail * about.f_frsize + (1 << 40))
        assert locks.allocate(0, PAGE) and (tmp_path / "file").stat().st_size == PAGE
        locks.close()
        assert not locks.allocate(0, PAGE)

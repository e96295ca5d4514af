"""torch's symmetric memory: what needs no rank but this one. The stores and groups are torch's own."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C import _distributed_c10d

from nanokv.errors import HeapUnavailable
from nanokv.heap import available, open_heap
from nanokv.heap.process_group import Group, MeetingPoint
from nanokv.heap.symmetric_group import CountedStore, SymmetricGroup
from tests.support.heap_ranks import small_world

c10d: Any = _distributed_c10d  # its stubs are stricter than it is


def meeting(folder: Path, rank: int = 0, world_size: int = 2, timeout: float = 0.01) -> MeetingPoint:
    return MeetingPoint(rank, world_size, folder / "world.d", timeout)


def test_exchanges_are_counted_from_the_first_one_of_the_world() -> None:
    shared = c10d.HashStore()
    old, new = CountedStore(shared), CountedStore(shared)
    for step in range(3):
        old.set(f"CUDASymmetricMemory/{7 + step}/0", b"old")
        new.set(f"CUDASymmetricMemory/{step}/1", b"new")
        old.wait([f"CUDASymmetricMemory/{7 + step}/1"], timedelta(seconds=60))
        assert old.get(f"CUDASymmetricMemory/{7 + step}/1") == b"new"
        assert new.get(f"CUDASymmetricMemory/{step}/0") == b"old"


def test_other_keys_stay_as_they_are() -> None:
    shared = c10d.HashStore()
    CountedStore(shared).set("another/7/0", b"value")
    assert shared.get("another/7/0") == b"value"


def test_torchs_own_code_exchanges_through_the_store() -> None:
    """torch puts a prefix before the keys of a group, and calls the store from C++."""
    shared = c10d.HashStore()
    counted = CountedStore(shared)  # torch's reference alone would not keep its Python methods
    store = c10d.PrefixStore("group", counted)
    store.set("CUDASymmetricMemory/5/0", b"value")
    store.wait(["CUDASymmetricMemory/5/0"])
    assert store.get("CUDASymmetricMemory/5/0") == b"value"
    assert shared.get("group/CUDASymmetricMemory/0/0") == b"value"


def test_torch_finds_the_group_by_its_name_until_it_is_closed(tmp_path: Path) -> None:
    group = SymmetricGroup(meeting(tmp_path, rank=1))
    found = c10d._resolve_process_group(group.name)
    assert (found.rank(), found.size()) == (1, 2)
    group.close()
    group.close()
    with pytest.raises(RuntimeError, match="Could not resolve"):
        c10d._resolve_process_group(group.name)


def test_a_rank_that_does_not_come_to_an_exchange_ends_it(tmp_path: Path) -> None:
    """And not after five minutes, which is the default of a store."""
    group = SymmetricGroup(meeting(tmp_path))
    with pytest.raises(RuntimeError, match=r"(?i)timeout"):
        group.all_of("gpu", "mine")
    store = c10d._resolve_process_group(group.name).get_group_store()
    store.set("CUDASymmetricMemory/3/0", b"mine")
    with pytest.raises(RuntimeError, match=r"(?i)timeout"):
        store.wait(["CUDASymmetricMemory/3/1"])
    group.close()


def test_the_store_of_a_gloo_group_has_the_worlds_timeout(tmp_path: Path) -> None:
    group = Group(None, meeting(tmp_path, world_size=1, timeout=7.0))
    try:
        world: Any = torch.distributed.group.WORLD
        assert world.get_group_store().underlying_store.timeout == timedelta(seconds=7)
    finally:
        group.close()


def test_an_older_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert available()["torch_symm"] == "torch 2.10.1+cu128 is too old: 2.11 or later is needed"
    with pytest.raises(HeapUnavailable, match=r"torch 2\.10\.1\+cu128 is too old: 2\.11"):
        open_heap("torch_symm", small_world(1), 0)


def test_the_real_library_refuses_memory_of_a_cpu(tmp_path: Path) -> None:
    """All that a build of torch for CPUs has of symmetric memory: every call up to the allocation is the real one."""
    with pytest.raises(HeapUnavailable, match="SymmetricMemory does not support device type cpu"):
        open_heap("torch_symm", small_world(1, name="real", timeout=60.0), 0, device="cpu")

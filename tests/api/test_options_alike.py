"""Options that all ranks of a world must give alike: each rank learns at once what differs."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch

import nanokv
from nanokv.errors import HeapUnavailable, InvalidArgument, ReuseViolation
from nanokv.heap.shm import list_worlds
from nanokv.heap.shm_tools import inspect
from tests.support.rank_processes import new_folder
from tests.support.worlds import shm_world

USUAL: dict[str, Any] = {"heap_bytes": 64 * 4096, "page_bytes": 4096, "attach_timeout": 600.0}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with new_folder(monkeypatch):
        yield


def until_rank_0_waits() -> None:
    for _ in range(6000):
        with suppress(HeapUnavailable):
            if inspect("w").alive[0]:
                return
        time.sleep(0.01)
    raise TimeoutError("rank 0 has not come")


def refused(*wishes: dict[str, Any]) -> list[str]:
    """What the ranks are told, each of which attaches with wishes of its own.

    A rank that wishes for an elastic world waits for nobody, so it comes once rank 0 is there.
    """

    def attach(rank: int) -> str:
        if wishes[rank].get("elastic"):
            until_rank_0_waits()
        with pytest.raises(HeapUnavailable) as why:
            nanokv.NanoKVCache(name="w", rank=rank, world_size=len(wishes), **USUAL | wishes[rank])
        return str(why.value)

    with ThreadPoolExecutor(len(wishes)) as pool:
        return list(pool.map(attach, range(len(wishes))))


@pytest.mark.parametrize(
    ("option", "one", "other"),
    [
        ("heap_bytes", 64 * 4096, 128 * 4096),
        ("page_bytes", 4096, 8192),
        ("size_classes", [1, 2], [1, 4]),
        ("max_objects", 100, 101),
        ("ring_slots", 1024, 2048),
        ("shards", 1, 2),
        ("alloc", "device", "host"),
        ("checksum", False, True),
        ("elastic", False, True),
        ("evict", True, False),
        ("water", [80, 90], [85, 95]),
    ],
)
def test_an_option_of_any_world(option: str, one: object, other: object) -> None:
    first, second = refused({option: one}, {option: other})
    assert first == second
    assert f"{option}={one!r}" in first and f"{option}={other!r}" in first
    assert ("n_pages" in first, "max_objects" in first) == (False, option == "max_objects")
    assert list_worlds() == []
    for cache in shm_world("w", 2, USUAL["heap_bytes"], page_bytes=4096):
        cache.close()


@pytest.mark.parametrize(("option", "one", "other"), [("policy", "fifo", "last_access"), ("master_rank", 0, 1)])
def test_an_option_of_v1(option: str, one: object, other: object) -> None:
    first, second = refused({"alloc": "host", option: one}, {"alloc": "host", option: other})
    assert first == second and f"{option}={one!r}" in first and f"{option}={other!r}" in first


def test_the_policy_of_v2() -> None:
    first, second = refused({"policy": "fifo"}, {"policy": "clock"})
    assert first == second and "policy='fifo'" in first and "policy='clock'" in first


@pytest.mark.parametrize(("alloc", "policy"), [("device", "last_access"), ("host", "lifetimes"), ("host", "clock")])
def test_a_policy_of_the_other_side(alloc: Any, policy: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"with alloc='{alloc}', policy must be one of .*, not '{policy}'"):
        nanokv.local_world(1, 1 << 16, alloc=alloc, policy=policy)


def test_each_side_has_a_default_policy() -> None:
    for alloc, policy in (("device", "lifetimes"), ("host", "last_access")):
        (cache,) = nanokv.local_world(1, 1 << 16, page_bytes=4096, alloc=alloc)  # type: ignore[arg-type]
        with cache:
            assert cache.options.policy == policy


def test_options_that_may_differ() -> None:
    def attach(rank: int) -> nanokv.NanoKVCache:
        own: dict[str, Any] = {
            "identity": nanokv.Identity(f"m{rank}"),
            "write_timeout": 1.0 + rank,
            "rpc_timeout": 1.0 + rank,
        }
        sizes: dict[str, Any] = {"heap_bytes": 64 * 4096 + rank, "max_objects": (None, 128)[rank]}
        return nanokv.NanoKVCache(name="w", rank=rank, world_size=2, **USUAL | sizes | own)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(attach, range(2))
    with one, other:
        one.put("k", torch.ones(1))
        assert one.exists("k") and not other.exists("k")
        with pytest.raises(ReuseViolation):
            other.exists(one.digest("k"))

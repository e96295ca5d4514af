"""Worlds for the behaviour suite: every heap, both allocators, and fsck after each test."""

import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

import nanokv
from nanokv.config import Alloc
from nanokv.fsck import check_cache
from nanokv.heap.shm import list_worlds, remove_world
from nanokv.transfer import object_calls

World: TypeAlias = "list[nanokv.NanoKVCache]"  # a string: importing the cache takes torch
MakeWorld = Callable[..., World]

HEAP_BYTES = 1 << 20

pytest_plugins = ["tests.support.faults"]


@pytest.fixture(scope="session")
def shm_prefix() -> Iterator[str]:
    """The prefix of the names of this session's worlds. Files that tests leave are removed at the end."""
    prefix = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield prefix
    for name in list_worlds():
        if name.startswith(prefix):
            remove_world(name, force=True)


@pytest.fixture
def shm_name(shm_prefix: str) -> str:
    """A name for a world that no other test uses."""
    return f"{shm_prefix}-{secrets.token_hex(4)}"


def shm_world(name: str, n: int, heap_bytes: int, **options: Any) -> World:
    """A world of shared memory with all ranks in this process. Each attaches in a thread, to wait for the others."""

    def attach(rank: int) -> nanokv.NanoKVCache:
        return nanokv.NanoKVCache(heap_bytes, name=name, rank=rank, world_size=n, **options)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(attach, range(n)))


def close_and_check(world: World) -> None:
    """Flush, run fsck, close. A world at rest must hold every invariant."""
    living = [cache for cache in world if not cache.closed]
    try:
        for cache in living:
            cache.flush()
        breaches = check_cache(living).breaches if living else ()
    finally:
        for cache in living:
            cache.close()
    assert not breaches, "fsck after the test:\n" + "\n".join(map(str, breaches))


@pytest.fixture
def calls_in_python() -> Iterator[None]:
    """Caches that the test makes have no native calls: to compare the two ways, or to inject faults into Python's."""
    with object_calls.calls_in_python():
        yield


@pytest.fixture
def new_world(shm_prefix: str) -> Iterator[MakeWorld]:
    """Makes worlds of a heap and an allocator that the test names; each is checked and closed after the test."""
    worlds: list[World] = []

    def make(*, heap: str, alloc: Alloc, n: int = 2, heap_bytes: int = HEAP_BYTES, **options: Any) -> World:
        if heap == "shm":
            name = options.pop("name", f"{shm_prefix}-{secrets.token_hex(4)}")
            world = shm_world(name, n, heap_bytes, alloc=alloc, **options)
        else:
            world = nanokv.local_world(n, heap_bytes, alloc=alloc, **options)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        close_and_check(world)


#: each heap and each allocator; in `make test` those two pairs that have all four, production's among them
PAIRS = (
    "shm-device",
    "local-host",
    *(pytest.param(pair, marks=pytest.mark.exhaustive) for pair in ("local-device", "shm-host")),
)


@pytest.fixture(params=PAIRS)
def make_world(request: pytest.FixtureRequest, new_world: MakeWorld) -> MakeWorld:
    """Makes worlds of each heap and each allocator: a test that takes it runs four times, in `make test` twice."""
    heap, alloc = request.param.split("-")

    def make(**options: Any) -> World:
        return new_world(**({"heap": heap, "alloc": alloc} | options))

    return make

"""Calls about many keys answer as the calls about each of them, whatever the tensors are."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import nanokv
from nanokv.errors import DuplicateKey, InvalidArgument, OutOfMemory
from tests.support.worlds import MakeWorld, World

PAGE = 1 << 12
N = 40
SHAPE = (3, 16)


def rows(dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(N * 48).view(N, *SHAPE).to(dtype)


TENSORS: dict[str, Callable[[], Sequence[torch.Tensor] | torch.Tensor]] = {
    "a list": lambda: list(rows()),
    "a tuple": lambda: tuple(rows()),
    "rows": rows,
    "rows of bfloat16": lambda: rows(torch.bfloat16),
    "rows with gaps": lambda: torch.arange(N * 96).view(N, 2, *SHAPE)[:, 1],
    "rows that are not contiguous": lambda: rows().transpose(1, 2),
    "rows of another order": lambda: rows().transpose(0, 1).contiguous().transpose(0, 1),
    "rows that are conjugated": lambda: torch.view_as_complex(torch.randn(N, *SHAPE, 2)).conj(),
    "rows that are one": lambda: torch.arange(48).view(SHAPE).expand(N, *SHAPE),
    "rows of no dimension": lambda: torch.arange(N),
    "rows without elements": lambda: torch.zeros(N, 0),
    "parameter": lambda: torch.nn.Parameter(rows(torch.float32)),
    "shapes": lambda: [torch.arange(i + 1) for i in range(N)],
    "dtypes": lambda: [rows(dtype)[0] for dtype in (torch.int32, torch.int64) * (N // 2)],
    "strides": lambda: [each.mT if i % 2 else each.mT.contiguous() for i, each in enumerate(rows())],
    "some conjugated": lambda: [
        each.conj() if i % 2 else each for i, each in enumerate(torch.view_as_complex(torch.randn(N, *SHAPE, 2)))
    ],
    "large": lambda: [torch.full((300_000,), float(i)) for i in range(N)],
}
DIGESTS: dict[str, Callable[[nanokv.NanoKVCache, list[str]], Any]] = {
    "str": lambda cache, names: names,
    "Digests": lambda cache, names: cache.digests(names),
}


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one thread the machine copies every size
    return make_world(n=2, heap_bytes=1 << 27, page_bytes=1 << 16)


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("owner", [None, 1])
def test_tensors_of_all_kinds(world: World, kind: str, owner: int | None) -> None:
    tensors, keys = TENSORS[kind](), [f"k{i}" for i in range(N)]
    assert world[0].put_many(keys, tensors, preferred_segment=owner) == [None] * N
    for found in (world[1].get_many(keys), [world[0].get(key) for key in keys]):
        for got, put in zip(found, tensors, strict=True):
            assert got is not None and got.dtype == put.dtype and got.shape == put.shape and torch.equal(got, put)
    stats = world[0].stats()
    assert (stats["puts"], stats["bytes_tx"]) == (N, sum(tensor.nbytes for tensor in tensors))
    assert (stats["gets"], stats["bytes_rx"]) == (N, stats["bytes_tx"])


@pytest.mark.parametrize("kind", DIGESTS)
def test_into_rows(world: World, kind: str) -> None:
    source, names = rows(), [f"k{i}" for i in range(N)]
    keys = DIGESTS[kind](world[0], names)
    world[0].put_many(keys, source)
    world[1].remove_many(keys[3:5])
    wide = torch.full((N, 2, *SHAPE), -1, dtype=torch.int32)
    there = [i not in (3, 4) for i in range(N)]
    assert world[1].get_many(keys, dsts=wide[:, 0]) == there == world[0].exists_many(keys)
    source[3:5] = -1
    assert torch.equal(wide[:, 0], source) and (wide[:, 1] == -1).all()
    assert world[0].prefix_length(keys) == 3
    stats = world[1].stats()
    assert (stats["gets"], stats["misses"], stats["bytes_rx"]) == (N - 2, 2, (N - 2) * 192)
    assert world[1].remove_many(keys) == there and world[0].exists_many(keys) == [False] * N


def test_into_a_list_answers_its_tensors(world: World) -> None:
    source = rows()
    world[0].put_many([str(i) for i in range(N)], source)
    dsts = list(torch.zeros_like(source))
    found = world[1].get_many([*(str(i) for i in range(N - 1)), "none"], dsts=dsts)
    assert all(got is dst for got, dst in zip(found[:-1], dsts, strict=False)) and found[-1] is None
    assert torch.equal(torch.stack(dsts[:-1]), source[:-1])


def test_rows_of_another_dtype_are_refused_unless_reinterpreted(world: World) -> None:
    source, keys = rows(), [str(i) for i in range(N)]
    world[0].put_many(keys, source)
    dst = torch.zeros(N, 192, dtype=torch.uint8)
    with pytest.raises(InvalidArgument, match="reinterpret=True"):
        world[1].get_many(keys, dsts=dst)
    assert not dst.any()
    assert world[1].get_many(keys, dsts=dst, reinterpret=True) == [True] * N
    assert torch.equal(dst, source.view(torch.uint8).view(N, 192))


def test_of_equal_keys_the_first_one_is_put(world: World) -> None:
    first, *others = world[0].put_many(["k"] * N, rows())
    assert first is None and all(isinstance(error, DuplicateKey) for error in others)
    assert torch.equal(world[1].get("k"), rows()[0])
    stats = world[0].stats()
    assert (stats["puts"], stats["put_errors"]) == (1, N - 1)


def test_no_keys_and_no_rows(world: World) -> None:
    cache = world[0]
    for none, tensors in (([], []), (cache.digests([]), torch.zeros(0, 8)), ([], torch.zeros(0))):
        assert cache.put_many(none, tensors) == [] == cache.get_many(none, dsts=tensors)
        assert cache.exists_many(none) == [] == cache.remove_many(none) and cache.prefix_length(none) == 0


def test_wrong_rows(world: World) -> None:
    cache = world[0]
    for tensors in (torch.zeros(3, 8), torch.zeros(1, 8)):
        for call in (lambda t: cache.put_many(["a", "b"], t), lambda t: cache.get_many(["a", "b"], dsts=t)):
            with pytest.raises(InvalidArgument, match=f"2 keys and {len(tensors)}"):
                call(tensors)
    for call in (lambda t: cache.put_many(["a"], t), lambda t: cache.get_many(["a"], dsts=t)):
        with pytest.raises(InvalidArgument, match="has rows"):
            call(torch.tensor(1.0))


def test_what_finds_no_room_is_answered_for_its_key(new_world: MakeWorld) -> None:
    (cache,) = new_world(heap="local", alloc="device", n=1, heap_bytes=8 * PAGE, page_bytes=PAGE, evict=False)
    outcomes = cache.put_many([str(i) for i in range(10)], torch.zeros(10, PAGE, dtype=torch.uint8))
    assert outcomes[:8] == [None] * 8 and all(isinstance(error, OutOfMemory) for error in outcomes[8:])
    assert cache.exists_many([str(i) for i in range(10)]) == [True] * 8 + [False] * 2


def test_what_evicts_makes_room_for_all(new_world: MakeWorld) -> None:
    (cache,) = new_world(heap="local", alloc="device", n=1, heap_bytes=8 * PAGE, page_bytes=PAGE)
    for i in range(10):
        keys = [f"{i} {j}" for j in range(6)]
        assert cache.put_many(keys, torch.full((6, PAGE), i, dtype=torch.uint8)) == [None] * 6
        assert cache.exists_many(keys) == [True] * 6


def test_checksums_of_rows(new_world: MakeWorld) -> None:
    world = new_world(heap="shm", alloc="device", n=2, page_bytes=PAGE, checksum=True)
    world[0].put_many(["a", "b"], rows()[:2], preferred_segment=1)
    dst = torch.zeros_like(rows()[:2])
    assert world[1].get_many(["a", "b"], dsts=dst) == [True, True] and torch.equal(dst, rows()[:2])


def test_more_keys_than_one_native_call_takes(new_world: MakeWorld) -> None:
    (cache,) = new_world(heap="local", alloc="device", n=1, heap_bytes=10_000 * 64, page_bytes=64)
    source = torch.arange(9_000).view(-1, 1)
    keys = cache.digests(str(i) for i in range(len(source)))
    assert not any(cache.put_many(keys, source))
    assert all(cache.exists_many(keys)) and cache.prefix_length(keys) == len(keys)
    dst = torch.zeros_like(source)
    assert all(cache.get_many(keys, dsts=dst)) and torch.equal(dst, source)
    cache.flush()
    assert cache.stats()["ring_missed"] == 0 and len(list(cache.segment_keys())) == len(keys)
    assert all(cache.remove_many(keys)) and not any(cache.exists_many(keys))


def test_a_sleeping_poller_learns_of_each_put(new_world: MakeWorld) -> None:
    world = new_world(heap="shm", alloc="device", n=2, page_bytes=PAGE)
    for lap in range(3):
        heard: list[Any] = []
        stop = world[1].subscribe(heard.extend)
        keys = [f"{lap} {i}" for i in range(N)]
        time.sleep(0.05)  # after 10 ms without hints a poller sleeps
        world[0].put_many(keys, rows(), preferred_segment=1)
        world[1].flush()
        assert len(heard) == N
        world[0].remove_many(keys)
        world[1].flush()
        assert len(heard) == 2 * N
        stop()

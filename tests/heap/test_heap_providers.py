"""One contract, every provider. Where the real library needs GPUs, a stand-in of its host interface takes its place
(`heap_standins`), with ranks that are processes; the tests marked `gpu` run the same contract on the real thing."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanokv.check.machine.rank_process import PATIENCE
from nanokv.device.segment.geometry import PAYLOAD_ALIGN
from nanokv.errors import HeapUnavailable, InvalidArgument, KeyNotFound, PeerLost
from nanokv.heap import KINDS, available, open_heap
from nanokv.heap.mapped_tensor import tensor_at
from nanokv.heap.torch_symm import NO_MULTICAST, OVERLAPPING
from tests.support.heap_ranks import PROVIDERS, here, plan, small_world
from tests.support.rank_processes import Start
from tests.support.until import until

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the stand-ins run the same tests"),
]
on_gpus = [*on_gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]

OF_2025 = pytest.param("iris of 2025", marks=pytest.mark.exhaustive)
STAND_INS = [
    "torch_symm",
    pytest.param("torch_symm, behind an offset", marks=pytest.mark.exhaustive),
    pytest.param("torch_symm, one GPU", marks=pytest.mark.exhaustive),
    OF_2025,
    "iris of 2026",
    pytest.param("iris of 2026, with a map", marks=pytest.mark.exhaustive),
]
# those that differ in how they come and go; where memory lies makes no difference to that
LIBRARIES = ["torch_symm", OF_2025, "iris of 2026"]
COMERS = ["shm", *LIBRARIES, pytest.param("torch_symm on the GPU", marks=on_gpu)]
OF_PROCESSES = ["shm", *STAND_INS, pytest.param("torch_symm on the GPU", marks=on_gpu)]
ALL = [
    "local",
    pytest.param("local on the GPU", marks=on_gpu),
    pytest.param("local on two GPUs", marks=on_gpus),
    *OF_PROCESSES,
]
DEVICES = {"local": "cpu", "local on the GPU": "cuda:0", "local on two GPUs": ["cuda:0", "cuda:1"]}

NewWorld = Callable[..., list[Any]]


@pytest.fixture
def new_world(start: Start) -> NewWorld:
    """Makes a world of a provider: its ranks, all attached."""

    def make(provider: str, n: int = 2, **wishes: Any) -> list[Any]:
        if provider in DEVICES:
            return list(here(n, DEVICES[provider], **wishes))
        ranks = [start(rank, n, provider, **wishes) for rank in range(n)]
        for rank in ranks:
            rank.arrive()
        return ranks

    return make


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same time; returns the result or the error of each."""
    found: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            found[i] = calls[i]()
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return found


# --- segments ---
@pytest.mark.parametrize("provider", ALL)
def test_a_rank_says_who_it_is_and_where_segments_lie(new_world: NewWorld, provider: str) -> None:
    geometry = plan(2)
    for rank, asked in enumerate(new_world(provider)):
        facts = asked.ask("facts")
        assert facts["kind"] == (PROVIDERS[provider].kind if provider in PROVIDERS else "local")
        assert (facts["rank"], facts["world_size"], facts["geometry"]) == (rank, 2, geometry)
        assert (facts["incarnation"], facts["recovered"]) == (1, False)
        assert facts["bases"] == facts["addresses"]
        assert all(base % PAYLOAD_ALIGN == 0 for base in facts["bases"])
        assert facts["shapes"] == [("torch.uint8", (geometry.segment_bytes,))] * 2
        assert facts["devices"][rank] == facts["device"]
        if facts["device"] == "cpu":
            assert facts["views"] == [(base, geometry.segment_bytes) for base in facts["bases"]]
        else:
            assert facts["views"] == [None, None]


@pytest.mark.parametrize("provider", ALL)
def test_segments_are_new_and_say_whose_they_are(new_world: NewWorld, provider: str) -> None:
    worlds = set()
    for asked in new_world(provider):
        for owner in range(2):
            mismatch, ctl = asked.ask("control", owner)
            assert mismatch is None
            assert (ctl["rank"], ctl["water_lo"], ctl["water_hi"], ctl["may_evict"]) == (owner, 80, 90, 1)
            assert (ctl["epoch"], ctl["closed"]) == (1, 0)
            assert asked.ask("rest_is_zero", owner)
            worlds.add(int(ctl["world_id"]))
    assert len(worlds) == 1
    assert 0 not in worlds


@pytest.mark.parametrize("provider", ALL)
def test_every_rank_reads_what_every_rank_writes(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider, 3)
    last = plan(3).segment_bytes - 1
    for writer, asked in enumerate(ranks):
        for owner in range(3):
            asked.ask("poke", owner, last - writer, 10 * writer + owner + 1)
    for asked in ranks:
        in_host_memory = asked.ask("facts")["device"] == "cpu"
        for owner in range(3):
            for writer in range(3):
                wanted = 10 * writer + owner + 1
                assert asked.ask("peek", owner, last - writer) == wanted
                assert not in_host_memory or asked.ask("peek_address", owner, last - writer) == wanted


# --- who is there ---
@pytest.mark.parametrize("provider", ALL)
def test_who_lives_is_alive_and_who_cannot_exist_is_not(new_world: NewWorld, provider: str) -> None:
    for asked in new_world(provider):
        assert [asked.ask("alive", rank, 1) for rank in range(2)] == [True, True]
        assert [asked.ask("peer_closed", rank) for rank in range(2)] == [False, False]
        for rank, incarnation in ((-1, 1), (2, 1), (900, 1), (0, 0), (1, 0), (1, 2)):
            assert not asked.ask("alive", rank, incarnation)


@pytest.mark.parametrize("provider", ALL)
def test_a_rank_closes(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider)
    ranks[0].ask("poke", 1, -1, 9)
    ranks[1].ask("close")
    ranks[1].ask("close")
    assert ranks[0].ask("peer_closed", 1)
    assert not ranks[0].ask("alive", 1, 1)
    assert ranks[0].ask("alive", 0, 1)
    assert ranks[0].ask("control", 1)[1]["closed"] == 1
    assert ranks[0].ask("peek", 1, -1) == 9
    with pytest.raises(HeapUnavailable, match="rank 1"):
        ranks[1].ask("peek", 0, 0)
    with pytest.raises(HeapUnavailable, match="rank 1"):
        ranks[1].ask("barrier", PATIENCE)
    with pytest.raises(PeerLost, match=r"\[1\]"):
        ranks[0].ask("barrier", PATIENCE)
    ranks[0].ask("wake", 1)
    ranks[0].ask("close")


@pytest.mark.parametrize("provider", ALL)
def test_a_barrier_names_who_is_late_and_can_be_tried_again(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider, 3)
    for _ in range(2):
        with pytest.raises(PeerLost, match=r"\[1, 2\] did not come within 0.01 s"):
            ranks[0].ask("barrier", 0.01)
    last = plan(3).segment_bytes - 1

    def turn(rank: int) -> list[int]:
        asked, seen = ranks[rank], []
        for value in range(1, 6):
            asked.ask("poke", rank, last, value)
            asked.ask("barrier", PATIENCE)
            seen += [asked.ask("peek", other, last) - value for other in range(3)]
            asked.ask("barrier", PATIENCE)
        return seen

    assert at_once(*(lambda r=r: turn(r) for r in range(3))) == [[0] * 15] * 3


@pytest.mark.parametrize("provider", ALL)
def test_a_wake_of_any_rank_ends_a_wait_for_any_hint(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider)
    ranks[1].ask("wait_for_any_hint", 600.0, False)  # what was waited for has come
    ranks[1].ask("wait_for_any_hint", 0.001, True)
    waiter = threading.Thread(target=lambda: ranks[1].ask("wait_for_any_hint", 600.0, True), daemon=True)
    waiter.start()

    def is_woken() -> bool:
        ranks[0].ask("wake", 0)  # again and again: one before the wait is lost
        return not waiter.is_alive()

    until(is_woken)


@pytest.mark.parametrize("provider", ALL)
def test_a_wake_ends_the_wait(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider)
    ranks[1].ask("wait_for_hint", 600.0, 5)  # ann_head is 0: something has come, or the device is looked at again
    waiter = threading.Thread(target=lambda: ranks[1].ask("wait_for_hint", 600.0, 0), daemon=True)
    waiter.start()

    def is_woken() -> bool:
        ranks[0].ask("wake", 1)  # again and again: a wake before the wait is lost, except in the waiter's own process
        return not waiter.is_alive()

    until(is_woken)


# --- coming and going of processes ---
@pytest.mark.parametrize("provider", COMERS)
def test_a_peer_is_killed(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider, 3)
    ranks[2].ask("poke", 2, -1, 77)
    ranks[2].kill()
    for asked in ranks[:2]:
        assert not asked.ask("alive", 2, 1)
        until(lambda asked=asked: asked.ask("peer_closed", 2))  # type: ignore[misc]
        assert asked.ask("alive", 0, 1) and asked.ask("alive", 1, 1)
        with pytest.raises(PeerLost, match=r"barrier: ranks \[2\] of world '.*' have ended"):
            asked.ask("barrier", PATIENCE)
        assert asked.ask("peek", 2, -1) == 77  # a survivor's mapping stays


@pytest.mark.parametrize("provider", LIBRARIES)
def test_a_rank_that_died_cannot_come_back_until_all_have_gone(
    new_world: NewWorld, start: Start, name: str, provider: str
) -> None:
    ranks = new_world(provider)
    ranks[1].kill()
    again = start(1, 2, provider)
    with pytest.raises(HeapUnavailable, match=rf"rank 1 of world '{name}' has died, .* it cannot come back"):
        again.arrive()
    assert not ranks[0].ask("peer_closed", 0)
    assert ranks[0].ask("control", 1)[0] is None  # and nothing has touched the old world
    ranks[0].ask("close")
    ranks[0].end()
    for asked in new_world(provider):
        assert asked.ask("rest_is_zero", 1)
        asked.ask("close")


@pytest.mark.parametrize("provider", COMERS)
def test_a_world_that_all_have_closed_leaves_nothing_and_may_begin_anew(
    new_world: NewWorld, folder: Path, provider: str
) -> None:
    for _ in range(2):
        ranks = new_world(provider)
        for asked in ranks:
            asked.ask("close")
            assert not asked.ask("has_group")
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("provider", COMERS)
def test_a_process_leaves_a_world_and_joins_the_next_one(new_world: NewWorld, start: Start, provider: str) -> None:
    """Once with a process that was in no world before, so that they have come to different numbers of exchanges."""
    ranks = new_world(provider)
    for turn in range(2):
        for asked in ranks:
            asked.ask("close")
        if turn == 0:
            ranks[1].end()
            ranks[1] = start(1, 2, provider)
            come = at_once(lambda: ranks[0].ask("attach"), ranks[1].arrive)
        else:
            come = at_once(*(lambda asked=asked: asked.ask("attach") for asked in ranks))
        assert come == [(1, False)] * 2
        for rank, asked in enumerate(ranks):
            assert asked.ask("rest_is_zero", rank)
        for rank, asked in enumerate(ranks):
            asked.ask("poke", 1 - rank, -1, 10 * turn + rank + 1)
        for rank, asked in enumerate(ranks):
            assert asked.ask("peek", rank, -1) == 10 * turn + (1 - rank) + 1


@pytest.mark.parametrize("provider", STAND_INS)
def test_close_gives_the_memory_back(new_world: NewWorld, provider: str) -> None:
    for asked in new_world(provider):
        assert asked.ask("close_and_count") == 0


def test_a_program_that_ends_all_its_groups_can_close(new_world: NewWorld) -> None:
    ranks = new_world("torch_symm")
    ranks[0].ask("destroy_groups")
    ranks[1].ask("poke", 0, -1, 5)
    assert ranks[0].ask("peek", 0, -1) == 5
    assert ranks[0].ask("close_and_count") == 0


@pytest.mark.parametrize("provider", LIBRARIES)
def test_who_has_closed_waits_for_the_others_before_it_begins_anew(
    new_world: NewWorld, start: Start, name: str, provider: str
) -> None:
    old = new_world(provider)
    old[0].ask("close")
    new = [start(0, 2, provider)]
    assert old[1].ask("peer_closed", 0)
    old[1].ask("close")
    new.append(start(1, 2, provider))
    for asked in new:
        asked.arrive()
        assert asked.ask("alive", 0, 1) and asked.ask("alive", 1, 1)


@pytest.mark.parametrize("provider", LIBRARIES)
def test_who_has_closed_is_told_that_the_others_have_not(
    new_world: NewWorld, start: Start, name: str, provider: str
) -> None:
    new_world(provider)[0].ask("close")
    with pytest.raises(HeapUnavailable, match=rf"rank 0 of world '{name}' has closed, .* all ranks must leave"):
        start(0, 2, provider, timeout=0.05).arrive()


@pytest.mark.parametrize("provider", COMERS)
def test_a_rank_that_does_not_come_is_named(start: Start, name: str, folder: Path, provider: str) -> None:
    alone = start(1, 3, provider, timeout=0.2)
    with pytest.raises(PeerLost, match=rf"ranks \[0, 2\] of world '{name}' did not come within 0.2 s"):
        alone.arrive()
    assert alone.ask("has_group") is False  # no process group was made, either
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("provider", COMERS)
def test_a_rank_is_taken(new_world: NewWorld, start: Start, name: str, provider: str) -> None:
    ranks = new_world(provider)
    with pytest.raises(HeapUnavailable, match=rf"rank 1 of world '{name}' is taken by a living process"):
        start(1, 2, provider).arrive()
    assert ranks[0].ask("alive", 1, 1)


@pytest.mark.parametrize("provider", ["shm", "torch_symm", "iris of 2026"])
@pytest.mark.parametrize(
    ("wishes", "error", "message"),
    [
        ({"geometry": plan(2, pages=17)}, HeapUnavailable, "has heap_bytes=65536; rank 1 asks for heap_bytes=69632"),
        ({"geometry": plan(3)}, HeapUnavailable, "has world_size=2; rank 1 asks for world_size=3"),
        ({"mode": "host"}, HeapUnavailable, "has alloc='device'; rank 1 asks for alloc='host'"),
        ({"mode": "v3"}, InvalidArgument, "mode must be one of .* not 'v3'"),
        ({"geometry": plan(1)}, InvalidArgument, "rank must be 0 to 0, not 1"),
    ],
)
def test_wishes_that_do_not_fit(
    new_world: NewWorld, start: Start, name: str, provider: str, wishes: dict[str, Any], error: Any, message: str
) -> None:
    ranks = new_world(provider)
    with pytest.raises(error, match=message):
        start(1, 2, provider, **wishes).arrive()
    assert ranks[0].ask("alive", 1, 1)


# --- refusals of a library ---
@pytest.mark.parametrize(
    ("provider", "messages"),
    [
        ("torch_symm, overlapping", [r"allow_overlapping=True\. torch says: .*overlapping"] * 2),
        (
            "torch_symm, no memory",
            [r"ranks \[1\] of world '.*' have ended", r"no symmetric memory of \d+ bytes on cpu"],
        ),
        ("torch_symm, out of reach", [r"rank 0 cannot reach the memory of ranks \[1\]", "rank 1 cannot reach"]),
        (
            "torch_symm, other offsets",
            [r"heap_offset is 4096 on rank 1, 0 on rank 0", "heap_offset is 0 on rank 0, 4096"],
        ),
        (
            "torch_symm, wrong addresses",
            ["rank 1 at .*: rank is 0, not 1", "rank 0 at .*: rank is 1, not 0"],
        ),
        ("torch_symm of NVSHMEM", ["backend for symmetric memory is NVSHMEM.* unset TORCH_SYMMMEM|have ended"] * 2),
        ("iris, uint64 over gloo", ["Invalid scalar type; .* default group with nccl|have ended"] * 2),
        ("iris, a strict one", ["ValueError: peer_bases.* another interface|have ended"] * 2),
        ("iris, another one", ["AttributeError: .* another interface|have ended"] * 2),
        ("torch_symm, unaligned", ["segment of rank 1 at 0x.*40, which is no multiple of 4096", "segment of rank 0"]),
        ("torch_symm, itself, on a CPU", ["no symmetric memory of .* on cpu"] * 2),
        pytest.param(
            "torch_symm, no GPU",
            ["torch_symm: torch finds no CUDA or ROCm device"] * 2,
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (  # or the first to be refused has left while the other was still on its way to it
            "iris, no memory",
            [r"iris: no symmetric heap of \d+ bytes: OutOfMemoryError: HIP out of memory|cannot make a process group"]
            * 2,
        ),
        ("iris, other heaps", ["heap_offset is 4096 on rank 1", "heap_offset is 0 on rank 0, 4096 on rank 1"]),
        pytest.param(
            "iris, itself",
            ["the package iris|No module named 'iris'"] * 2,
            marks=pytest.mark.skipif(available()["iris"] is None, reason="there is iris"),
        ),
    ],
)
def test_what_a_library_refuses_is_said_and_leaves_nothing(
    start: Start, name: str, folder: Path, provider: str, messages: list[str]
) -> None:
    ranks = [start(rank, 2, provider) for rank in range(2)]
    for rank, message in zip(ranks, messages, strict=True):
        with pytest.raises((HeapUnavailable, PeerLost), match=message):
            rank.arrive()
    assert [rank.ask("has_group") for rank in ranks] == [False, False]
    assert list(folder.iterdir()) == []


# --- the whole cache ---
@pytest.mark.parametrize("provider", ALL)
@pytest.mark.parametrize("alloc", ["device", "host"])
def test_put_and_get_through_the_cache(new_world: NewWorld, provider: str, alloc: str) -> None:
    ranks = new_world(provider, mode=alloc)
    for asked in ranks:
        asked.ask("open_cache", alloc=alloc)
    for rank, asked in enumerate(ranks):
        for owner in range(2):
            asked.ask("put", f"{rank} to {owner}", [rank, owner, 7], owner)
    for asked in ranks:
        for rank in range(2):
            for owner in range(2):
                assert asked.ask("get", f"{rank} to {owner}") == [rank, owner, 7]
                assert asked.ask("owner_of", f"{rank} to {owner}") == owner
    ranks[0].ask("remove", "1 to 1")
    with pytest.raises(KeyNotFound):
        ranks[1].ask("get", "1 to 1")
    for asked in ranks:
        asked.ask("close_cache")


@pytest.mark.parametrize("provider", ["shm", "torch_symm", "iris of 2026"])
def test_a_killed_peer_is_an_error_for_puts_to_it_alone(new_world: NewWorld, provider: str) -> None:
    ranks = new_world(provider, 3)
    for asked in ranks:
        asked.ask("open_cache")
    ranks[2].kill()
    until(lambda: ranks[0].ask("peer_closed", 2))
    with pytest.raises(PeerLost, match="rank 2"):
        ranks[0].ask("put", "lost", [1], 2)
    keys = [f"key {i}" for i in range(4)]
    for key in keys:
        ranks[0].ask("put", key, [2], 1)
    assert [ranks[1].ask("get", key) for key in keys] == [[2]] * 4


@pytest.mark.parametrize(
    ("functions", "context"),
    [
        ("nanokv.device.remote", "NewContext"),
        pytest.param("tests.support.heap_iris_device", "OldContext", marks=pytest.mark.exhaustive),
        pytest.param("nanokv.device.remote", "OldContext", marks=pytest.mark.exhaustive),
        pytest.param("tests.support.heap_iris_device", "NewContext", marks=pytest.mark.exhaustive),
    ],
)
def test_kernels_reach_peers_by_the_bases_of_the_iris_provider(name: str, functions: str, context: str) -> None:
    """With our own device functions of iris' signatures, and with ones that calculate as iris does."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.heap_iris_kernels", name, functions, context],
            env=environment | {"RANK": str(rank)},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=500)[0] for rank in ranks] == ["", "True 40\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]


# --- the process group ---
def test_the_callers_process_group_is_used_and_stays(new_world: NewWorld) -> None:
    for asked in new_world("torch_symm, a group of the caller"):
        assert asked.ask("has_group")
        asked.ask("close")
        assert asked.ask("has_group")


def test_a_process_group_that_numbers_ranks_differently(start: Start, name: str) -> None:
    ranks = [start(rank, 2, "torch_symm, a group the other way round") for rank in range(2)]
    for i, rank in enumerate(ranks):
        with pytest.raises(InvalidArgument, match=f"rank {i} of 2 is rank {1 - i} of 2 in the process group"):
            rank.arrive()


# --- what there is ---
def test_available_knows_every_kind_and_tells_what_is_missing() -> None:
    found = available()
    assert tuple(found) == KINDS
    assert (found["local"], found["shm"]) == (None, None)
    if not torch.cuda.is_available():
        assert found["torch_symm"] == "torch finds no CUDA or ROCm device"
        assert "iris" in str(found["iris"]) or "no CUDA or ROCm device" in str(found["iris"])


def test_there_is_no_other_kind() -> None:
    with pytest.raises(InvalidArgument, match=r"kind must be one of .* not 'nvlink'"):
        open_heap("nvlink", small_world(1), 0)


def test_torchs_own_variable_is_as_before(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reads it for every user of symmetric memory in the process: it is set only during our rendezvous."""
    for asked in new_world("torch_symm, one GPU"):
        assert asked.ask("variable", OVERLAPPING) is None
        assert asked.ask("variable", NO_MULTICAST) is None


def test_a_tensor_over_foreign_memory_keeps_its_owner() -> None:
    owner = torch.arange(64, dtype=torch.uint8)
    gone: list[bool] = []

    class Owner:
        def __del__(self) -> None:
            gone.append(True)

    tensor = tensor_at(owner.data_ptr(), 64, torch.device("cpu"), Owner())
    assert tensor.data_ptr() == owner.data_ptr()
    assert torch.equal(tensor, owner)
    part = tensor[8:16]
    del tensor
    part[0] = 99
    assert (int(owner[8]), gone) == (99, [])
    del part
    assert gone == [True]

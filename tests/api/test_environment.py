"""A job that torchrun starts needs no arguments: ranks, name and allocator come from the environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nanokv
from nanokv.config import given_name, make_options, rank_from_env, world_size_from_env
from nanokv.errors import InvalidArgument

SCRIPT = """
import torch, nanokv
with nanokv.NanoKVCache(1 << 20, page_bytes=4096) as cache:
    cache.put(f"from {cache.rank}", torch.full((3,), cache.rank), preferred_segment=1 - cache.rank)
    cache.wait(["from 0", "from 1"], timeout=60)
    got = cache.get(f"from {1 - cache.rank}").tolist()
    print(cache.rank, cache.world_size, cache.alloc, got)
    cache.engine.heap.barrier(60)
"""


@pytest.mark.parametrize("alloc", ["device", pytest.param("host", marks=pytest.mark.exhaustive)])
def test_ranks_of_a_torchrun_job_meet(alloc: str, shm_name: str) -> None:
    job = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": shm_name, "MASTER_PORT": "29500", "NANOKV_ALLOC": alloc}
    environment = os.environ | job | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=environment | {"RANK": rank}, stdout=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    outputs = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert outputs == [f"0 2 {alloc} [1, 1, 1]\n", f"1 2 {alloc} [0, 0, 0]\n"]


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch, shm_name: str) -> None:
    monkeypatch.setenv("NANOKV_ALLOC", "host")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("NANOKV_NAME", shm_name)
    assert (rank_from_env(), world_size_from_env(), given_name()) == (3, 4, shm_name)
    assert make_options({}).alloc == "host"
    with nanokv.NanoKVCache(1 << 20, page_bytes=4096, rank=0, world_size=1, alloc="device") as cache:
        assert (cache.rank, cache.alloc, cache.engine.heap.name) == (0, "device", shm_name)


@pytest.mark.parametrize(("variable", "value"), [("RANK", "one"), ("WORLD_SIZE", "2.5"), ("NANOKV_ALLOC", "gpu")])
def test_what_the_environment_says_wrongly_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgument, match=variable):
        nanokv.NanoKVCache(1 << 20, page_bytes=4096)


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidArgument, match="evcit"):
        nanokv.NanoKVCache(1 << 20, page_bytes=4096, evcit=False)  # type: ignore[call-arg]

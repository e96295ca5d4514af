"""What the program around has set: another default device or dtype, inference mode, autocast, a umask, no streams."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv.device.machines import code_cache
from nanokv.tools.doctor import examine
from tests.support.worlds import MakeWorld, World

CPU = "cpu"


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    """New memory is filled, and what is not deterministic raises."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "device meta": lambda: torch.device("meta"),
    "dtype": lambda: default_dtype(torch.float64),
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast(CPU, dtype=torch.bfloat16),
    "deterministic": deterministic,
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Iterator[None]:
    with SETTINGS[request.param]():
        yield


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float32, device=CPU)


@pytest.mark.usefixtures("setting")
def test_tensors_come_back_as_they_were_put(make_world: MakeWorld, tmp_path: Path) -> None:
    world: World = make_world(n=2, heap_bytes=1 << 20, page_bytes=4096)
    given = {
        "small": ones(8),
        "large": ones(100_000),
        "strided": ones(4, 8).t(),
        "scalar": torch.tensor(3, dtype=torch.int16, device=CPU),
        "empty": torch.empty(0, 3, dtype=torch.float16, device=CPU),
        "half": ones(4).to(torch.bfloat16),
    }
    for key, tensor in given.items():
        world[0].put(key, tensor, preferred_segment=1)
    world[0].put_many(["m0", "m1"], ones(2, 8), preferred_segment=1)
    world[0].put_async("async", ones(8)).result(60)
    world[0].open_for_write("plan", 64)
    world[0].commit("plan")
    world[1].save(tmp_path / "file")
    world[1].clear()
    world[0].load(tmp_path / "file")
    for key, tensor in given.items():
        got = world[0].get(key)
        assert (got.dtype, got.shape, got.device) == (tensor.dtype, tensor.shape, tensor.device) and torch.equal(
            got, tensor
        )
        assert torch.equal(world[0].get(key, dst=torch.empty_like(tensor.contiguous())), tensor)
        with world[0].pin(key) as pinned:
            assert torch.equal(pinned, tensor)
    assert [each is not None for each in world[0].get_many(["m0", "m1", "none"])] == [True, True, False]
    assert world[0].get_many(["m0", "m1"], dsts=torch.empty(2, 8, dtype=torch.float32, device=CPU)) == [True, True]
    assert bytes(world[0].get_part("small", 0, 4).tolist()) == b"\0\0\x80?"
    assert world[0].get_async("async").result(60).device.type == CPU
    layers = [ones(4, 2, 4, 2, 8) for _ in range(2)]
    paged = world[0].paged_kv(layers, kv_dim=1)
    assert paged.put(["p"], [0]) == [None] and paged.get(["p"], [1]) == [None]
    assert world[0].heap_bases_tensor.tolist() == world[0].engine.heap.bases


def test_doctor_is_well() -> None:
    with torch.device("meta"):
        rows = {row.name: row for row in examine()}
    assert rows["smoke test"].state == "ok", rows["smoke test"].detail


def test_a_program_may_go_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables may name folders beside the first one."""
    (tmp_path / "worlds").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOKV_SHM_DIR", "worlds")
    cache = nanokv.NanoKVCache(1 << 20, page_bytes=4096, name="w", rank=0, world_size=1)
    assert [each.name for each in (tmp_path / "worlds").iterdir()] == ["nanokv.w"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    cache.put("k", ones(8))
    cache.close()
    assert list((tmp_path / "worlds").iterdir()) == []
    code_cache._absolute.cache_clear()
    monkeypatch.setenv("NANOKV_CACHE_DIR", "code")
    first = code_cache.cache_directory()
    monkeypatch.chdir(tmp_path)
    assert code_cache.cache_directory() == first and first.is_relative_to(tmp_path / "elsewhere" / "code")
    code_cache._absolute.cache_clear()


TINY = """
import os, nanokv, torch
with nanokv.NanoKVCache(1 << 20, page_bytes=4096, name=f"tiny-{os.getpid()}", rank=0, world_size=1) as cache:
    cache.put("k", torch.ones(3))
    assert cache.get("k").tolist() == [1, 1, 1]
"""


@pytest.mark.parametrize(
    "how",
    [
        "warnings are errors",
        pytest.param("no streams", marks=pytest.mark.exhaustive),
        pytest.param("umask", marks=pytest.mark.exhaustive),
    ],
)
def test_a_program_in_odd_surroundings(tmp_path: Path, how: str) -> None:
    arguments = ["-W", "error"] if how == "warnings are errors" else []
    shell = {"no streams": "exec <&- >&- 2>&-;", "umask": "umask 077;"}.get(how, "")
    done = subprocess.run(
        ["sh", "-c", f'{shell} exec "$@"', "sh", sys.executable, *arguments, "-c", TINY],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "tr_TR.UTF-8", "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=300,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()

"""Caches and pins that were dropped, and those that a child of a fork inherits."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nanokv
from nanokv.errors import ObjectPinned
from nanokv.heap.shm import list_worlds
from tests.support.faults import Calls
from tests.support.rank_processes import new_folder
from tests.support.until import until
from tests.support.worlds import shm_world

World = list[nanokv.NanoKVCache]
MakeWorld = Callable[..., World]
HEAP_BYTES = 1 << 20


def threads_of(rank: int) -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("nanokv-") and f"-{rank}" in each.name]


# --- dropped ---
@pytest.mark.parametrize("alloc", ["device", "host"])
def test_a_dropped_cache_leaves_its_world_and_warns(monkeypatch: pytest.MonkeyPatch, alloc: str) -> None:
    with new_folder(monkeypatch):
        (cache,) = shm_world("dropped", 1, HEAP_BYTES, alloc=alloc)
        cache.put("k", torch.ones(3))
        assert torch.equal(cache.get_async("k").wait(), torch.ones(3))
        cache.open_for_write("plan", 10)
        assert list_worlds() == ["dropped"]
        with pytest.warns(ResourceWarning, match="rank 0 of world 'dropped' was dropped without close"):
            del cache
            gc.collect()
        until(lambda: list_worlds() == [] and threads_of(0) == [])


def test_a_dropped_rank_is_seen_to_have_gone(new_world: MakeWorld) -> None:
    world = new_world(heap="local", alloc="device", n=2)
    world[0].open_for_write("plan", 10, preferred_segment=1)
    with pytest.warns(ResourceWarning, match="rank 0 of world 'local' was dropped"):
        del world[0]
        gc.collect()
    until(lambda: not world[0].alive(0))
    assert not world[0].exists("plan")
    world[0].put("plan", torch.ones(1))


def test_a_closed_cache_that_goes_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    (cache,) = nanokv.local_world(1, HEAP_BYTES)
    cache.close()
    del cache
    gc.collect()
    assert not [each for each in recwarn if issubclass(each.category, ResourceWarning)]


@pytest.mark.parametrize("in_host_memory", [True, False], ids=["an array", "a mapped tensor, as on a GPU"])
def test_a_dropped_pin_lasts_as_long_as_its_views(make_world: MakeWorld, calls: Calls, in_host_memory: bool) -> None:
    world = make_world(n=2, heap_bytes=HEAP_BYTES)
    if not in_host_memory:
        calls.answer(world[0].engine.heap, "host_view", None)
    world[0].put("k", torch.arange(8), preferred_segment=1)
    view = world[0].pin("k").tensor[2:]
    gc.collect()
    with pytest.raises(ObjectPinned):
        world[1].remove("k")
    assert view.tolist() == list(range(2, 8))
    with pytest.warns(ResourceWarning, match="a pin of the object at 0x.* in segment 1 was dropped without release"):
        del view
        gc.collect()

    def removed() -> bool:
        try:
            world[1].remove("k")
        except ObjectPinned:
            return False
        return True

    until(removed)


def test_a_pin_of_an_object_without_bytes_can_be_dropped(new_world: MakeWorld) -> None:
    (cache,) = new_world(heap="local", alloc="device", n=1)
    cache.put("k", torch.empty(0, 3))
    pinned = cache.pin("k")
    assert pinned.tensor.shape == (0, 3)
    with pytest.raises(ObjectPinned):
        cache.remove("k")
    with pytest.warns(ResourceWarning, match="was dropped without release"):
        del pinned
        gc.collect()


# --- forked ---
FORKED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import torch
import nanokv
from nanokv.errors import NanoKVError, ObjectPinned

alloc, how = sys.argv[1:]
cache = nanokv.NanoKVCache(1 << 20, name="forked", rank=0, world_size=1, alloc=alloc)
cache.put("k", torch.arange(8))
cache.put_async("a", torch.arange(8)).wait()
pinned = cache.pin("k")
paged = cache.paged_kv([torch.zeros(2, 2, 4, 2, 8)], kv_dim=1)
calls = {
    "put": lambda: cache.put("x", torch.ones(1)),
    "get": lambda: cache.get("k"),
    "pin": lambda: cache.pin("k"),
    "remove": lambda: cache.remove("k"),
    "wait": lambda: cache.wait("k", timeout=None),
    "put_async": lambda: cache.put_async("x", torch.ones(1)),
    "open_for_write": lambda: cache.open_for_write("x", 1),
    "paged": lambda: paged.put(["x"], [0]),
    "stats": lambda: cache.stats(),
}
parent = os.getpid()
child = os.fork()
if child == 0:
    for name, call in calls.items():
        try:
            call()
        except NanoKVError as error:
            assert f"made in process {parent}, of which this one ({os.getpid()}) is a fork" in str(error), error
        else:
            print("no error of", name, flush=True)
            os._exit(1)
    pinned.release()
    cache.close()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    del cache, pinned, paged, calls
    sys.exit()
_, status = os.waitpid(child, 0)
assert status == (signal.SIGKILL if how == "killed" else 0), status
assert cache.get("k").tolist() == list(range(8)) and cache.get_async("a").wait().tolist() == list(range(8))
try:
    cache.remove("k")
    print("the child took the parent's pin away")
except ObjectPinned:
    pass
pinned.release()
cache.remove("k")
assert nanokv.heap.shm.list_worlds() == ["forked"]
cache.close()
print("done")
"""


@pytest.mark.parametrize(
    ("how", "alloc"),
    [
        ("ends", "device"),
        ("killed", "host"),
        pytest.param("killed", "device", marks=pytest.mark.exhaustive),
        pytest.param("ends", "host", marks=pytest.mark.exhaustive),
    ],
)
def test_a_fork_cannot_use_the_cache_and_takes_nothing_away(
    monkeypatch: pytest.MonkeyPatch, alloc: str, how: str
) -> None:
    with new_folder(monkeypatch):
        root = Path(__file__).parents[2]
        ran = subprocess.run(
            [sys.executable, "-c", FORKED, alloc, how],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=root,
        )
        assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)
        assert list_worlds() == []

"""Two processes on one GPU: this one puts into the segment of the other and gets from it; the other gets, too.

On a GPU their segments are torch's symmetric memory. On a CPU they are shared memory: that shows that it works.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from nanokv import NanoKVCache
from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer
from nanokv.bench.suite.other_process import STARTUP, Peer

OTHER = 1  #: rank of the other process
SLOTS = 4  #: objects for which a segment has room


def measure(here: NanoKVCache, peer: Peer, settings: GpuSettings, size: int) -> dict[str, Any]:
    """One row: put and get by this process, get by the other one of the same object; each until the GPU is done.

    Raises:
        Unsound: a process got other bytes than were put.
    """
    device, rounds = here.device, settings.pair_rounds
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    back = torch.zeros_like(source)
    timer = Timer(device)
    for i in range(rounds + settings.warm):
        if i == settings.warm:
            timer.clear()
        key = f"{size} {i}"
        timer.time_call("put", lambda key=key: here.put(key, source, preferred_segment=OTHER))  # type: ignore[misc]
        back.zero_()
        timer.time_call("get", lambda key=key: here.get(key, dst=back))  # type: ignore[misc]
        if not torch.equal(back, source):
            raise Unsound(f"other bytes were got than were put, at {size} bytes")
        if i >= settings.warm + rounds - SLOTS // 2:
            continue
        here.remove(key)
    kept = [f"{size} {i}" for i in range(rounds + settings.warm - SLOTS // 2, rounds + settings.warm)]
    there = peer.call("nanokv.bench.gpu.two_processes:got", keys=kept, size=size, rounds=rounds)
    if there["sum"] != int(source.long().sum()):
        raise Unsound(f"the other process got other bytes than were put, at {size} bytes")
    for key in kept:
        here.remove(key)
    return {"size": size, "us": timer.summaries() | {"get there": there["us"]}}


def got(cache: NanoKVCache, keys: list[str], size: int, rounds: int) -> dict[str, Any]:
    """Gets, in the other process, objects of its own segment, and adds up the bytes of the last one."""
    timer, back = Timer(cache.device), torch.zeros(size, dtype=torch.uint8, device=cache.device)
    for i in range(rounds):
        key = keys[i % len(keys)]
        timer.time_call("get", lambda key=key: cache.get(key, dst=back))  # type: ignore[misc]
    return {"us": timer.summaries()["get"], "sum": int(back.long().sum())}


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each size."""
    with tempfile.TemporaryDirectory() as folder, Peer() as peer:
        peer.answer(STARTUP)
        heap: dict[str, Any] = {"heap": "shm"}
        if device.type == "cuda":
            heap = {"heap": "torch_symm", "heap_options": {"device": "cuda:0", "allow_overlapping": True}}
        page = settings.page_bytes
        heap_bytes = SLOTS * 2 * max(*settings.pair_sizes, page)
        wishes = heap | {
            "world_size": 2,
            "name": Path(folder).name,
            "page_bytes": page,
            "evict": False,
            "attach_timeout": 30.0,
        }
        peer.send("open", heap_bytes=heap_bytes, rank=OTHER, alloc="device", **wishes)
        with NanoKVCache(heap_bytes, rank=0, alloc="device", **wishes) as here:
            peer.answer(STARTUP)
            for size in settings.pair_sizes:
                keep(measure(here, peer, settings, size))
            peer.ask("close")

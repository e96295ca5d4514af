"""torch's own symmetric memory: its copy into a segment, and whether it works on this machine at all."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.gpu.plan import ENVIRONMENT
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each size: `copy_` into torch's symmetric memory, beside `copy_` into an ordinary tensor."""
    if device.type == "cpu":
        keep({"skipped": "torch has symmetric memory on GPUs alone"})
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ENVIRONMENT)
        meet = f"file://{Path(folder) / 'store'}"
        numbered = _numbered(device)  # torch sets no device that has no number
        torch.cuda.set_device(numbered)
        dist.init_process_group("nccl", init_method=meet, rank=0, world_size=1, device_id=numbered)
        try:
            for size in settings.sizes:
                keep(_measure(device, settings, size))
        finally:
            dist.destroy_process_group()


def _numbered(device: torch.device) -> torch.device:
    return torch.device(device.type, device.index or 0)


def _measure(device: torch.device, settings: GpuSettings, size: int) -> dict[str, Any]:
    import torch.distributed._symmetric_memory as symmetric

    total = size * settings.objects
    segment = symmetric.empty(total, dtype=torch.uint8, device=_numbered(device))
    world: Any = dist.group.WORLD
    handle = symmetric.rendezvous(segment, world)
    peer = handle.get_buffer(0, (total,), torch.uint8)
    source = torch.randint(0, 256, (total,), dtype=torch.uint8, device=device)
    twin = torch.zeros_like(source)
    timer = Timer(device)
    for lap in range(settings.laps + settings.warm):
        if lap == settings.warm:
            timer.clear()
        timer.time("copy", lambda: twin.copy_(source))
        timer.time("symmetric_copy", lambda: peer.copy_(source))
    us = timer.summaries()
    if not torch.equal(segment, source):
        raise Unsound("other bytes came into symmetric memory than were copied")
    ratio = us["copy"]["p50"] / us["symmetric_copy"]["p50"]
    return {"size": size, "objects": settings.objects, "us": us, "of_copy": {"symmetric_copy": ratio}}

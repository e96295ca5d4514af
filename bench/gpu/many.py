"""put_many and get_many of hundreds of objects, beside plain copies of the same bytes.

The same objects are put from addresses, and gathered from an engine's paged cache: an object is one block of all planes
(K and V of each layer); a plane's block has 16 tokens of 8 heads, 32 KiB if the object is large enough.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.objects import MeasuredWay, Objects
from nanokv.bench.gpu.one_segment import OneSegment
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer, graph_of
from nanokv.bench.suite.settings import KIB
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.engine_cache import Pages

TOKENS, HEADS = 16, 8
PLANE_BYTES = 32 * KIB


def contiguous(objects: Objects) -> MeasuredWay:
    """Each object is put from an address and got into one."""
    return MeasuredWay("", objects.putter, objects.getter, objects.source, objects.target)


def blocks(objects: Objects) -> MeasuredWay:
    """Planes [blocks, tokens, heads, dim]: a plane's block is one run of bytes, the longest of any layout."""
    return _paged(objects, " paged", heads_first=False)


def heads(objects: Objects) -> MeasuredWay:
    """Planes [blocks, heads, tokens, dim] in memory: rows that are neighbours in an object lie apart."""
    return _paged(objects, " paged by heads", heads_first=True)


def _paged(objects: Objects, name: str, *, heads_first: bool) -> MeasuredWay:
    there, back = (_planes(objects, tensor, heads_first=heads_first) for tensor in (objects.source, objects.target))
    world, count, device = objects.segment.world, objects.count, objects.segment.device
    putter, getter = (Batch(world, count, device, Pages(list(planes))) for planes in (there, back))
    return MeasuredWay(name, putter, getter, there, back)


def _planes(objects: Objects, tensor: torch.Tensor, *, heads_first: bool) -> torch.Tensor:
    """A copy of the objects' bytes as planes: int16 [planes, blocks, tokens, heads, dim], of either order in memory."""
    count = objects.size // math.gcd(objects.size, PLANE_BYTES)
    objects_first = tensor.view(torch.int16).view(objects.count, count, TOKENS, HEADS, -1)
    planes = objects_first.transpose(0, 1)
    return planes.transpose(2, 3).contiguous().transpose(2, 3) if heads_first else planes.contiguous()


#: the ways that are measured at each size
WAYS: list[Callable[[Objects], MeasuredWay]] = [contiguous, blocks, heads]


def measure(device: torch.device, settings: GpuSettings, size: int) -> dict[str, Any]:
    """One row: all ways at one size. GPU time of graphs, and the host's time of calls until the device is done.

    Raises:
        Unsound: bytes or statuses were wrong.
    """
    count, laps = settings.objects, settings.laps + settings.warm
    segment = OneSegment.with_room(device, 2 * count, size, settings.page_bytes)
    objects = Objects(segment, count, size, laps)
    ways = [make(objects) for make in WAYS]
    for way in ways:
        objects.compile(way)
    objects.check()
    graphs = [(graph_of(device, way.putter.put), graph_of(device, way.getter.get)) for way in ways]
    copies = (
        ("copy", objects.copy),
        ("copy in a graph", graph_of(device, objects.copy)),  # an H200 took 1.5 times as long for it
        ("plain_kernel", graph_of(device, objects.copy_plainly)),
    )
    timer = Timer(device)
    for lap in range(laps):
        if lap == settings.warm:
            timer.clear()
        for name, copy in copies:
            timer.time(name, copy)
            objects.end_copy()
        for way, (put, get) in zip(ways, graphs, strict=True):
            objects.load(lap, way)
            timer.time(f"put_many{way.name}", put)
            timer.time(f"get_many{way.name}", get)
            objects.end_lap(way)
            objects.load(lap, way)
            timer.time_call(f"call_put_many{way.name}", way.putter.put)
            timer.time_call(f"call_get_many{way.name}", way.getter.get)
            objects.end_lap(way)
        timer.time_call("call_copy", objects.copy)
    us = timer.summaries()
    checked = objects.check()
    segment.check()
    return {"size": size, "objects": count, "us": us, "checked": checked} | _rates(us, objects.bytes)


def _rates(us: dict[str, Any], nbytes: int) -> dict[str, Any]:
    """Payload bytes per p50, in GB/s, and as a part of the rate of `copy`."""
    rates = {name: nbytes / summary["p50"] / 1e3 for name, summary in us.items()}
    like = {name: rates["call_copy" if name.startswith("call_") else "copy"] for name in us}
    return {
        "gb_per_s": rates,
        "of_copy": {name: rates[name] / like[name] for name in us if name not in ("copy", "call_copy")},
    }


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each size."""
    for size in settings.sizes:
        keep(measure(device, settings, size))
        if device.type == "cuda":
            torch.cuda.empty_cache()

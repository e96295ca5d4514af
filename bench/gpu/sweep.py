"""Sweeps the number of CTAs of put_many and get_many, and the tile and number of warps of a plain copy."""

from typing import Any

import torch

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.objects import Objects, multiprocessors
from nanokv.bench.gpu.one_segment import OneSegment
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer, Work, graph_of


def _graphs(objects: Objects, settings: GpuSettings) -> dict[str, Work]:
    """The graphs of the sweep, by name. A graph captures the number of CTAs that the batch has at that moment."""
    device = objects.segment.device
    many = multiprocessors(device)
    graphs = {}
    for each in settings.sweep_ctas:
        for batch in (objects.putter, objects.getter):
            batch._ctas = many * each
        graphs[f"put_many, {each} CTAs"] = graph_of(device, objects.putter.put)
        graphs[f"get_many, {each} CTAs"] = graph_of(device, objects.getter.get)
        for tile in settings.sweep_tiles:
            for warps in settings.sweep_warps:
                if tile >= 32 * warps * 128:  # 128 words per thread fill all its registers
                    continue

                def copy(ctas: int = many * each, tile: int = tile, warps: int = warps) -> None:
                    objects.copy_plainly(ctas, tile, warps)

                copy()
                name = f"plain_kernel, {each} CTAs, tile {tile * 8}, {warps} warps"
                graphs[name] = graph_of(device, copy)
    return graphs


def measure(device: torch.device, settings: GpuSettings, size: int) -> dict[str, Any]:
    """One row: everything at one size; names give CTAs per multiprocessor, and bytes per tile.

    Raises:
        Unsound: bytes or statuses were wrong.
    """
    count, laps = settings.objects, settings.sweep_laps + settings.warm
    segment = OneSegment.with_room(device, 2 * count, size, settings.page_bytes)
    objects = Objects(segment, count, size, laps)
    objects.compile()
    graphs = _graphs(objects, settings)
    copy = graph_of(device, objects.copy)
    timer = Timer(device)
    for lap in range(laps):
        if lap == settings.warm:
            timer.clear()
        timer.time("copy", copy)
        objects.end_copy()
        for name, graph in graphs.items():
            objects.load(lap)
            timer.time(name, graph)
            if name.startswith("get_many"):
                objects.end_lap()
            elif name.startswith("plain"):
                objects.end_copy()
    us = timer.summaries()
    checked = objects.check()
    segment.check()
    of_copy = {name: us["copy"]["p50"] / summary["p50"] for name, summary in us.items()}
    return {"size": size, "objects": count, "us": us, "of_copy": of_copy, "checked": checked}


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each size."""
    for size in settings.sweep_sizes:
        keep(measure(device, settings, size))
        if device.type == "cuda":
            torch.cuda.empty_cache()

"""find_many and remove_many of small objects: keys a second, and the time of one launch."""

from typing import Any

import torch

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.objects import Objects
from nanokv.bench.gpu.one_segment import OneSegment, Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer, graph_of
from nanokv.bench.suite.settings import KIB

PAGE_BYTES = 4 * KIB


def measure(device: torch.device, settings: GpuSettings, count: int) -> dict[str, Any]:
    """One row: `count` keys that are all there are found, and their objects removed, by one launch each from a graph.

    Raises:
        Unsound: a status was wrong, or the length of the prefix.
    """
    laps = settings.lookup_laps + settings.warm
    segment = OneSegment(device, 4 * max(count, 8) * PAGE_BYTES, PAGE_BYTES, slots=4 * count)
    objects = Objects(segment, count, PAGE_BYTES, laps)
    objects.compile()
    putter, getter, timer = objects.putter, objects.getter, Timer(device)
    objects.load(0)
    putter.put()
    getter.find()
    putter.remove()  # all are compiled now
    graphs = {"find_many": graph_of(device, getter.find), "remove_many": graph_of(device, putter.remove)}
    prefix = torch.zeros(1, dtype=torch.int64, device=device)
    for lap in range(laps):
        if lap == settings.warm:
            timer.clear()
        objects.load(lap)
        putter.put()
        objects.note(putter)
        timer.time("find_many", graphs["find_many"])
        objects.note(getter)
        prefix += getter.prefix
        timer.time("remove_many", graphs["remove_many"])
        objects.note(putter)
        segment.empty_ring()
    us = timer.summaries()
    if int(prefix) != laps * count:
        raise Unsound(f"prefixes of {int(prefix)} keys were found in all, and there were {laps * count}")
    checked = objects.check()
    segment.check()
    rates = {name: count / summary["p50"] * 1e6 for name, summary in us.items()}
    return {"keys": count, "us": us, "keys_per_s": rates, "checked": checked}


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each number of keys."""
    for count in settings.lookups:
        keep(measure(device, settings, count))

"""One put from a graph, beside one copy from a graph: the cost of the protocol on top of a copy of microseconds.

Sources take turns, more of them than the L2 cache holds: each is read from memory, as the KV of a prefill may be.
A thousand laps, for a p99.
"""

from typing import Any

import torch

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.objects import Objects
from nanokv.bench.gpu.one_segment import OneSegment
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer, Work, event_overhead, graph_of
from nanokv.device.machines.batch import Batch


def measure(device: torch.device, settings: GpuSettings) -> dict[str, Any]:
    """One row: one object by itself in a graph, and a chain of objects in one graph, whose time is divided by `chain`.

    Raises:
        Unsound: bytes or statuses were wrong.
    """
    size, chain, laps = settings.single_bytes, settings.chain, settings.single_laps + settings.warm
    segment = OneSegment.with_room(device, 4 * chain, size, settings.page_bytes)
    one, many = Objects(segment, 1, size, laps, settings.single_sources), Objects(segment, chain, size, laps)
    for objects in (one, many):
        objects.compile()
        objects.check()
    links = [Batch(segment.world, 1, device) for _ in range(chain)]
    empty = Batch(segment.world, 1, device)
    for batch in (*links, empty):
        batch.fill([])
        batch.put()
    copies: list[dict[str, Work]] = []
    for lap in range(settings.single_sources):  # a graph has the address of its source
        one.load(lap)
        copies.append({"copy": graph_of(device, one.copy), "plain_kernel": graph_of(device, one.copy_plainly)})
    graphs = {
        "empty_put": graph_of(device, empty.put),
        "put": graph_of(device, one.putter.put),
        "get": graph_of(device, one.getter.get),
    }
    put_chain = graph_of(device, *(link.put for link in links))
    copy_chain = graph_of(device, *_copies(many))
    timer = Timer(device)
    for link in links:
        link.control.copy_(one.putter.control)
    for lap in range(laps):
        if lap == settings.warm:
            timer.clear()
        one.load(lap)
        for name, copy in copies[lap % settings.single_sources].items():
            timer.time(name, copy)
            one.end_copy()
        for name, graph in graphs.items():
            timer.time(name, graph)
        one.end_lap()
        many.load(lap)
        for link, row in zip(links, many.puts[lap], strict=True):
            link.requests.copy_(row[None])
        timer.time("chain_of_copies", copy_chain)
        many.end_copy()
        timer.time("chain_of_puts", put_chain)
        torch.cat([link.statuses for link in links], out=many.putter.statuses)
        many.getter.get()
        many.end_lap()
    us = timer.summaries()
    checked = one.check() + many.check()
    segment.check()
    return {
        "size": size,
        "sources": settings.single_sources,
        "us": us,
        "checked": checked,
        "events_us": event_overhead(device),
        "put_minus_copy_us": us["put"]["p50"] - us["copy"]["p50"],
        "chain": chain,
        "chained_put_us": us["chain_of_puts"]["p50"] / chain,
        "chained_copy_us": us["chain_of_copies"]["p50"] / chain,
    }


def _copies(objects: Objects) -> list[Any]:
    """A copy of each object by itself."""
    size = objects.size
    pairs = [(objects.twin[at : at + size], objects.source[at : at + size]) for at in range(0, objects.bytes, size)]
    return [lambda dst=dst, src=src: dst.copy_(src) for dst, src in pairs]


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """One row."""
    keep(measure(device, settings))

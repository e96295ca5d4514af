"""A node's counters in Prometheus' text format: what `NanoKVCluster.stats` says, under names of metrics."""

from collections.abc import Mapping
from typing import Any

#: what goes up and down; all other numbers of `stats` only grow
GAUGES = (
    "heap_total",
    "heap_used",
    "usage",
    "used_pages",
    "free_pages",
    "quarantined_pages",
    "largest_free_extent",
    "internal_fragmentation",
    "external_fragmentation",
    "ready",
    "unfinished",
    "quarantined",
    "pinned",
    "bytes_stored",
    "ring_depth",
    "put_us_per_page",
    "get_us_per_page",
    "indexed",
    "registry_away",
    "late_reads",
    "late_pulls",
    "late_puts",
    "late_put_bytes",
    "members_refused",
)
RENAMED = {"registry_away": "registry_away_seconds", "ready": "ready_objects"}
LEFT_OUT = ("rank",)  #: a number that measures nothing


def exposition(node: str, stats: Mapping[str, Any], *, is_ready: bool) -> str:
    """All metrics of one node. `stats`: empty while there is no cluster."""
    lines = _metric("node_ready", "gauge", node, int(is_ready))
    if "nodes" in stats:
        lines += _metric("nodes", "gauge", node, len(stats["nodes"]))
    for name, value in stats.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or name in LEFT_OUT:
            continue
        if name in GAUGES:
            lines += _metric(RENAMED.get(name, name), "gauge", node, value)
        else:
            lines += _metric(f"{name}_total", "counter", node, value)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, node: str, value: float) -> list[str]:
    return [f"# TYPE nanokv_{name} {kind}", f'nanokv_{name}{{node="{node}"}} {value}']

"""KVBM's metrics of block pools, by its names, through prometheus_client.

Counters are of one manager. The two gauges of pool sizes are read from the segment's headers when Prometheus asks, so
they show what other processes hold too, and what a dead one has given back.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

#: counters, without `kvbm_` and `_total`
COUNTERS = {
    "allocations": "Blocks allocated",
    "allocations_from_reset": "Blocks allocated from the reset pool",
    "evictions": "Blocks evicted from the inactive pool",
    "registrations": "Blocks registered",
    "duplicate_blocks": "Registrations of a hash that was registered, as a further block",
    "registration_dedup": "Registrations of a hash that was registered, answered with that block",
    "stagings": "Blocks that were completed",
    "match_hashes_requested": "Hashes asked for by match_blocks",
    "match_blocks_returned": "Blocks that match_blocks has found",
    "scan_hashes_requested": "Hashes asked for by scan_matches and match_blocks_scattered",
    "scan_blocks_returned": "Blocks that these have found",
}
#: counters that KVBM has not, without `nanokv_blocks_` and `_total`
OWN_COUNTERS = {
    "refused": "Allocations for which there were too few reset and inactive blocks",
    "damaged": "Registered blocks whose control words were wrong, or their checksum; they were dropped",
}
#: gauges, without `kvbm_`
GAUGES = {
    "inflight_mutable": "MutableBlocks that callers hold",
    "inflight_immutable": "ImmutableBlocks that callers hold",
    "reset_pool_size": "Blocks that can be allocated without an eviction",
    "inactive_pool_size": "Registered blocks that nobody uses",
}


class ManagerCounts:
    """The counters of one manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all = dict.fromkeys((*COUNTERS, *OWN_COUNTERS), 0)

    def add(self, **more: int) -> None:
        """Count; the names are those of COUNTERS and OWN_COUNTERS."""
        with self._lock:
            for name, number in more.items():
                self._all[name] += number

    def as_dict(self) -> dict[str, int]:
        """A copy."""
        with self._lock:
            return dict(self._all)


class _Pool(NamedTuple):
    counts: ManagerCounts
    gauges: Callable[[], Mapping[str, float]]


class BlockMetrics:
    """The metrics of all pools of a process, label `pool`.

    Args:
        registry: where they are registered; None: the default one of prometheus_client.

    Raises:
        InvalidArgument: prometheus_client is not installed.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            raise InvalidArgument("BlockMetrics needs prometheus_client: pip install 'nanokv[metrics]'") from None
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool] = {}
        self._registry = REGISTRY if registry is None else registry
        self._registry.register(self)

    def add(self, pool: str, counts: ManagerCounts, gauges: Callable[[], Mapping[str, float]]) -> None:
        """Show a pool; a manager does so by itself.

        Args:
            gauges: asked when Prometheus asks: the values of GAUGES.

        Raises:
            InvalidArgument: a pool of that name is shown already.
        """
        with self._lock:
            if pool in self._pools:
                raise InvalidArgument(f"there are metrics of a pool {pool!r} already")
            self._pools[pool] = _Pool(counts, gauges)

    def remove(self, pool: str) -> None:
        """Show a pool no more."""
        with self._lock:
            self._pools.pop(pool, None)

    def close(self) -> None:
        """Take all of them out of the registry."""
        self._registry.unregister(self)

    def collect(self) -> "Iterator[Metric]":
        """What prometheus_client asks a collector for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            pools = dict(self._pools)
        counted = {name: pool.counts.as_dict() for name, pool in pools.items()}
        measured = {name: pool.gauges() for name, pool in pools.items()}
        yield from _families(CounterMetricFamily, "kvbm_", COUNTERS, counted)
        yield from _families(CounterMetricFamily, "nanokv_blocks_", OWN_COUNTERS, counted)
        yield from _families(GaugeMetricFamily, "kvbm_", GAUGES, measured)


def _families(
    kind: Any, prefix: str, names: Mapping[str, str], values: Mapping[str, Mapping[str, float]]
) -> "Iterator[Metric]":
    for name, text in names.items():
        family = kind(prefix + name, text, labels=["pool"])
        for pool, found in values.items():
            family.add_metric([pool], found[name])
        yield family

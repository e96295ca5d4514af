"""KVBM's metrics, by their names, through prometheus_client."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from nanokv.blocks import BlockManager, BlockMetrics
from nanokv.blocks.metrics import COUNTERS, GAUGES
from nanokv.errors import InvalidArgument
from tests.blocks.conftest import LAYOUT, NewPool, block_of, cached, completed, registered, taken

prometheus_client = pytest.importorskip("prometheus_client")
if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

KVBM = "KVBM block manager"


@pytest.fixture
def registry() -> "Iterator[CollectorRegistry]":
    yield prometheus_client.CollectorRegistry()


class Values:
    """What Prometheus would read."""

    def __init__(self, registry: "CollectorRegistry", pool: str) -> None:
        self._registry, self._pool = registry, pool

    def __getitem__(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"kvbm_{name}", {"pool": self._pool})

    def counted(self) -> dict[str, float]:
        """The counters that are not zero."""
        found = {name: self[f"{name}_total"] for name in COUNTERS}
        assert None not in found.values()
        return {name: value for name, value in found.items() if value}

    def gauges(self) -> tuple[float | None, ...]:
        return tuple(self[name] for name in GAUGES)


def test_the_names_are_kvbms() -> None:
    assert {*COUNTERS} == {
        "allocations",
        "allocations_from_reset",
        "evictions",
        "registrations",
        "duplicate_blocks",
        "registration_dedup",
        "stagings",
        "match_hashes_requested",
        "match_blocks_returned",
        "scan_hashes_requested",
        "scan_blocks_returned",
    }
    assert [*GAUGES] == ["inflight_mutable", "inflight_immutable", "reset_pool_size", "inactive_pool_size"]


@pytest.mark.surface(KVBM, "kvbm_* metrics")
def test_counters_and_gauges_count_what_happens(new_pool: NewPool, registry: "CollectorRegistry") -> None:
    pool = new_pool(4, metrics=BlockMetrics(registry), pool="g2")
    values = Values(registry, "g2")
    assert values.counted() == {} and values.gauges() == (0, 0, 4, 0)
    cached(pool, 0, 1)
    assert values.counted() == {"allocations": 2, "allocations_from_reset": 2, "stagings": 2, "registrations": 2}
    assert values.gauges() == (0, 0, 2, 2)

    held = [*taken(pool, 3)]
    assert values["evictions_total"] == 1 and values["allocations_total"] == 5
    assert values["allocations_from_reset_total"] == 4 and values.gauges() == (3, 0, 0, 1)
    assert pool.allocate_blocks(2) is None and values["allocations_total"] == 5
    assert registry.get_sample_value("nanokv_blocks_refused_total", {"pool": "g2"}) == 1
    for block in held:
        block.drop()

    hashes = [block_of(number).sequence_hash for number in (1, 0, 1)]
    found = pool.match_blocks(hashes)
    assert (values["match_hashes_requested_total"], values["match_blocks_returned_total"]) == (3, 1)
    pool.match_blocks_scattered(hashes)
    pool.scan_matches(hashes)
    assert (values["scan_hashes_requested_total"], values["scan_blocks_returned_total"]) == (6, 3)
    found.append(found[0].clone())
    assert values.gauges() == (0, 2, 3, 0)

    found.append(registered(pool, block_of(1)))
    assert values["duplicate_blocks_total"] == 1 and values["registrations_total"] == 3
    assert values.gauges() == (0, 3, 2, 0)


def test_deduplications_are_counted(new_pool: NewPool, registry: "CollectorRegistry") -> None:
    pool = new_pool(4, metrics=BlockMetrics(registry), duplication="reject")
    blocks = [registered(pool, block_of(0)), completed(pool, block_of(0))]
    values = Values(registry, "nanokv")
    assert values.gauges() == (0, 1, 2, 0)  # a complete block is no mutable one
    blocks[1].register()  # type: ignore[attr-defined]
    assert values["registration_dedup_total"] == 1 and values["registrations_total"] == 2


def test_pools_are_told_apart_and_go(new_pool: NewPool, registry: "CollectorRegistry") -> None:
    metrics = BlockMetrics(registry)
    first, second = new_pool(4, metrics=metrics, pool="a"), new_pool(6, metrics=metrics, pool="b")
    cached(second, 0)
    assert Values(registry, "a").gauges() == (0, 0, 4, 0) and Values(registry, "b").gauges() == (0, 0, 5, 1)
    with pytest.raises(InvalidArgument, match="'a'"):
        new_pool(4, metrics=metrics, pool="a")
    first.close()
    assert Values(registry, "a")["reset_pool_size"] is None and Values(registry, "b")["reset_pool_size"] == 5
    text = prometheus_client.generate_latest(registry).decode()
    assert 'kvbm_registrations_total{pool="b"} 1.0' in text and 'pool="a"' not in text
    metrics.close()
    assert prometheus_client.generate_latest(registry) == b""


def test_the_gauges_show_what_other_managers_hold(new_pool: NewPool, registry: "CollectorRegistry") -> None:
    pool = new_pool(4, metrics=BlockMetrics(registry))
    with BlockManager(pool.cache, LAYOUT) as other:
        blocks = taken(other, 1)
        cached(other, 1)
        assert Values(registry, "nanokv").gauges() == (0, 0, 2, 1)
    del blocks


def test_without_prometheus_client_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidArgument, match=r"nanokv\[metrics\]"):
        BlockMetrics()

"""SGLang's radix tree and cache controller over NanoKV: what one engine has computed, another one loads, bit by bit."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from tests.integrations.sglang.parts import INTERFACE, PAGE, extra
from tests.integrations.sglang.tree import Engine, without_cuda

PROMPT = list(range(1, 1 + 6 * PAGE))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
    """engine(**) -> an Engine, closed after the test."""
    with without_cuda(monkeypatch), ExitStack() as stack:

        def started(*args: Any, **given: Any) -> Engine:
            made = Engine(*args, **given)
            stack.callback(made.close)
            return made

        yield started


def stored(engine: Engine, pages: int) -> Callable[[], bool]:
    """Whether so many pages are in the store."""
    return lambda: engine.storage.cache.stats()["puts"] >= pages and not engine.tree.ongoing_backup


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.surface(INTERFACE, "batch_exists")
@pytest.mark.parametrize("interface_v1", [1, 0])
def test_another_engine_loads_what_one_has_computed(engine: Callable[..., Engine], interface_v1: int) -> None:
    one = engine(interface_v1=interface_v1)
    one.compute(PROMPT)
    one.back_up(stored(one, 6))
    other = engine(interface_v1=interface_v1)
    assert other.prefetch([*PROMPT[: 4 * PAGE], *range(900, 900 + 2 * PAGE)]) == 4 * PAGE  # the prefix that they share
    assert other.prefetch(PROMPT) == len(PROMPT)
    assert other.load(PROMPT)
    assert one.storage.calls.failures() == other.storage.calls.failures() == {}


@pytest.mark.surface(INTERFACE, "clear")
def test_the_tree_clears_its_storage(engine: Callable[..., Engine]) -> None:
    one, other = engine(), engine()
    one.compute(PROMPT)
    one.back_up(stored(one, 6))
    assert one.tree.clear_storage_backend() is True
    assert other.prefetch(PROMPT) == 0


@pytest.mark.surface(INTERFACE, "close")
def test_storage_is_attached_and_detached_at_run_time(engine: Callable[..., Engine]) -> None:
    keeper = engine()
    one = engine(backend=None)
    one.compute(PROMPT)
    attached, message = one.tree.attach_storage_backend("dynamic", one.extra, "a-model")
    assert attached, message
    one.allow_prefetches()
    later = list(range(200, 200 + 2 * PAGE))
    one.compute(later)
    one.back_up(stored(one, 2))
    world = one.storage.cache
    assert one.tree.detach_storage_backend()[0] and world.closed and not one.tree.enable_storage
    assert keeper.prefetch(later) == len(later) and keeper.load(later)  # what was stored stays
    assert one.tree.attach_storage_backend("dynamic", one.extra, "a-model")[0]
    assert one.storage.cache.rank == world.rank  # it has its segment again


@pytest.mark.surface(INTERFACE, "register_mem_pool_host, a page larger than objects", refused="InvalidArgument")
def test_a_store_that_does_not_hold_a_page_is_not_attached(engine: Callable[..., Engine]) -> None:
    one = engine(backend=None)
    small = json.dumps(extra({"max_object": 4096}))
    attached, message = one.tree.attach_storage_backend("dynamic", small, "a-model")
    assert not attached and "raise max_object" in message
    assert one.tree.attach_storage_backend("dynamic", one.extra, "a-model")[0]  # and nothing is left of the first one


@pytest.mark.surface(INTERFACE, "get_stats")
def test_sglangs_metrics_are_fed(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(metrics=True)
    one.compute(PROMPT)
    told: list[Any] = []
    collector = one.tree.storage_metrics_collector
    log = collector.log_storage_metrics

    def keep(metrics: Any) -> None:
        told.append(metrics)
        log(metrics)

    monkeypatch.setattr(collector, "log_storage_metrics", keep)
    one.back_up(stored(one, 6))
    one.tree.check_hicache_events()
    assert sum(sum(each.backup_pgs) for each in told) == 6
    assert all(rate > 0 for each in told for rate in each.backup_bandwidth)
    assert one.storage.get_stats().backup_pgs == []  # each batch is told once


@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_delays_and_failures_that_sglang_injects_change_no_byte(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.01")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.2")
    one, other = engine(), engine()
    prompts = [list(range(start, start + 3 * PAGE)) for start in range(1, 1000, 100)]
    for prompt in prompts:
        one.compute(prompt)
        one.back_up(lambda: not one.tree.ongoing_backup and not one.control.write_queue)
    loaded = 0
    for prompt in prompts:
        for _ in range(4):
            if other.prefetch(prompt) == len(prompt):
                assert other.load(prompt)
                loaded += 1
                break
    assert loaded  # of ten prompts; none of them once in 10**6 runs

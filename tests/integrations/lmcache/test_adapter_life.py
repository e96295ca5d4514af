"""An adapter under load, and at its end: events, threads, tasks in flight."""

import random
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

from nanokv.errors import InvalidArgument
from nanokv.integrations.lmcache.adapter import Catalogue
from nanokv.keys.hashing import Hasher
from tests.integrations.lmcache.calls import load, look_up, store
from tests.integrations.lmcache.parts import ADAPTER, SETTINGS, adapter, content, memory, name, object_key, spec
from tests.support.until import until

Make = Callable[..., Any]
NBYTES = 32 << 10


class Heard(L2AdapterListener):  # type: ignore[misc]  # LMCache is not installed where types are checked
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.accessed: list[Any] = []
        self.deleted: list[Any] = []

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.stored += zip(keys, sizes, strict=True)

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        self.deleted += keys


@pytest.mark.surface(ADAPTER, "register_listener")
def test_listeners_hear_what_happens(adapters: Make) -> None:
    made, heard = adapters(), Heard()
    made.register_listener(heard)
    keys = [object_key(n) for n in range(3)]
    store(made, keys, [memory(n) for n in range(3)])
    assert heard.stored == [(key, NBYTES) for key in keys]
    load(made, [keys[1], object_key(9)], [memory(), memory()])
    assert heard.accessed == [keys[1]]
    made.delete([keys[0], object_key(9)])
    assert heard.deleted == [keys[0]]
    store(made, keys, [memory(n) for n in range(3)])
    assert heard.stored[3:] == [(keys[0], NBYTES)]


@pytest.mark.surface(ADAPTER, "get_usage")
@pytest.mark.surface(ADAPTER, "register_listener")
def test_what_nanokv_evicts_is_told_and_counted(adapters: Make) -> None:
    made, heard = adapters(size="1MiB"), Heard()
    made.register_listener(heard)
    for n in range(100):
        assert store(made, [object_key(n)], [memory(n)]).is_successful()
    found = look_up(made, [object_key(n) for n in range(100)])
    assert 0 < sum(found) <= 32
    until(lambda: made.get_usage().total_bytes_used == sum(found) * NBYTES)
    assert len(heard.deleted) == 100 - sum(found)
    assert len(made.list_l2_keys().entries) == sum(found)
    assert {key for key, there in zip((object_key(n) for n in range(100)), found, strict=True) if not there} == set(
        heard.deleted
    )


def test_a_note_that_is_made_while_the_store_is_asked_stays() -> None:
    """The object was removed, and another thread has stored it anew when the answer comes."""
    answers: list[Any] = []

    def exist(names: Sequence[str]) -> list[bool]:
        answers.pop()()
        return [False] * len(names)

    catalogue = Catalogue(Hasher(), exist)
    keys = [object_key(0), object_key(1)]
    assert catalogue.add(keys, [1, 2]) == ([], [])
    answers.append(lambda: catalogue.add(keys[:1], [3]))
    assert catalogue.gone() == (keys[1:], [2]) and len(catalogue) == 1
    answers.append(lambda: None)
    assert catalogue.gone() == (keys[:1], [3]) and len(catalogue) == 0


def test_tasks_of_many_threads(adapters: Make) -> None:
    made = adapters(size="1MiB", threads=3)
    wrong: list[str] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(40):
            numbers = chooser.sample(range(60), 4)
            keys = [object_key(n) for n in numbers]
            made.submit_store_task(keys, [memory(n) for n in numbers])
            look = made.submit_lookup_and_lock_task(keys, {})
            while (found := made.query_lookup_and_lock_result(look)) is None:
                pass
            chosen = [i for i in range(4) if found.test(i)]
            targets = [memory() for _ in chosen]
            task = made.submit_load_task([keys[i] for i in chosen], targets)
            while (loaded := made.query_load_result(task)) is None:
                pass
            for at, i in enumerate(chosen):
                if not loaded.test(at) or content(targets[at]) != content(memory(numbers[i])):
                    wrong.append(f"{numbers[i]} was locked, and not loaded")
            made.submit_unlock([keys[i] for i in chosen])
            if chooser.random() < 0.2:
                made.delete(keys)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    until(lambda: made.report_status()["tasks_in_flight"] == 0)
    assert made.report_status()["locked_key_count"] == 0
    results = made.pop_completed_store_tasks()
    assert len(results) == 120
    there = sum(look_up(made, [object_key(n) for n in range(60)]))
    until(lambda: made.get_usage().total_bytes_used == there * NBYTES)


@pytest.mark.surface(ADAPTER, "close")
@pytest.mark.surface(ADAPTER, "report_status")
def test_close_with_tasks_in_flight(adapters: Make) -> None:
    other = adapters()
    made = adapter(spec(threads=1))
    keys, gate = [object_key(n) for n in range(4)], threading.Event()
    store(made, keys[:1], [memory(0)])
    assert look_up(made, keys[:1]) == [True]
    for tasks in (made.stores, made.loads, made.lookups):
        tasks.submit(gate.wait, None)
    begun = made.submit_store_task(keys, [memory(n) for n in range(4)])
    load_task = made.submit_load_task(keys, [memory() for _ in keys])
    look = made.submit_lookup_and_lock_task(keys, {})
    assert made.report_status()["tasks_in_flight"] == 6
    closing = threading.Thread(target=made.close)
    closing.start()
    until(lambda: made.report_status()["tasks_in_flight"] == 3)  # the others are cancelled
    gate.set()
    closing.join()
    made.close()
    assert not made.pop_completed_store_tasks()[begun].is_successful()
    assert made.query_load_result(load_task).popcount() == 0 == made.query_lookup_and_lock_result(look).popcount()
    late = made.submit_store_task(keys, [memory(n) for n in range(4)])
    assert not made.pop_completed_store_tasks()[late].is_successful()
    assert made.query_load_result(made.submit_load_task(keys, [memory() for _ in keys])).popcount() == 0
    assert not made.report_status()["is_healthy"]
    made.submit_unlock(keys)
    made.delete(keys)
    assert look_up(other, keys[1:]) == [False] * 3


@pytest.mark.surface(ADAPTER, "get_store_event_fd")
def test_an_event_stays_until_it_is_consumed(adapters: Make) -> None:
    made = adapters()
    made.submit_store_task([object_key(1)], [memory(1)])
    until(lambda: made.stores.in_flight == 0)
    made.submit_store_task([object_key(2)], [memory(2)])
    until(lambda: made.stores.in_flight == 0)
    assert select.select([made.get_store_event_fd()], [], [], 60)[0]
    assert len(made.pop_completed_store_tasks()) == 2


@pytest.mark.parametrize("wrong", [{"sizes": 1}, {"size": "much"}, {"threads": 0}, {"max_capacity_bytes": "x"}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        adapter(spec(**wrong))


def test_the_configuration_is_found_by_its_name() -> None:
    config = get_l2_adapter_config_class("plugin").from_dict(spec() | {"config_class_name": "NanoKVL2AdapterConfig"})
    assert config.adapter_params == SETTINGS | {"name": name()}
    from nanokv.integrations.lmcache import NanoKVL2AdapterConfig

    assert "max_capacity_bytes" in NanoKVL2AdapterConfig.help()

"""NanoKVL2Adapter by LMCache's factory: tasks, locks, listings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from tests.integrations.lmcache.calls import load, look_up, store
from tests.integrations.lmcache.parts import ADAPTER, content, memory, object_key

Make = Callable[..., Any]


@pytest.mark.surface(ADAPTER, "submit_store_task")
@pytest.mark.surface(ADAPTER, "pop_completed_store_tasks")
@pytest.mark.surface(ADAPTER, "get_store_event_fd")
@pytest.mark.surface(ADAPTER, "submit_lookup_and_lock_task")
@pytest.mark.surface(ADAPTER, "query_lookup_and_lock_result")
@pytest.mark.surface(ADAPTER, "get_lookup_and_lock_event_fd")
@pytest.mark.surface(ADAPTER, "submit_load_task")
@pytest.mark.surface(ADAPTER, "query_load_result")
@pytest.mark.surface(ADAPTER, "get_load_event_fd")
def test_objects_come_back_as_they_were_stored(adapters: Make) -> None:
    adapter = adapters()
    assert type(adapter).__name__ == "NanoKVL2Adapter"
    fds = {adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()}
    assert len(fds) == 3
    keys, objects = [object_key(n) for n in range(4)], [memory(n) for n in range(4)]
    result = store(adapter, keys[:3], objects[:3])
    assert result.is_successful() and result.bytes_transferred() == 3 * objects[0].get_size()
    assert look_up(adapter, keys) == [True, True, True, False]
    targets = [memory() for _ in keys]
    assert load(adapter, keys, targets) == [True, True, True, False]
    assert [content(each) for each in targets[:3]] == [content(each) for each in objects[:3]]
    assert not torch.any(targets[3].raw_tensor)
    adapter.submit_unlock(keys[:3])
    assert adapter.report_status()["locked_key_count"] == 0
    again = store(adapter, keys, objects)
    assert again.is_successful() and again.bytes_transferred() == objects[0].get_size()  # three were there


@pytest.mark.surface(ADAPTER, "submit_load_task")
def test_an_object_of_another_kind_is_a_miss(adapters: Make) -> None:
    adapter = adapters()
    keys = [object_key(0)]
    store(adapter, keys, [memory(1)])
    for other in (memory(dtype=torch.float16), memory(shape=(4, 2, 16, 128)), memory(shape=(2, 4, 8, 128))):
        for locked in (False, True):
            assert not locked or look_up(adapter, keys) == [True]
            assert load(adapter, keys, [other]) == [False] and not torch.any(other.raw_tensor)
            adapter.submit_unlock(keys)


@pytest.mark.surface(ADAPTER, "submit_unlock")
@pytest.mark.surface(ADAPTER, "delete", differs="not what is locked")
def test_what_is_locked_stays(adapters: Make) -> None:
    adapter = adapters()
    keys, objects = [object_key(n) for n in range(2)], [memory(n) for n in range(2)]
    store(adapter, keys, objects)
    assert look_up(adapter, keys[:1]) == look_up(adapter, keys[:1]) == [True]
    adapter.delete(keys)
    adapter.submit_unlock(keys[:1])
    adapter.delete(keys)  # one lock is left
    assert look_up(adapter, keys) == [True, False]
    adapter.submit_unlock(keys * 3)
    adapter.delete(keys)
    assert look_up(adapter, keys) == [False, False]


@pytest.mark.surface(ADAPTER, "submit_lookup_and_lock_task")
def test_locked_objects_are_not_evicted(adapters: Make) -> None:
    adapter = adapters(size="1MiB")
    keys = [object_key(n) for n in range(64)]
    chosen = memory(0)
    store(adapter, keys[:1], [chosen])
    assert look_up(adapter, keys[:1]) == [True]
    for n in range(1, 64):  # 2 MiB
        assert store(adapter, [keys[n]], [memory(n)]).is_successful()
    target = memory()
    assert load(adapter, keys[:1], [target]) == [True] and content(target) == content(chosen)
    found = look_up(adapter, keys)
    assert 1 < sum(found) < 64
    full = store(adapter, [object_key(n) for n in range(100, 140)], [memory(n) for n in range(40)])
    assert not full.is_successful()  # all that is there is locked
    adapter.submit_unlock([key for key, there in zip(keys, found, strict=True) if there])
    assert store(adapter, [object_key(200)], [memory(1)]).is_successful()


@pytest.mark.surface(ADAPTER, "list_l2_keys", differs="the keys that this adapter has stored")
@pytest.mark.surface(ADAPTER, "get_usage")
@pytest.mark.surface(ADAPTER, "report_status")
def test_keys_are_listed_in_pages(adapters: Make) -> None:
    adapter = adapters()
    keys = [object_key(n, model_name=("one", "two")[n % 2], cache_salt=("", "salt")[n % 2]) for n in range(6)]
    nbytes = memory().get_size()
    store(adapter, keys, [memory(n) for n in range(6)])
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = adapter.list_l2_keys(page_size=4, cursor=cursor)
        seen += page.entries
        cursor, pages = page.next_page_token, pages + 1
    assert pages == 2 and all(each.size_bytes == nbytes for each in seen)
    assert {each.key.to_object_key() for each in seen} == set(keys)
    assert len(adapter.list_l2_keys(model_name="two").entries) == 3
    for wrong in ({"page_size": 0}, {"cursor": "nonsense"}):
        with pytest.raises(ValueError):
            adapter.list_l2_keys(**wrong)
    usage = adapter.get_usage()
    assert usage.total_bytes_used == 6 * nbytes and usage.total_capacity_bytes == 8 << 20
    assert dict(usage.bytes_by_cache_salt) == {"": 3 * nbytes, "salt": 3 * nbytes}
    status = adapter.report_status()
    assert status["is_healthy"] and status["stored_object_count"] == 6 and status["tasks_in_flight"] == 0
    adapter.delete(keys[:2])
    assert adapter.get_usage().total_bytes_used == 4 * nbytes and len(adapter.list_l2_keys().entries) == 4

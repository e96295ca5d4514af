"""Processes that share a store, and the sudden end of one."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from tests.integrations.lmcache.calls import PATIENCE, load, look_up, store
from tests.integrations.lmcache.other import Other
from tests.integrations.lmcache.parts import ADAPTER, CONNECTOR, Backends, content, key, memory, name, object_key
from tests.support.until import until


@pytest.mark.surface(CONNECTOR, "get")
@pytest.mark.surface(CONNECTOR, "exists")
def test_two_engines_share_chunks(backends: Callable[..., Backends]) -> None:
    made = backends()
    mine = made.chunk(1)
    made.remote.submit_put_task(key(1), mine).result(PATIENCE)
    with Other("connector", {"name": name()}, read=(1, 2), put=(3,)) as other:
        assert other.found == [content(mine), None]
        assert made.remote.contains(key(3)) and made.connector.batched_contains([key(1), key(3)]) == 2
        assert content(made.remote.get_blocking(key(3))) == content(made.chunk(3))
    keys, wanted = [key(1), key(3)], [content(mine), content(made.chunk(3))]
    # what lay in the segment of a process that died can still be read, and by the one that takes its place
    assert [content(each) for each in made.run(made.connector.batched_get(keys))] == wanted
    with Other("connector", {"name": name()}, read=(1, 3)) as other:
        assert other.found == wanted
        assert [content(each) for each in made.run(made.connector.batched_get(keys))] == wanted
    assert made.connector.remove_sync(key(3)) and not made.remote.contains(key(3))
    made.remote.submit_put_task(key(3), made.chunk(3)).result(PATIENCE)
    assert content(made.remote.get_blocking(key(3))) == wanted[1]


@pytest.mark.surface(ADAPTER, "submit_load_task")
@pytest.mark.surface(ADAPTER, "submit_lookup_and_lock_task")
def test_two_servers_share_objects(adapters: Callable[..., Any]) -> None:
    adapter = adapters()
    store(adapter, [object_key(1)], [memory(1)])
    with Other("adapter", {"name": name()}, read=(1, 2), put=(3,)) as other:
        assert other.found == [content(memory(1)), None]
        assert look_up(adapter, [object_key(3), object_key(4)]) == [True, False]
    target = memory()
    assert load(adapter, [object_key(3)], [target]) == [True]  # it is locked: still there, its owner is not
    assert content(target) == content(memory(3))
    adapter.submit_unlock([object_key(3)])


@pytest.mark.surface(ADAPTER, "submit_unlock")
def test_the_locks_of_a_dead_server_come_back(adapters: Callable[..., Any]) -> None:
    adapter = adapters()
    keys = [object_key(n) for n in range(3)]
    store(adapter, keys, [memory(n) for n in range(3)])
    with Other("adapter", {"name": name()}, lock=(0, 1)):
        adapter.delete(keys)
        assert look_up(adapter, keys) == [True, True, False]
        adapter.submit_unlock(keys)

    def deleted() -> bool:
        adapter.delete(keys)
        return not any(look_up(adapter, keys)) or adapter.submit_unlock(keys)

    until(lambda: deleted() is True)

"""Events: their fields, their order in batches, and that each Store has its Remove."""

import gc
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from nanokv.blocks import (
    EventBatch,
    EventPublisher,
    PowerOfTwo,
    SequenceHash,
)
from nanokv.errors import InvalidArgument
from tests.blocks.heard import REMOVE, SHUTDOWN, STORE, Heard

KVBM = "KVBM block manager"


def store(publisher: EventPublisher, position: int, value: int = 1) -> Any:
    return publisher.store(SequenceHash(value, position, 0), None, 512, "here")


@pytest.mark.surface(KVBM, "EventPublisher.subscribe")
@pytest.mark.surface(KVBM, "EventPublisher.flush")
def test_batches_grow_from_the_root_and_shrink_from_the_leaves() -> None:
    publisher = EventPublisher(instance_id=7)
    heard = Heard(publisher)
    handles = [store(publisher, position) for position in (3, 1, 2)]
    handles[1].close()
    handles[0].close()
    handles += [store(publisher, 0)]
    assert heard.batches == [] and publisher.flush() == 6
    assert heard.short == [(STORE, [1, 2, 3]), (REMOVE, [3, 1]), (STORE, [0])]
    assert {batch.instance_id for batch in heard.batches} == {7}
    assert publisher.flush() == 0 and len(heard.batches) == 3


def test_a_batch_has_at_most_so_many_events() -> None:
    publisher = EventPublisher(most=2)
    heard = Heard(publisher)
    handles = [store(publisher, position) for position in (4, 3, 2, 1, 0)]
    publisher.flush()
    assert heard.short == [(STORE, [3, 4]), (STORE, [1, 2]), (STORE, [0])]
    del handles


@pytest.mark.surface(KVBM, "PublishHandle")
def test_a_handle_sends_remove_once_closed_or_dropped() -> None:
    publisher = EventPublisher()
    heard = Heard(publisher)
    closed, dropped = store(publisher, 1, 11), store(publisher, 1, 22)
    closed.close()
    closed.close()
    del dropped, closed
    gc.collect()
    publisher.flush()
    assert heard.hashes[2:] == [(REMOVE, SequenceHash(11, 1, 0)), (REMOVE, SequenceHash(22, 1, 0))]


def test_a_handle_that_goes_takes_no_lock() -> None:
    publisher = EventPublisher()
    handles, held, done = [store(publisher, 1)], threading.Event(), threading.Event()

    def hold() -> None:
        with publisher._lock:
            held.set()
            done.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(60)
    handles.clear()
    gc.collect()
    assert [event.event_type for event in publisher._pending] == [STORE, REMOVE]
    done.set()
    other.join()


@pytest.mark.surface(KVBM, "EventPublisher.close")
def test_closing_delivers_the_rest_and_shutdown() -> None:
    publisher = EventPublisher()
    heard = Heard(publisher)
    handle = store(publisher, 5)
    publisher.close()
    publisher.close()
    assert heard.short == [(STORE, [5]), (SHUTDOWN, [])]
    handle.close()
    assert store(publisher, 6) is None and publisher.flush() == 1 and heard.short[-1] == (REMOVE, [5])


def test_a_thread_delivers_by_itself() -> None:
    told = threading.Event()
    with EventPublisher(period=0.01) as publisher:
        publisher.subscribe(lambda batches: told.set() if batches else None)
        handle = store(publisher, 0)
        assert told.wait(60)
        thread = publisher._thread
    assert thread is not None and not thread.is_alive()
    del handle


def test_a_subscriber_that_raises_stays(caplog: pytest.LogCaptureFixture) -> None:
    publisher = EventPublisher()

    def fail(batches: Sequence[EventBatch]) -> None:
        raise RuntimeError("of the subscriber")

    publisher.subscribe(fail)
    heard = Heard(publisher)
    with caplog.at_level(logging.ERROR):
        first = store(publisher, 1)
        publisher.flush()
        second = store(publisher, 2)
        publisher.flush()
    assert (
        len(caplog.records) == 2 and "of the subscriber" in caplog.text and heard.short == [(STORE, [1]), (STORE, [2])]
    )
    heard.end()
    third = store(publisher, 3)
    publisher.flush()
    assert len(heard.batches) == 2
    del first, second, third


@pytest.mark.surface(KVBM, "PowerOfTwoPolicy")
def test_power_of_two_lets_few_positions_pass() -> None:
    policy = PowerOfTwo()
    passed = [at for at in range(1 << 17) if policy(SequenceHash(0, at, 0))]
    assert passed == [1 << power for power in range(4, 17)]
    assert [at for at in range(200) if PowerOfTwo(32, 128)(SequenceHash(0, at, 0))] == [32, 64, 128]
    publisher = EventPublisher(policy=PowerOfTwo(1, 8))
    heard = Heard(publisher)
    handles = [store(publisher, position) for position in range(10)]
    assert [at for at, handle in enumerate(handles) if handle is not None] == [1, 2, 4, 8]
    publisher.flush()
    assert heard.short == [(STORE, [1, 2, 4, 8])]


@pytest.mark.parametrize("options", [{"period": 0}, {"period": "1"}, {"most": 0}, {"instance_id": -1}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        EventPublisher(**options)
    with pytest.raises(InvalidArgument):
        EventPublisher().subscribe(None)  # type: ignore[arg-type]

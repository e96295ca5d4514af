"""What is around a member: clocks, listeners that call it, ends while calls wait, forks, torch's default device."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
import torch

from nanokv import Hold
from nanokv.cluster import Change, ChangeKind, NanoKVCluster
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError
from tests.support.forks import check_refused
from tests.support.until import until

from .conftest import HEAP_BYTES, MakeCluster, key_of

PAGE = 4096


@pytest.mark.parametrize("seconds", [1e9, float("inf")])
def test_a_far_hold_of_another_node_does_not_wrap(make_cluster: MakeCluster, seconds: float) -> None:
    one, two = make_cluster(heap_bytes=64 * PAGE)
    for name, hold in (("lease", seconds), ("ttl", Hold(ttl=seconds, priority="kept"))):
        one.put(name, torch.ones(8), preferred_segment=("n1", 0), hold=hold)
    for number in range(200):
        two.put(f"fill{number}", torch.zeros(PAGE, dtype=torch.uint8), preferred_segment=0)
    two.world.flush()
    assert two.world.exists("lease") and two.world.exists("ttl")


Call = Callable[[NanoKVCluster], object]
CALLS: dict[str, Call] = {"flush": lambda one: one.world.flush(), "clear": lambda one: one.world.clear()}


@pytest.mark.parametrize("node", ["n0", "n1"])
@pytest.mark.parametrize("name", CALLS)
def test_a_listener_that_waits_for_the_poller_does_not_stop_it(make_cluster: MakeCluster, name: str, node: str) -> None:
    """Told of its own node it is the poller's thread, and is refused; told of another node it is not."""
    one, two = make_cluster()
    answers: list[NanoKVError | None] = []
    called = threading.Event()

    def listen(changes: Sequence[Change]) -> None:
        if called.is_set() or not any(each.kind is ChangeKind.STORED and each.node == node for each in changes):
            return
        # meanwhile the poller has news of its own to tell
        one.world.put("mine", torch.ones(2), preferred_segment=0)
        time.sleep(0.05)
        try:
            CALLS[name](one)
            answers.append(None)
        except NanoKVError as error:
            answers.append(error)
        called.set()

    one.subscribe(listen)
    began = time.monotonic()
    two.put(key_of(one, node), torch.ones(2))
    assert called.wait(60.0)
    one.world.flush()
    assert time.monotonic() - began < 8.0  # a wait for itself took 10 s
    assert all(answer is None or isinstance(answer, InvalidArgument) for answer in answers)


def test_what_is_told_while_a_listener_runs_is_told_after_it_in_order(make_cluster: MakeCluster) -> None:
    (one,) = make_cluster(1)
    heard: list[str] = []
    goes, inside = threading.Event(), threading.Event()

    def listen(changes: Sequence[Change]) -> None:
        heard.extend(each.node for each in changes)
        inside.set()
        assert goes.wait(60.0)

    one.subscribe(listen)
    changes = one.member.changes

    def tell(name: str) -> None:
        changes.missed(name)
        changes.tell()

    first = threading.Thread(target=tell, args=("a",))
    first.start()
    assert inside.wait(60.0)
    for name in "bcd":
        tell(name)  # returns at once
    assert heard == ["a"]
    goes.set()
    first.join(60.0)
    assert heard == ["a", "b", "c", "d"]


def test_the_end_of_a_cluster_ends_puts_that_wait_for_room(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    for number in range(HEAP_BYTES // (HEAP_BYTES // 4) + 4):
        key = f"kept{number}"
        try:
            two.put(
                key, torch.zeros(HEAP_BYTES // 8, dtype=torch.uint8), preferred_segment=0, hold=Hold(priority="kept")
            )
        except NanoKVError:
            break
    ends: dict[str, BaseException] = {}
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: one.put(
            "x", torch.zeros(HEAP_BYTES // 8, dtype=torch.uint8), preferred_segment=("n1", 0), timeout=60.0
        ),
        "put_many": lambda: one.put_many(
            ["y"], torch.zeros(1, HEAP_BYTES // 8, dtype=torch.uint8), preferred_segment=("n1", 0), timeout=60.0
        ),
        "wait": lambda: one.wait("never", timeout=60.0),
    }

    def run(name: str) -> None:
        try:
            calls[name]()
        except BaseException as error:
            ends[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert not ends
    one.close()
    for thread in threads:
        thread.join(10.0)
    assert {name: type(error) for name, error in ends.items()} == dict.fromkeys(calls, CacheClosed)


def test_a_child_of_a_fork_cannot_use_the_cluster_and_takes_nothing_away(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    there = key_of(one, "n1")
    one.put(there, torch.ones(2))
    check_refused(
        {
            "put": lambda: one.put(key_of(one, "n1", "x"), torch.ones(2)),
            "get": lambda: one.get(there),
            "exists": lambda: one.exists(there),
            "get_many": lambda: one.get_many([there]),
            "put_many": lambda: one.put_many(["x"], [torch.ones(2)]),
            "wait": lambda: one.wait(there, timeout=1.0),
            "nodes": lambda: one.nodes,
            "stats": one.stats,
        }
    )
    assert one.get(there).tolist() == [1, 1] and one.nodes == two.nodes == ["n0", "n1"]


def test_another_default_device_changes_nothing(make_cluster: MakeCluster, way: str) -> None:
    one, two = make_cluster()
    given = torch.ones(8)
    with torch.device("meta"):
        one.put("k", given, preferred_segment=("n1", 0))
        one.put("e", given[:0], preferred_segment=("n1", 0))
        one.put_many(["a", "b"], given.view(2, 4), preferred_segment=("n1", 0))
        assert torch.equal(two.get("k"), given) and torch.equal(one.get("k"), given) and len(one.get("e")) == 0
        assert [torch.equal(each, given[:4]) for each in one.get_many(["a", "b"]) if each is not None] == [True, True]
    until(lambda: one.exists("k"))

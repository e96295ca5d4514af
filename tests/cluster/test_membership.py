"""Who is in a cluster: one suite for both registries, etcd and a folder."""

import os
import random
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from nanokv.cluster.membership import ClusterUnavailable
from tests.support.memberships import PATIENT_TTL, Place, Record, at, seen, shared_etcd, threads
from tests.support.until import until

__all__ = ["at", "shared_etcd"]


# --- members ---
def test_members_see_each_other(at: Place) -> None:
    first = at.open("a", b"card of a")
    assert first.members() == {"a": b"card of a"}
    second = at.open("b.2_-", b"")
    assert second.members() == {"a": b"card of a", "b.2_-": b""}
    third = at.open()
    assert third.members() == second.members()
    third.join("c", b"\0\xff\n")
    for membership in (first, second, third):
        seen(membership, {"a": b"card of a", "b.2_-": b"", "c": b"\0\xff\n"})
        assert membership.away_for() == 0.0


def test_processes_see_each_other(at: Place) -> None:
    here = at.open("here", b"1")
    other = at.process("there", "2")
    seen(here, {"here": b"1", "there": b"2"})
    assert other.ask("members") == {"here": b"1", "there": b"2"}
    assert other.ask("secret") == here.secret()
    other.ask("close")
    seen(here, {"here": b"1"})


def test_a_new_card_replaces_the_old_one(at: Place) -> None:
    first, second = at.open("a", b"old"), at.open("b")
    seen(second, {"a": b"old", "b": b""})
    card = random.Random(1).randbytes(100_000)
    first.update(card)
    assert first.members()["a"] == card
    seen(second, {"a": card, "b": b""})
    first.update(b"")
    seen(second, {"a": b"", "b": b""})


def test_a_member_leaves_and_comes_back_under_any_name(at: Place) -> None:
    first, second = at.open("a", b"1"), at.open("b")
    for name in ("a", "c", "c", "a"):
        first.leave()
        first.leave()
        assert "a" not in first.members() and "c" not in first.members()
        seen(second, {"b": b""})
        first.join(name, b"2")
        seen(second, {name: b"2", "b": b""})


def test_mappings_are_snapshots(at: Place) -> None:
    first = at.open("a", b"1")
    before = first.members()
    at.open("b")
    seen(first, {"a": b"1", "b": b""})
    assert before == {"a": b"1"}
    with pytest.raises(TypeError):
        before["b"] = b""  # type: ignore[index]


# --- listeners ---
def test_listeners_are_told_what_is_there_and_what_changes(at: Place) -> None:
    first, record = at.open("a", b"1"), Record()
    unsubscribe = first.listen(record)
    until(lambda: record.told == [{"a": b"1"}])
    second = at.open("b", b"2")
    until(lambda: record.told[-1] == {"a": b"1", "b": b"2"})
    second.close()
    until(lambda: record.told[-1] == {"a": b"1"})
    unsubscribe()
    unsubscribe()
    later = Record()
    first.listen(later)
    at.open("c", b"3")
    until(lambda: bool(later.told) and later.told[-1] == {"a": b"1", "c": b"3"})
    assert "c" not in record.told[-1]


def test_a_listener_that_fails_stays(at: Place, caplog: pytest.LogCaptureFixture) -> None:
    first, record = at.open("a"), Record()

    def fail(members: Mapping[str, bytes]) -> None:
        record(members)
        raise ZeroDivisionError

    first.listen(fail)
    until(lambda: len(record.told) == 1)
    at.open("b")
    until(lambda: record.told[-1].keys() == {"a", "b"})
    until(lambda: caplog.text.count("ZeroDivisionError") >= 2)
    assert "it stays subscribed" in caplog.text


def test_a_slow_listener_delays_no_heartbeat(at: Place) -> None:
    first, second = at.open("a", ttl=PATIENT_TTL), at.open("b", ttl=PATIENT_TTL)
    seen(second, {"a": b"", "b": b""})
    record, entered, go_on = Record(), threading.Event(), threading.Event()
    second.listen(record)

    def dawdle(members: Mapping[str, bytes]) -> None:
        entered.set()
        go_on.wait(60)

    first.listen(dawdle)
    assert entered.wait(60)
    assert not threading.Event().wait(1.5 * PATIENT_TTL)
    go_on.set()
    assert record.always_had("a", "b")


def test_a_listener_may_close(at: Place) -> None:
    first = at.open("a")
    first.listen(lambda members: first.close())
    until(lambda: not threads())


# --- death ---
def test_a_killed_process_is_dropped(at: Place) -> None:
    here = at.open("here")
    other, third = at.process("there", "2"), at.process("third", "3")
    seen(here, {"here": b"", "there": b"2", "third": b"3"})
    other.kill()
    seen(here, {"here": b"", "third": b"3"})
    assert third.ask("members").keys() >= {"here", "third"}


def test_a_process_may_start_again_at_once_after_it_was_killed(at: Place) -> None:
    here = at.open("here")
    other = at.process("there", "first")
    seen(here, {"here": b"", "there": b"first"})
    other.kill()
    at.process("there", "second")
    seen(here, {"here": b"", "there": b"second"})


def test_a_stopped_process_is_dropped_and_joins_again_by_itself(at: Place) -> None:
    here = at.open("here")
    other = at.process("there", "2")
    seen(here, {"here": b"", "there": b"2"})
    other.suspend()
    seen(here, {"here": b""})
    other.resume()
    seen(here, {"here": b"", "there": b"2"})
    until(lambda: other.ask("members") == {"here": b"", "there": b"2"})


def test_an_id_that_was_taken_while_its_process_was_stopped(at: Place) -> None:
    here = at.open("here")
    other = at.process("there", "old")
    seen(here, {"here": b"", "there": b"old"})
    other.suspend()
    seen(here, {"here": b""})
    new = at.open("there", b"new")
    record = Record()
    seen(here, {"here": b"", "there": b"new"})
    here.listen(record)
    other.resume()
    assert not threading.Event().wait(2 * at.ttl)
    assert all(told.get("there") != b"old" for told in record.told)
    new.close()
    seen(here, {"here": b"", "there": b"old"})


# --- the end ---
def test_close(at: Place) -> None:
    first, second = at.open("a"), at.open("b")
    seen(second, {"a": b"", "b": b""})
    with first:
        pass
    first.close()
    seen(second, {"b": b""})
    assert "a" not in first.members()
    calls = (lambda: first.join("a", b""), lambda: first.update(b""), first.leave, first.secret)
    for call in (*calls, lambda: first.listen(print)):
        with pytest.raises(ClusterUnavailable, match="is closed"):
            call()


def test_close_ends_a_join_that_waits(at: Place) -> None:
    at.process("a").kill()
    second = at.open(ttl=60)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.join, "a", b"")
        if at.url.startswith("file"):  # which waits as long as its own ttl is
            assert not threading.Event().wait(0.5)
            second.close()
            with pytest.raises(ClusterUnavailable, match="was closed"):
                joining.result(60)
        else:
            second.close()
            joining.exception(60)


def test_a_child_of_a_fork_takes_nothing_from_its_parent(at: Place) -> None:
    first, second = at.open("a"), at.open("b")
    child = os.fork()
    if child == 0:
        try:
            first.close()
            with pytest.raises(ClusterUnavailable, match="of the parent"):
                first.leave()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not threading.Event().wait(1.5 * at.ttl)
    seen(second, {"a": b"", "b": b""})
    first.update(b"still here")
    seen(second, {"a": b"still here", "b": b""})


# --- all together ---
@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_all_know_the_truth(at: Place, seed: int) -> None:
    choose = random.Random(seed)
    memberships = [at.open() for _ in range(4)]
    joined: dict[int, tuple[str, bytes]] = {}
    for turn in range(60):
        number = choose.randrange(len(memberships))
        membership, card = memberships[number], b"%d" % turn
        if number not in joined:
            joined[number] = (f"m{number}-{choose.randrange(3)}", card)
            membership.join(*joined[number])
        elif choose.random() < 0.4:
            membership.leave()
            del joined[number]
        elif choose.random() < 0.2:
            membership.close()
            del joined[number]
            memberships[number] = at.open()
        else:
            joined[number] = (joined[number][0], card)
            membership.update(card)
    for membership in memberships:
        seen(membership, dict(joined.values()))

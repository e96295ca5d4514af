"""Who is in a cluster: one suite for both registries, etcd and a folder."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanokv.check.rank_process import wait_until
from nanokv.cluster.membership import MAX_CARD, ClusterUnavailable, Membership, open_membership
from nanokv.errors import InvalidArgument
from tests.support.etcd_server import Etcd, needs_etcd
from tests.support.memberships import ETCD_TTL, FOLDER_TTL, Place, Record, any_name, place, seen, shared_etcd, threads

__all__ = ["shared_etcd"]


@pytest.fixture(params=[pytest.param("etcd", marks=needs_etcd), "folder"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty cluster in each kind of registry."""
    if request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("shared_etcd")
        url, ttl = etcd.url(any_name()), ETCD_TTL
    else:
        url, ttl = f"file://{tmp_path}/cluster", FOLDER_TTL
    with place(url, ttl) as made:
        yield made


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    wait_until("the condition of the test", condition, pause=0.01)


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
    assert other.ask("members") == {"here": "1", "there": "2"}
    assert other.ask("secret") == here.secret().hex()
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
    first, second, record = at.open("a"), at.open("b"), Record()
    second.listen(record)
    until(lambda: bool(record.told) and record.told[-1].keys() == {"a", "b"})
    go_on = threading.Event()
    first.listen(lambda members: go_on.wait(60))
    at.open("c", b"")
    quiet = threading.Event()
    assert not quiet.wait(2.5 * at.ttl)
    go_on.set()
    assert record.always_had("b") and "a" in record.told[-1]


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
    other.signal(signal.SIGSTOP)
    seen(here, {"here": b""})
    other.signal(signal.SIGCONT)
    seen(here, {"here": b"", "there": b"2"})
    until(lambda: other.ask("members") == {"here": "", "there": "2"})


def test_an_id_that_was_taken_while_its_process_was_stopped(at: Place) -> None:
    here = at.open("here")
    other = at.process("there", "old")
    seen(here, {"here": b"", "there": b"old"})
    other.signal(signal.SIGSTOP)
    seen(here, {"here": b""})
    new = at.open("there", b"new")
    record = Record()
    seen(here, {"here": b"", "there": b"new"})
    here.listen(record)
    other.signal(signal.SIGCONT)
    assert not threading.Event().wait(2 * at.ttl)
    assert all(told == {"here": b"", "there": b"new"} for told in record.told)
    new.close()
    seen(here, {"here": b"", "there": b"old"})


# --- ids ---
def test_an_id_is_held_by_one_process(at: Place) -> None:
    first, second = at.open("a", b"1"), at.open()
    with pytest.raises(ClusterUnavailable, match="member id 'a' is held by another living process"):
        second.join("a", b"2")
    assert second.members() == {"a": b"1"}
    second.join("b", b"2")
    seen(first, {"a": b"1", "b": b"2"})


def test_of_many_that_want_one_id_one_gets_it(at: Place) -> None:
    contenders = [at.open() for _ in range(6)]

    def contend(each: Membership) -> bool:
        try:
            each.join("a", b"%d" % contenders.index(each))
        except ClusterUnavailable:
            return False
        return True

    with ThreadPoolExecutor(len(contenders)) as pool:
        won = list(pool.map(contend, contenders))
    assert won.count(True) == 1
    for each in contenders:
        seen(each, {"a": b"%d" % won.index(True)})


def test_the_heir_of_a_dead_id_is_one(at: Place) -> None:
    here = at.open("here")
    at.process("a", "dead").kill()
    contenders = [at.open() for _ in range(4)]

    def contend(each: Membership) -> bool:
        try:
            each.join("a", b"%d" % contenders.index(each))
        except ClusterUnavailable:
            return False
        return True

    with ThreadPoolExecutor(len(contenders)) as pool:
        won = list(pool.map(contend, contenders))
    assert won.count(True) == 1
    seen(here, {"here": b"", "a": b"%d" % won.index(True)})


# --- the secret ---
def test_all_have_one_secret(at: Place) -> None:
    memberships = [at.open() for _ in range(6)]
    with ThreadPoolExecutor(len(memberships)) as pool:
        found = set(pool.map(Membership.secret, memberships))
    assert len(found) == 1 and [len(secret) for secret in found] == [32]
    for membership in memberships:
        membership.close()
    assert at.open().secret() in found


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


# --- arguments ---
@pytest.mark.parametrize("member", ["", "a" * 65, "a b", "a/b", "ä", "a\n", 3, None])
def test_wrong_member_ids(at: Place, member: str) -> None:
    with pytest.raises(InvalidArgument, match="a member id is 1 to 64 characters"):
        at.open().join(member, b"")


def test_wrong_calls(at: Place) -> None:
    first = at.open()
    with pytest.raises(InvalidArgument, match="has not joined"):
        first.update(b"")
    with pytest.raises(InvalidArgument, match="a card is bytes, not str"):
        first.join("a", "card")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=f"at most {MAX_CARD} bytes"):
        first.join("a", bytes(MAX_CARD + 1))
    first.join("a", bytes(MAX_CARD))
    with pytest.raises(InvalidArgument, match="has joined already, as 'a'"):
        first.join("b", b"")
    for ttl in (0, 0.01, 3601, float("nan"), "3"):
        with pytest.raises(InvalidArgument, match="ttl must be"):
            open_membership(at.url, ttl=ttl)  # type: ignore[arg-type]

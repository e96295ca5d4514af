"""The registry in etcd while etcd is away: killed, stopped, emptied."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanokv.cluster.membership import ClusterUnavailable, open_membership
from nanokv.cluster.membership.etcd_keys import text64
from tests.support.etcd_server import Etcd, etcd_cluster, needs_etcd
from tests.support.memberships import PATIENT_TTL, Place, Record, etcd, place, seen
from tests.support.until import until

__all__ = ["etcd"]

pytestmark = [needs_etcd, pytest.mark.exhaustive]


@pytest.fixture
def at(etcd: Etcd) -> Iterator[Place]:
    """A cluster in an etcd of its own."""
    with place(etcd.url("own"), PATIENT_TTL) as made:
        yield made


def two_with_records(at: Place) -> tuple[Record, Record]:
    """Members a and b, which know each other, and what each is told from now on."""
    pair = at.open("a", b"1"), at.open("b", b"2")
    records = Record(), Record()
    for membership, record in zip(pair, records, strict=True):
        seen(membership, {"a": b"1", "b": b"2"})
        membership.listen(record)
    return records


# --- etcd is away ---
def test_etcd_is_killed_and_comes_back_with_its_data(at: Place, etcd: Etcd) -> None:
    records = two_with_records(at)
    first, second = at.opened
    etcd.kill()
    until(lambda: first.away_for() > 0.0 and second.away_for() > 0.0)
    first.update(b"new")
    assert not threading.Event().wait(1.5 * at.ttl)
    assert second.members() == {"a": b"1", "b": b"2"}
    assert first.away_for() > at.ttl
    etcd.start()
    seen(second, {"a": b"new", "b": b"2"})
    until(lambda: first.away_for() == 0.0 == second.away_for())
    assert not threading.Event().wait(1.5 * at.ttl)
    assert all(record.always_had("a", "b") for record in records)


def test_etcd_comes_back_empty(at: Place, etcd: Etcd) -> None:
    secret = at.open("a", b"1").secret()
    at.opened.pop().close()
    records = two_with_records(at)
    first, second = at.opened
    assert first.secret() == secret
    gone = at.process("gone")
    seen(first, {"a": b"1", "b": b"2", "gone": b""})
    etcd.kill()
    gone.kill()
    etcd.restart(empty=True)
    newcomer = at.open("c", b"3")
    for membership in (first, second, newcomer):
        seen(membership, {"a": b"1", "b": b"2", "c": b"3"})
    assert newcomer.secret() == secret == second.secret()
    assert not threading.Event().wait(1.5 * at.ttl)
    assert all(record.always_had("a", "b") for record in records)
    second.leave()
    seen(first, {"a": b"1", "c": b"3"})


def test_etcd_is_stopped_for_longer_than_leases_last(at: Place, etcd: Etcd) -> None:
    records = two_with_records(at)
    first, second = at.opened
    gone = at.process("gone")
    seen(first, {"a": b"1", "b": b"2", "gone": b""})
    with etcd.stopped():
        gone.kill()
        until(lambda: first.away_for() > 1.5 * at.ttl)
        assert first.members().keys() == second.members().keys() == {"a", "b", "gone"}
    for membership in (first, second):
        seen(membership, {"a": b"1", "b": b"2"})
    assert first.away_for() == 0.0
    assert not threading.Event().wait(1.5 * at.ttl)
    assert all(record.always_had("a", "b") for record in records)


def test_nothing_hangs_while_etcd_is_stopped(at: Place, etcd: Etcd) -> None:
    first, second = at.open("a"), at.open("b")
    seen(second, {"a": b"", "b": b""})
    with etcd.stopped():
        first.update(b"later")
        assert first.members()["a"] == b"later"
        second.leave()
        before = time.monotonic()
        first.close()
        second.close()
        assert time.monotonic() - before < 30  # usually 2 to 3
        with pytest.raises(ClusterUnavailable, match=r"did not answer within 0\.1 s"):
            open_membership(at.url, timeout=0.1)


def test_etcd_is_killed_for_good(at: Place, etcd: Etcd) -> None:
    with open_membership(at.url, ttl=at.ttl, timeout=0.1) as first:
        first.join("a", b"")
        etcd.kill()
        first.leave()
        assert first.members() == {}
        with pytest.raises(ClusterUnavailable, match="cannot be reached"):
            first.secret()
        with pytest.raises(ClusterUnavailable, match="cannot be reached"):
            first.join("a", b"")
        assert first.members() == {}


def test_a_key_that_was_deleted_by_hand_comes_back(at: Place, etcd: Etcd) -> None:
    first, second = at.open("a", b"1"), at.open("b", b"2")
    seen(second, {"a": b"1", "b": b"2"})
    record = Record()
    second.listen(record)
    etcd.call("/v3/kv/deleterange", key=text64(b"nanokv/own/members/a"))
    until(lambda: bool(record.told) and record.told[-1] == {"b": b"2"})
    seen(second, {"a": b"1", "b": b"2"})
    assert first.members() == second.members()


def test_three_etcds_of_which_one_dies(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path, 3) as etcds, place(f"etcd://{endpoints(etcds)}/three", PATIENT_TTL) as at:
        records = two_with_records(at)
        first, second = at.opened
        etcds[0].kill()  # the one that both of them use
        first.update(b"new")
        seen(second, {"a": b"new", "b": b"2"})
        etcds[1].signal(signal.SIGSTOP)  # the third one alone may decide nothing
        until(lambda: first.away_for() > 0.0 and second.away_for() > 0.0)
        assert not threading.Event().wait(1.5 * at.ttl)
        assert first.members() == {"a": b"new", "b": b"2"}
        etcds[1].signal(signal.SIGCONT)
        until(lambda: first.away_for() == 0.0 == second.away_for())
        second.update(b"newer")
        seen(first, {"a": b"new", "b": b"newer"})
        assert all(record.always_had("a", "b") for record in records)


def endpoints(etcds: list[Etcd]) -> str:
    """Of a URL."""
    return ",".join(f"127.0.0.1:{each.port}" for each in etcds)

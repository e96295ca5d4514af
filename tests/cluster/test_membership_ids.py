"""Ids of members, the secret of a cluster, and wrong arguments: for both registries, etcd and a folder."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nanokv.cluster.membership import MAX_CARD, ClusterUnavailable, Membership, open_membership
from nanokv.errors import InvalidArgument
from tests.support.faults import Clock
from tests.support.memberships import PATIENT_TTL, Place, at, seen, shared_etcd

__all__ = ["at", "shared_etcd"]


# --- ids ---
def test_an_id_is_held_by_one_process(at: Place) -> None:
    first, second = at.open("a", b"1"), at.open()
    with pytest.raises(ClusterUnavailable, match="member id 'a' is held by another living process"):
        second.join("a", b"2")
    assert second.members() == {"a": b"1"}
    second.join("b", b"2")
    seen(first, {"a": b"1", "b": b"2"})


def test_of_many_that_want_one_id_one_gets_it(at: Place) -> None:
    contenders = [at.open(ttl=PATIENT_TTL) for _ in range(6)]

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
    contenders = [at.open(ttl=PATIENT_TTL) for _ in range(4)]

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


def test_incarnations_grow_whatever_clocks_say(at: Place, clock: Clock) -> None:
    """A host whose clock was ahead, and is set right; and many that join at the same moment."""
    hour = 3600 * 10**9
    first, begun = at.open(), time.time_ns()
    assert abs(first.next_incarnation() - begun) < hour
    clock.jumps(3600)
    ahead = first.next_incarnation()
    assert ahead > begun + hour // 2
    first.close()
    clock.is_right()
    memberships = [at.open() for _ in range(3)]
    with ThreadPoolExecutor(len(memberships)) as pool:
        found = [*pool.map(Membership.next_incarnation, memberships * 4)]
    assert sorted(found) == list(range(ahead + 1, ahead + 13))
    assert memberships[0].members() == {}


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

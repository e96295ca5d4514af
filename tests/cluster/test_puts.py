"""Puts to other nodes that do not go as usual: a full owner, a link that fails, a producer that waits no longer."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from nanokv import Hold
from nanokv.cluster import NanoKVCluster, kept, putting
from nanokv.cluster.kept import numbers_message
from nanokv.cluster.kinds import Kind
from nanokv.cluster.links.nixl import NixlLink
from nanokv.cluster.messages.replies import Refused
from nanokv.cluster.pull_message import Question
from nanokv.cluster.pulling import Pull, Puller
from nanokv.cluster.relative_terms import absolute, relative
from nanokv.device.fabric.records import PULL
from nanokv.device.machines.records import Terms
from nanokv.device.segment.layout import ACCESS_TIME
from nanokv.errors import OutOfMemory, PeerLost
from nanokv.transfer.descriptors import describe
from tests.support.faults import Calls, Limits
from tests.support.until import until

from .conftest import MakeCluster
from .network import Network, asked, over_link

LARGE = torch.arange(50_000)


@pytest.fixture
def link() -> str:
    """What the owner pulls, it pulls over a link."""
    return "nixl"


# --- a full owner ---
@pytest.mark.parametrize("link", ["nixl alone"])
def test_an_owner_without_room_answers_others_meanwhile(make_cluster: MakeCluster, calls: Calls) -> None:
    """Each of its steps is short, whatever the number of objects; and it gives up in time for its answer."""
    one, two = make_cluster(world={"evict": False}, heap_bytes=1 << 20)
    assert two.world.put_many([f"f{i}" for i in range(300)], torch.ones(300, 4)).count(None) == 256
    looked = calls.before(Puller, "begin_again", lambda *_: time.sleep(0.02))
    one.options = replace(one.options, timeout=4.0)
    took = []
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(one.put_many, [f"x{i}" for i in range(500)], torch.ones(500, 4), preferred_segment=("n1", 0))
        until(lambda: looked, "the search for room")
        while not many.done():
            begun = time.monotonic()
            with pytest.raises(OutOfMemory):
                one.put("other", torch.ones(4), preferred_segment=("n1", 0))
            took.append(time.monotonic() - begun)
        assert all(isinstance(each, OutOfMemory) for each in many.result())
    assert len(looked) < 400  # of 500: for half of four seconds
    assert len(took) > 2 and min(took) < 1  # and not only when all is over
    assert not two.world.stats()["unfinished"]


@pytest.mark.parametrize("link", ["nixl alone"])
def test_what_has_room_is_stored_though_others_have_none(make_cluster: MakeCluster) -> None:
    one, two = make_cluster(world={"evict": False}, heap_bytes=1 << 20)
    outcomes = one.put_many([f"x{i}" for i in range(400)], torch.ones(400, 4), preferred_segment=("n1", 0))
    assert outcomes.count(None) == 256 == sum(two.world.exists(f"x{i}") for i in range(400))
    assert sum(isinstance(each, OutOfMemory) for each in outcomes) == 144


# --- a link that fails ---
def let_go(member: NanoKVCluster) -> None:
    """What a read of another call does to the link when it is late."""
    link = member.member.link
    assert isinstance(link, NixlLink)
    for peer in list(link._peers):
        link.disconnect(peer)


@pytest.mark.parametrize("step", ["rows_of", "line"])
def test_a_read_that_lets_the_producer_go_costs_no_put(make_cluster: MakeCluster, calls: Calls, step: str) -> None:
    """Before its bytes are read, or before its ticket is."""
    one, two = make_cluster()
    one.put("first", LARGE, preferred_segment=("n1", 0))
    steps = calls.before(Puller, step, lambda *_: let_go(two), at=(1,))
    one.put("x", LARGE, preferred_segment=("n1", 0))
    assert steps and torch.equal(two.world.get("x"), LARGE)


def test_a_link_that_always_fails_is_named_as_the_cause(make_cluster: MakeCluster, calls: Calls) -> None:
    """And not `write_timeout`, which has nothing to do with it."""
    one, two = make_cluster()
    one.put("first", LARGE, preferred_segment=("n1", 0))
    calls.before(Puller, "line", lambda *_: let_go(two))
    with pytest.raises(PeerLost, match=r"could not take .*: LinkLost: .* nothing was stored: peer .* connected"):
        one.put("x", LARGE, preferred_segment=("n1", 0))
    calls.go_on()
    assert not two.world.exists("x") and not two.world.stats()["unfinished"]
    one.put("x", LARGE, preferred_segment=("n1", 0))
    until(lambda: one.stats()["late_puts"] == 0, "the memory of the put to be free")


def test_a_card_that_fits_no_message_is_said(make_cluster: MakeCluster, calls: Calls) -> None:
    """It grows with each region that is registered. What is small needs none."""
    one, two = make_cluster()
    calls.answer(one.member.link, "card", bytes(110_000))
    with pytest.raises(PeerLost, match="has 110000 bytes, too many for a message: register less memory"):
        one.put("x", LARGE, preferred_segment=("n1", 0))
    one.put("small", torch.ones(3), preferred_segment=("n1", 0))
    assert two.world.exists("small") and not two.world.exists("x")


def test_parts_of_a_batch_are_kept_and_counted_by_themselves(make_cluster: MakeCluster, limits: Limits) -> None:
    limits(putting, MOST_PULLS=2)
    one, two = make_cluster(heap_bytes=16 << 20)
    rows = torch.arange(5 * 50_000).reshape(5, -1)
    assert one.put_many([f"k{i}" for i in range(5)], rows, preferred_segment=("n1", 0)) == [None] * 5
    assert all(torch.equal(two.world.get(f"k{i}"), rows[i]) for i in range(5))


# --- what was given up ---
def hold_up(calls: Calls) -> None:
    """Let pulls wait for their bytes until the calls go on."""
    calls.answer(Pull, "_await_bytes", None)


def test_memory_is_free_again_when_the_owner_reads_no_more(make_cluster: MakeCluster, calls: Calls) -> None:
    """Not before; and without another put. What the producer gave up is not stored."""
    one, two = make_cluster()
    one.put("first", LARGE, preferred_segment=("n1", 0))
    one.options = replace(one.options, timeout=0.2)
    hold_up(calls)
    for i in range(3):
        with pytest.raises(PeerLost, match="did not answer"):
            one.put(f"x{i}", LARGE, preferred_segment=("n1", 0))
    assert one.stats()["late_puts"] == 3 and one.stats()["late_put_bytes"] == 3 * LARGE.nbytes
    numbers = [number for kept in over_link(one)[1].kept.members.values() for number in kept]
    body = numbers_message(numbers)
    assert asked(one, "n1", Kind.OVER, body) == bytes(3)
    calls.go_on()
    until(lambda: one.stats()["late_puts"] == 0, "the end of the pulls")
    assert one.stats()["late_put_bytes"] == 0 and not any(two.world.exists(f"x{i}") for i in range(3))
    until(lambda: not two.world.stats()["unfinished"])
    assert not over_link(two)[2].producers["n0.0"].active


def test_a_question_that_was_given_up_is_not_taken_any_more(make_cluster: MakeCluster) -> None:
    """It came late, after the producer was told that nobody would read."""
    one, two = make_cluster()
    pulls = np.zeros(1, PULL.dtype)
    pulls["nbytes"], pulls["what"] = describe(torch.zeros(100, dtype=torch.uint8))
    question = Question(pulls, b"", 0, 77, 1.0, bytes(100))
    body = numbers_message([77, 78])
    assert asked(one, "n1", Kind.OVER, body) == b"\1\1"
    with pytest.raises(Refused, match="question 77 was given up"):
        asked(one, "n1", Kind.PULL, question.packed())
    asked(one, "n1", Kind.PULL, question._replace(number=79).packed())
    two.world.flush()
    assert two.world.segment_count() == 1


def test_so_much_is_kept_for_one_node_and_no_more(make_cluster: MakeCluster, calls: Calls, limits: Limits) -> None:
    limits(kept, MOST_BYTES=LARGE.nbytes)
    one, _ = make_cluster()
    one.put("first", LARGE, preferred_segment=("n1", 0))
    one.options = replace(one.options, timeout=0.2)
    hold_up(calls)
    for why in ("did not answer", "has not answered puts of 400000 bytes"):
        with pytest.raises(PeerLost, match=why):
            one.put("x", LARGE, preferred_segment=("n1", 0))
    assert one.stats()["peer_lost"] == 2
    one.put("small", torch.ones(3), preferred_segment=("n1", 0))  # its bytes travel in the question
    calls.go_on()
    until(lambda: one.stats()["late_puts"] == 0)
    one.put("y", LARGE, preferred_segment=("n1", 0))


def test_claims_of_a_pull_that_was_given_up_come_back_by_themselves(make_cluster: MakeCluster, calls: Calls) -> None:
    """No other put has to come."""
    one, two = make_cluster()
    one.put("first", LARGE, preferred_segment=("n1", 0))
    late = calls.fail(Pull, "_await_bytes", PeerLost("the bytes did not come in time"))
    with pytest.raises(PeerLost, match="the bytes did not come in time"):
        one.put("x", LARGE, preferred_segment=("n1", 0))
    assert late
    until(lambda: not two.world.stats()["unfinished"], "the claims")
    until(lambda: two.stats()["late_pulls"] == one.stats()["late_puts"] == 0)


def test_a_link_that_cannot_be_reached_again_leaves_nothing(make_cluster: MakeCluster, network: Network) -> None:
    one, two = make_cluster()
    one.put("first", LARGE, preferred_segment=("n1", 0))
    network.loses_reads(two)
    with pytest.raises(PeerLost, match="no way"):
        one.put("x", LARGE, preferred_segment=("n1", 0))
    network.is_well()
    assert not two.world.stats()["unfinished"] and not two.world.exists("x")


# --- terms ---
def test_what_holds_for_ever_does_so_on_another_node() -> None:
    longest = ACCESS_TIME.value
    now, there = time.time_ns(), time.time_ns() + 5 * 10**18 // 10
    for terms in (Terms(longest, 3, longest), Terms(longest - 4, 0, longest - 4)):
        came = absolute(relative(terms, now), there)
        assert came.access >= longest - 8 and came.until >= longest - 8 and came.group == terms.group
    hour = Terms(now + 3600 * 10**9 & ~3, 0, now + 3600 * 10**9)
    came = absolute(relative(hour, now), there)
    assert abs(came.access - (there + 3600 * 10**9)) < 8 and came.until == there + 3600 * 10**9


def test_a_hold_for_ever_holds(make_cluster: MakeCluster) -> None:
    one, two = make_cluster(heap_bytes=1 << 20)
    one.put("held", torch.ones(9), preferred_segment=("n1", 0), hold=float("inf"))
    one.put("lives", torch.ones(9), preferred_segment=("n1", 0), hold=Hold(ttl=float("inf"), priority="kept"))
    two.world.put_many([f"f{i}" for i in range(600)], torch.ones(600, 4))
    assert two.world.exists("held") and two.world.exists("lives")

"""What a producer asks for is checked before anything is done: it may be forged, or come from a broken process."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanokv.cluster import NanoKVCluster
from nanokv.cluster.card import Card, CardRefused
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.replies import Refused
from nanokv.cluster.pull_message import HEAD, MOST_PULLS, NEEDS_CARD, BadMessage, Question, Records, answer_of, answered
from nanokv.device.fabric.records import PULL
from nanokv.errors import PeerLost
from nanokv.transfer.descriptors import describe
from tests.support.faults import Calls

from .conftest import PAGE, MakeCluster
from .network import asked

BYTES = 100
STATS = "used_pages", "free_pages", "unfinished"
Change = Callable[[Records], None]


def right(count: int = 2, brought: bytes = bytes(2 * BYTES)) -> Question:
    """A question that is right: `count` objects of BYTES, which it brings."""
    pulls = np.zeros(count, PULL.dtype)
    pulls["key_hash"], pulls["key_check"], pulls["rank"] = np.arange(count) + 7, np.arange(count) + 11, 0
    pulls["nbytes"], pulls["what"] = describe(torch.zeros(BYTES, dtype=torch.uint8))
    pulls["source"] = BYTES * np.arange(count)
    return Question(pulls, b"", 0, 1, 1.0, brought)


def test_a_question_comes_as_it_went() -> None:
    for question in (right(), right(1, b"")._replace(card=b"card", ticket=64, number=9, timeout=2.5)):
        got = Question.unpacked(question.packed())
        assert np.array_equal(got.pulls, question.pulls) and got[1:] == question[1:]
    pulls = right().pulls
    assert answered(answer_of(pulls), 2)["rank"].tolist() == [0, 0]
    with pytest.raises(BadMessage, match="an answer about 3 pulls"):
        answered(answer_of(pulls), 3)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with contextlib.suppress(BadMessage):
        Question.unpacked(body)


@given(st.integers(0, HEAD.size + 2 * PULL.size + 2 * BYTES - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_stays_within_bounds(at: int, value: int) -> None:
    body = bytearray(right().packed())
    body[at] = value
    try:
        question = Question.unpacked(bytes(body))
    except BadMessage:
        return
    assert 0 < len(question.pulls) <= MOST_PULLS and question.number
    ends = question.pulls["source"] + question.pulls["nbytes"]
    assert not question.brought or ((question.pulls["source"] >= 0).all() and (ends <= len(question.brought)).all())


@pytest.mark.parametrize(("source", "nbytes"), [(-1, 1), (0, 201), (200, 1), (1 << 62, 1 << 62), (0, -1), (101, 100)])
def test_what_is_not_within_its_bytes(source: int, nbytes: int) -> None:
    question = right()
    question.pulls["source"][1], question.pulls["nbytes"][1] = source, nbytes
    with pytest.raises(BadMessage, match="not within the 200 bytes"):
        Question.unpacked(question.packed())


# --- a member that is asked so ---
def ask(member: NanoKVCluster, question: Question) -> bytes:
    """Ask node n1 as a member of the cluster, which has the secret."""
    return asked(member, "n1", Kind.PULL, question.packed())


@pytest.fixture
def link() -> str:
    """Only there are pulls."""
    return "nixl"


def set_field(name: str, value: Any) -> Change:
    def change(pulls: Records) -> None:
        pulls[name][0] = value

    return change


WRONG = {
    "a rank that is none": (set_field("rank", 1), "has the ranks 0 to 0"),
    "a negative rank": (set_field("rank", -2), "has the ranks 0 to 0"),
    "a size below 0": (set_field("nbytes", -1), "not within"),
    "a size above what it brings": (set_field("nbytes", 1 << 40), "not within"),
    "a shape of another size": (set_field("what", describe(torch.zeros(10 * BYTES, dtype=torch.uint8))[1]), "its size"),
    "a dtype that is none": (set_field("what", (255, 0, 0, 0, 0, 0, 0, 0)), "its size"),
    "an address in place of an offset": (set_field("source", 1 << 46), "not within"),
}


@pytest.mark.parametrize(("change", "why"), WRONG.values(), ids=WRONG)
def test_a_wrong_question_gets_an_error_and_changes_nothing(
    make_cluster: MakeCluster, change: Change, why: str
) -> None:
    one, two = make_cluster()
    question = right()
    change(question.pulls)
    with pytest.raises(Refused, match=why):
        ask(one, question)
    assert two.world.stats()["used_pages"] == 0 and not two.world.stats()["unfinished"]
    assert answered(ask(one, right()), 2)["status"].tolist() == [0, 0]  # it goes on


MOST = (1 << 63) - 1
#: of a question about memory of the producer
ADDRESSES = {
    "no address": ({"source": 0}, {}, "lie at no address"),
    "an address below 0": ({"source": -1}, {}, "lie at no address"),
    "a page below 0": ({"source": -4096}, {}, "lie at no address"),
    "an address whose end overflows": ({"source": MOST - BYTES + 1}, {}, "lie at no address"),
    "no ticket": ({}, {"ticket": 0}, "a ticket lies at no address"),
    "a ticket that is no word's": ({}, {"ticket": 4097}, "a ticket lies at no address"),
    "a ticket whose end overflows": ({}, {"ticket": MOST - 7}, "a ticket lies at no address"),
    "a ticket above all addresses": ({}, {"ticket": (1 << 64) - 64}, "a ticket lies at no address"),
    "no time": ({}, {"timeout": 0.0}, "nobody waits for"),
    "a time for ever": ({}, {"timeout": 1e9}, "nobody waits for"),
    "terms below 0": ({"access": -1}, {}, "the terms of an object"),
    "an end below 0": ({"until": -5}, {}, "the terms of an object"),
}


@pytest.mark.parametrize(("fields", "head", "why"), ADDRESSES.values(), ids=ADDRESSES)
def test_a_wrong_address_reaches_no_link(
    shared_pair: list[NanoKVCluster], calls: Calls, fields: Any, head: Any, why: str
) -> None:
    """Of a third node, too: its link's process would end."""
    one, two = shared_pair
    question = right(1, b"")._replace(ticket=4096, card=one.member.link.card())
    question.pulls["source"] = 4096
    for name, value in fields.items():
        question.pulls[name] = value
    transfers = calls.fail(two.member.puller, "read", AssertionError("a transfer was begun"))
    with pytest.raises(Refused, match=why):
        ask(one, question._replace(**head))
    assert not transfers and not two.world.stats()["unfinished"]


#: bodies that no member sends, by kind
BODIES: dict[str, tuple[Kind, bytes]] = {
    "half a digest": (Kind.REMOVE, bytes(8)),
    "too many digests": (Kind.REMOVE, bytes(16 * 4097)),
    "a use of another rank": (Kind.USED, np.array([1, 0, 0]).tobytes()),
    "a use of a rank below 0": (Kind.USED, np.array([-1, 0, 0]).tobytes()),
    "a use of no slot": (Kind.USED, np.array([0, 1 << 40, 0]).tobytes()),
    "a use of no epoch": (Kind.USED, np.array([0, 0, -1]).tobytes()),
    "too many uses": (Kind.USED, bytes(24 * 4097)),
    "a check that is none": (Kind.FSCK, b"slow"),
    "a generation of no place": (Kind.GENERATION, np.array([1 << 40, 1]).tobytes()),
    "no numbers": (Kind.OVER, b""),
    "half a number": (Kind.OVER, bytes(4)),
    "a number that is 0": (Kind.OVER, bytes(8)),
    "too many numbers": (Kind.OVER, b"x" * 8 * 4097),
    "half a pull": (Kind.PULL, right().packed()[:-3]),
    "no pull": (Kind.PULL, b""),
}


@pytest.mark.parametrize(("kind", "body"), BODIES.values(), ids=BODIES)
def test_a_body_that_no_member_sends_is_refused(shared_pair: list[NanoKVCluster], kind: Kind, body: bytes) -> None:
    one, two = shared_pair
    failed = two.stats()["messages_dropped_failed"]
    with pytest.raises(Refused, match="BadMessage"):
        asked(one, "n1", kind, body)
    assert two.stats()["messages_dropped_failed"] == failed + 1


@pytest.mark.parametrize("body", [b"", bytes(7), np.array([99]).tobytes(), np.array([-1]).tobytes()])
@pytest.mark.parametrize("link", ["nixl alone"])
def test_an_answer_that_is_none_is_no_answer(make_cluster: MakeCluster, calls: Calls, body: bytes) -> None:
    one, _ = make_cluster()
    calls.answer(one.member.ways, "ask", body)
    for call in (
        lambda: one.remove("x"),
        lambda: one.remove_many(["x"]),
        lambda: one.put("x", torch.ones(3), preferred_segment=("n1", 0)),
        lambda: one.put("x", torch.ones(100_000), preferred_segment=("n1", 0)),
    ):
        with pytest.raises(PeerLost, match="an answer about"):
            call()


def test_cards_that_contradict_themselves(shared_pair: list[NanoKVCluster]) -> None:
    one, _ = shared_pair
    card = one.member.nodes["n1"].cards[0]
    secret = bytes(16)
    assert Card.opened(card.sealed(secret), secret) == card
    for wrong in (
        *({"rank": 1}, {"rank": -1}, {"incarnation": 0}, {"incarnation": 1 << 63}, {"bases": ()}, {"bases": (-4096,)}),
        *(
            {"bases": (MOST,)},
            {"controls": (b"short",)},
            {"controls": ()},
            {"node": 3},
            {"wire": "tcp://x"},
            {"serves": 1},
        ),
    ):
        with pytest.raises(CardRefused, match="cannot be read"):
            Card.opened(replace(card, **wrong).sealed(secret), secret)


def test_a_wrong_question_about_memory_of_the_producer(make_cluster: MakeCluster) -> None:
    """Sources that are not registered: nothing is stored, and what was claimed comes back."""
    one, two = make_cluster(heap_bytes=64 * PAGE)
    one.put("first", torch.zeros(20_000), preferred_segment=("n1", 0))  # it knows the link's card now
    before = two.world.stats()
    for nbytes, why in ((1 << 50, "an object has 0 to"), (-5, "an object has 0 to")):
        question = right(1, b"")
        question.pulls["nbytes"] = nbytes
        with pytest.raises(Refused, match=why):
            ask(one, question)
    question = right(1, b"")
    question.pulls["source"] = 4096
    question = question._replace(ticket=4096)
    assert ask(one, question) == NEEDS_CARD  # as if its link had been lost
    with pytest.raises(Refused, match="LinkLost"):
        ask(one, question._replace(card=one.member.link.card()))
    after = two.world.stats()
    assert {name: dict(after)[name] for name in STATS} == {name: dict(before)[name] for name in STATS}

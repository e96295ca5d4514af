"""What a producer asks for is checked before anything is done: it may be forged, or come from a broken process."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanokv.cluster import NanoKVCluster
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.asker import Refused
from nanokv.cluster.pull_message import HEAD, MOST_PULLS, NEEDS_CARD, BadMessage, Question, Records, answer_of, answered
from nanokv.device.fabric.records import PULL
from nanokv.transfer.descriptors import describe

from .conftest import PAGE, MakeCluster

BYTES = 100
STATS = "used_pages", "free_pages", "unfinished"
Change = Callable[[Records], None]


def asked(count: int = 2, brought: bytes = bytes(2 * BYTES)) -> Question:
    """A question that is right: `count` objects of BYTES, which it brings."""
    pulls = np.zeros(count, PULL.dtype)
    pulls["key_hash"], pulls["key_check"], pulls["rank"] = np.arange(count) + 7, np.arange(count) + 11, 0
    pulls["nbytes"], pulls["what"] = describe(torch.zeros(BYTES, dtype=torch.uint8))
    pulls["source"] = BYTES * np.arange(count)
    return Question(pulls, b"", 0, 1, 1.0, brought)


def test_a_question_comes_as_it_went() -> None:
    for question in (asked(), asked(1, b"")._replace(card=b"card", ticket=64, number=9, timeout=2.5)):
        got = Question.unpacked(question.packed())
        assert np.array_equal(got.pulls, question.pulls) and got[1:] == question[1:]
    pulls = asked().pulls
    assert answered(answer_of(pulls), 2)["rank"].tolist() == [0, 0]
    with pytest.raises(BadMessage, match="an answer about 3 pulls"):
        answered(answer_of(pulls), 3)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with contextlib.suppress(BadMessage):
        Question.unpacked(body)


@given(st.integers(0, HEAD.size + 2 * PULL.size + 2 * BYTES - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_stays_within_bounds(at: int, value: int) -> None:
    body = bytearray(asked().packed())
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
    question = asked()
    question.pulls["source"][1], question.pulls["nbytes"][1] = source, nbytes
    with pytest.raises(BadMessage, match="not within the 200 bytes"):
        Question.unpacked(question.packed())


# --- a member that is asked so ---
def ask(member: NanoKVCluster, question: Question) -> bytes:
    """Ask node n1 as a member of the cluster, which has the secret."""
    to = member._nodes["n1"].cards[0]
    asker = member._parts.asker
    return asker.ask(to.messages, to.member, Kind.PULL, question.packed(), 10.0, to_incarnation=to.incarnation)


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
    question = asked()
    change(question.pulls)
    with pytest.raises(Refused, match=why):
        ask(one, question)
    assert two.world.stats()["used_pages"] == 0 and not two.world.stats()["unfinished"]
    assert answered(ask(one, asked()), 2)["status"].tolist() == [0, 0]  # it goes on


def test_a_wrong_question_about_memory_of_the_producer(make_cluster: MakeCluster) -> None:
    """Sources that are not registered: nothing is stored, and what was claimed comes back."""
    one, two = make_cluster(heap_bytes=64 * PAGE)
    one.put("first", torch.zeros(20_000), preferred_segment=("n1", 0))  # it knows the link's card now
    before = two.world.stats()
    for nbytes, why in ((1 << 50, "an object has 0 to"), (-5, "an object has 0 to")):
        question = asked(1, b"")
        question.pulls["nbytes"] = nbytes
        with pytest.raises(Refused, match=why):
            ask(one, question)
    question = asked(1, b"")
    question.pulls["source"] = 4096
    question = question._replace(ticket=4096)
    assert ask(one, question) == NEEDS_CARD  # as if its link had been lost
    with pytest.raises(Refused, match="LinkLost"):
        ask(one, question._replace(card=one._parts.link.card()))
    after = two.world.stats()
    assert {name: dict(after)[name] for name in STATS} == {name: dict(before)[name] for name in STATS}

"""Generations on several nodes: all take the highest. Nodes that do not answer: test_failures.py."""

import pytest

from nanokv.cluster.generations import message, parse
from nanokv.cluster.pull_message import BadMessage
from nanokv.device.segment.layout import PLACES_OF_GENERATIONS
from nanokv.errors import CacheClosed

from .conftest import MakeCluster


def test_all_nodes_have_the_highest(make_cluster: MakeCluster) -> None:
    a, b = make_cluster(2)
    assert a.advance_generation() == 1
    assert [a.generation(), b.generation()] == [1, 1]
    b.world.advance_generation()  # as if it had been in another cluster before
    b.world.advance_generation()
    assert a.generation() == 1
    (c,) = make_cluster(1)  # one that joins compares
    assert c.generation() == 3
    assert a.advance_generation() == 2 or a.generation() == 3
    assert {member.generation() for member in (a, b, c)} == {3}
    a.close()
    with pytest.raises(CacheClosed):
        a.generation()


def test_what_members_say_of_themselves(make_cluster: MakeCluster) -> None:
    (a,) = make_cluster(1, about="one")
    (b,) = make_cluster(1, about="two")
    assert [a.about(), b.about()] == [{"n1": "two"}, {"n0": "one"}]


def test_messages_are_checked() -> None:
    assert parse(message(3, 7)) == (3, 7)
    for wrong in (b"", b"12345678", message(PLACES_OF_GENERATIONS, 1), message(0, 1 << 62), b"\xff" * 16):
        with pytest.raises(BadMessage):
            parse(wrong)

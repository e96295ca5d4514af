"""The parts of a member: what a step that fails leaves open, and in which order all is closed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanokv import NanoKVCache
from nanokv.cluster import NanoKVCluster
from nanokv.cluster.at_once import AtOnce
from nanokv.cluster.events import Events
from nanokv.cluster.generations import GenerationTeller
from nanokv.cluster.kept import Kept
from nanokv.cluster.links.nixl import NixlLink
from nanokv.cluster.membership import Membership
from nanokv.cluster.messages.asker import Asker
from nanokv.cluster.messages.feed import Publisher
from nanokv.cluster.messages.server import Server
from nanokv.cluster.nodes import Nodes
from nanokv.cluster.pulling import Puller
from nanokv.cluster.staging import Staging
from nanokv.cluster.uses import Uses
from nanokv.errors import CacheClosed
from tests.support.faults import Calls
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE

#: parts as they are opened
OPENED: list[type[Any]] = [
    *(Membership, NixlLink, Staging, Staging, Nodes, Asker, Kept, Puller, Server, Uses, Publisher, Events, AtOnce),
    GenerationTeller,
]
#: parts as they are closed: nobody is told to come any more, then nobody is let read, then memory is given back
CLOSED: list[type[Any]] = [
    *(GenerationTeller, Kept, Membership, AtOnce, Events, Publisher, Uses, Server, Puller, Asker, Nodes, NixlLink),
    *(Staging, Staging),
]
#: what fails, and how many parts are open then
STEPS = {
    "member.open_membership": 0,
    "membership.Membership.next_incarnation": 1,
    "member.open_link": 1,
    "member.Staging": 2,
    "member.Nodes": 4,
    "member.Asker": 5,
    "member.RemotePuts": 6,
    "member.Puller": 7,
    "member.Server": 8,
    "member.Uses": 9,
    "member.Publisher": 10,
    "member.Events": 11,
    "events.Subscriber": 11,
    "member.AtOnce": 12,
    "member.GenerationTeller": 13,
    "member.Card": 14,
    "membership.Membership.join": 14,
    "membership.Membership.listen": 14,
}


class Broken(Exception):
    """What a step raises."""


def breaks(*_: Any, **__: Any) -> None:
    raise Broken


@pytest.fixture
def world(nixl: None) -> Iterator[NanoKVCache]:
    with NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as made:
        yield made


@pytest.fixture
def closed(calls: Calls) -> list[type[Any]]:
    """The parts that were closed."""
    found: list[type[Any]] = []
    for kind in set(OPENED):
        calls.before(kind, "close", lambda self, kind=kind: found.append(kind))
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/cluster"


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_leaves_nothing_open(
    world: NanoKVCache, url: str, closed: list[type[Any]], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, left = set(threading.enumerate()), list(OPENED[: STEPS[step]])
    expected = []
    for kind in CLOSED:
        if kind in left:
            left.remove(kind)
            expected.append(kind)
    with monkeypatch.context() as patch, pytest.raises(Broken):
        patch.setattr(f"nanokv.cluster.{step}", breaks)
        NanoKVCluster(world, url, node="n0")
    assert closed == expected
    until(lambda: set(threading.enumerate()) <= threads, "the end of the threads")
    world.put("a", torch.ones(2))
    with NanoKVCluster(world, url, node="n0") as member:  # its name is free
        assert member.nodes == ["n0"] and member.exists("a")


def test_a_world_that_is_closed_meanwhile(world: NanoKVCache, url: str, closed: list[type[Any]], calls: Calls) -> None:
    calls.instead(Membership, "listen", lambda *_: world.close())
    with pytest.raises(CacheClosed):
        NanoKVCluster(world, url, node="n0")
    assert closed == CLOSED


def test_parts_are_closed_in_order_once(world: NanoKVCache, url: str, closed: list[type[Any]]) -> None:
    member = NanoKVCluster(world, url, node="n0")
    member.close()
    assert closed == CLOSED
    member.close()
    member.member.close()
    assert closed == CLOSED


@pytest.mark.parametrize("kind", dict.fromkeys(CLOSED))
def test_a_part_whose_close_raises_keeps_no_other_open(
    world: NanoKVCache, url: str, closed: list[type[Any]], kind: type[Any], calls: Calls
) -> None:
    threads = set(threading.enumerate())
    calls.after(kind, "close", breaks)
    member = NanoKVCluster(world, url, node="n0")
    with pytest.raises(Broken):
        member.close()
    assert closed == CLOSED and member.closed
    until(lambda: set(threading.enumerate()) <= threads, "the end of the threads")

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
from nanokv.cluster.links.none import NoLink
from nanokv.cluster.membership import Membership
from nanokv.cluster.messages.feed import Publisher
from nanokv.cluster.nodes import Nodes
from nanokv.cluster.pulling import Puller
from nanokv.cluster.staging import Staging
from nanokv.cluster.uses import Uses
from nanokv.cluster.wire.server import WireServer
from nanokv.cluster.wire.ways import Ways
from nanokv.errors import CacheClosed
from tests.support.faults import Calls
from tests.support.needed import need_nixl
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE

Parts = list[type[Any]]
#: parts as they are opened, by the link
OPENED: dict[str, Parts] = {
    "wire": [
        *(Membership, NoLink, Staging, Staging, Nodes, Ways, WireServer, Publisher, Events, AtOnce, GenerationTeller)
    ],
    "nixl": [
        *(Membership, NixlLink, Staging, Staging, Nodes, Ways, Kept, Puller, WireServer, Uses, Publisher, Events),
        *(AtOnce, GenerationTeller),
    ],
}
#: parts as they are closed: nobody is told to come any more, then nobody is let read, then memory is given back
CLOSED: dict[str, Parts] = {
    "wire": [
        *(GenerationTeller, Membership, AtOnce, Events, Publisher, WireServer, Ways, Nodes, NoLink, Staging, Staging)
    ],
    "nixl": [
        *(GenerationTeller, Kept, Membership, AtOnce, Events, Publisher, Uses, WireServer, Puller, Ways, Nodes),
        *(NixlLink, Staging, Staging),
    ],
}
LAST = ["member.Card", "membership.Membership.join", "membership.Membership.listen"]
#: what fails, and how many parts are open then
STEPS: dict[str, dict[str, int]] = {
    "wire": {
        "member.open_membership": 0,
        "membership.Membership.next_incarnation": 1,
        "member.NoLink": 1,
        "member.Staging": 2,
        "member.Nodes": 4,
        "member.Ways": 5,
        "member.WireServer": 6,
        "member.Publisher": 7,
        "member.Events": 8,
        "events.Subscriber": 8,
        "member.AtOnce": 9,
        "member.GenerationTeller": 10,
        **dict.fromkeys(LAST, 11),
    },
    "nixl": {
        "member.open_link": 1,
        "member.RemotePuts": 6,
        "member.Puller": 7,
        "member.WireServer": 8,
        "member.Uses": 9,
        "member.Publisher": 10,
        **dict.fromkeys(LAST, 14),
    },
}


class Broken(Exception):
    """What a step raises."""


def breaks(*_: Any, **__: Any) -> None:
    raise Broken


@pytest.fixture(params=list(OPENED))
def link(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(link: str) -> Iterator[NanoKVCache]:
    if link == "nixl":
        need_nixl()
    with NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as made:
        yield made


@pytest.fixture
def closed(calls: Calls) -> Parts:
    """The parts that were closed."""
    found: Parts = []
    for kind in {kind for opened in OPENED.values() for kind in opened}:
        calls.before(kind, "close", lambda self, kind=kind: found.append(kind))
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/cluster"


@pytest.mark.parametrize(("link", "step"), [(link, step) for link, steps in STEPS.items() for step in steps])
def test_a_step_that_fails_leaves_nothing_open(
    world: NanoKVCache, url: str, closed: Parts, link: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, left = set(threading.enumerate()), list(OPENED[link][: STEPS[link][step]])
    expected = []
    for kind in CLOSED[link]:
        if kind in left:
            left.remove(kind)
            expected.append(kind)
    with monkeypatch.context() as patch, pytest.raises(Broken):
        patch.setattr(f"nanokv.cluster.{step}", breaks)
        NanoKVCluster(world, url, node="n0", link=link)
    assert closed == expected
    until(lambda: set(threading.enumerate()) <= threads, "the end of the threads")
    world.put("a", torch.ones(2))
    with NanoKVCluster(world, url, node="n0", link=link) as member:  # its name is free
        assert member.nodes == ["n0"] and member.exists("a")


def test_a_world_that_is_closed_meanwhile(world: NanoKVCache, url: str, closed: Parts, link: str, calls: Calls) -> None:
    calls.instead(Membership, "listen", lambda *_: world.close())
    with pytest.raises(CacheClosed):
        NanoKVCluster(world, url, node="n0", link=link)
    assert closed == CLOSED[link]


def test_parts_are_closed_in_order_once(world: NanoKVCache, url: str, closed: Parts, link: str) -> None:
    member = NanoKVCluster(world, url, node="n0", link=link)
    member.close()
    assert closed == CLOSED[link]
    member.close()
    member.member.close()
    assert closed == CLOSED[link]


@pytest.mark.parametrize(
    ("link", "kind"), [("nixl", kind) for kind in dict.fromkeys(CLOSED["nixl"])] + [("wire", NoLink)]
)
def test_a_part_whose_close_raises_keeps_no_other_open(
    world: NanoKVCache, url: str, closed: Parts, link: str, kind: type[Any], calls: Calls
) -> None:
    threads = set(threading.enumerate())
    calls.after(kind, "close", breaks)
    member = NanoKVCluster(world, url, node="n0", link=link)
    with pytest.raises(Broken):
        member.close()
    assert closed == CLOSED[link] and member.closed
    until(lambda: set(threading.enumerate()) <= threads, "the end of the threads")

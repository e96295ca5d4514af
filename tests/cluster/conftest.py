"""Clusters of several nodes in this process, each with a world, a link and a server of its own."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nanokv
from nanokv.cluster import NanoKVCluster, offering
from nanokv.cluster import member as parts
from nanokv.cluster.seals import ALL, HEADS
from nanokv.fsck import check_cache
from tests.support.faults import Calls, Limits
from tests.support.needed import need_nixl
from tests.support.until import until

from .network import Network

PATIENCE = 10.0  #: seconds for a node: far above the usual
PAGE = 4096
HEAP_BYTES = 4 << 20
#: of `ClusterOptions.link`, where it is another name
LINKS = {"mapped": "wire", "sealed": "wire", "nixl alone": "nixl"}
MakeCluster = Callable[..., list[NanoKVCluster]]


@pytest.fixture(scope="session")
def nixl() -> None:
    """Only where NIXL is."""
    need_nixl()


@contextlib.contextmanager
def serves_nothing() -> Iterator[None]:
    """Members that are made meanwhile serve no objects over the wire."""
    calls = Calls()
    calls.answer(parts, "served_world", None)
    yield
    calls.go_on()


def way_of(link: str) -> dict[str, Any]:
    """The options of a member for a `link` of the tests."""
    return {"link": LINKS.get(link, link), "seal": ALL if link == "sealed" else HEADS}


@pytest.fixture
def link() -> str:
    """How the nodes of a test exchange objects. A module that is about another way has a fixture of this name.

    "wire"; "sealed": the same with `seal="all"`; "mapped": in each other's memory; "nixl": by one-sided reads and
    pulls, but for what is small; "nixl alone": no objects are served over the wire, as where segments lie in memory of
    GPUs.
    """
    return "wire"


def map_others(member: NanoKVCluster) -> None:
    """Wait until a member has mapped all that let it in."""
    nodes = member.member.nodes.others() if member.options.maps else []
    for node in nodes:
        if node.cards[0].geometry.guests:
            until(lambda: member.member.mapped.of(node) is not None, f"the memory of {node.name}")  # noqa: B023


@pytest.fixture
def make_cluster(link: str, tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes clusters of n nodes, which know each other. After the test each world is checked by fsck, and closed."""
    if link.startswith("nixl"):
        need_nixl()
    members: list[NanoKVCluster] = []

    def make(n: int = 2, *, heap_bytes: int = HEAP_BYTES, world: dict[str, Any] | None = None, **options: Any) -> Any:
        made: list[NanoKVCluster] = []
        url = options.pop("url", f"file://{tmp_path}/cluster")
        for i in range(n):
            guests = {"guests": 8} if link == "mapped" else {}
            cache = nanokv.NanoKVCache(heap_bytes, page_bytes=PAGE, **(guests | (world or {})))
            number = len(members) + i
            usual = {"node": f"n{number}", "ttl": 2.0, "timeout": PATIENCE, **way_of(link)}
            with serves_nothing() if link == "nixl alone" else contextlib.nullcontext():
                made.append(NanoKVCluster(cache, url, **(usual | options)))
        members.extend(made)
        living = [member for member in members if not member.closed]
        until(lambda: all(len(member.nodes) == len(living) for member in living), "the membership")
        if link == "mapped":
            for member in living:
                map_others(member)
        return made

    yield make
    breaches: list[Any] = []
    for member in members:
        member.close()
        if not member.world.closed:
            member.world.flush()
            breaches += check_cache([member.world]).breaches
            member.world.close()
    assert not breaches, "fsck after the test:\n" + "\n".join(map(str, breaches))


@pytest.fixture(scope="module")
def shared_pair(nixl: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NanoKVCluster]]:
    """Two nodes with NIXL for all tests of a module, which leave them as they were."""
    url = f"file://{tmp_path_factory.mktemp('pair')}/cluster"
    worlds = [nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE) for _ in range(2)]
    usual = {"ttl": 2.0, "timeout": PATIENCE, "link": "nixl"}
    made = [NanoKVCluster(world, url, node=f"n{i}", **usual) for i, world in enumerate(worlds)]
    until(lambda: all(len(member.nodes) == 2 for member in made), "the membership")
    yield made
    for member in made:
        member.close()
        member.world.close()


@pytest.fixture
def network(calls: Calls) -> Network:
    """What lies between the nodes."""
    return Network(calls)


@pytest.fixture(params=["brought", "pulled"])
def way(request: pytest.FixtureRequest, limits: Limits) -> str:
    """How small objects go to another node: in the question, or by transfers as large ones do."""
    if request.param == "pulled":
        limits(offering, MOST_BROUGHT=0)
    return str(request.param)


def key_of(member: NanoKVCluster, node: str, name: str = "key") -> str:
    """A key whose home is a node."""
    return next(f"{name}-{i}" for i in range(10_000) if member.home(f"{name}-{i}") == node)

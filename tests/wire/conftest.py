"""A world that is served over the wire in this process, and clients of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

import nanokv
from nanokv.allocation.producer import ProducerAllocation
from nanokv.check.wire.plain_wire import PlainWire
from nanokv.cluster.messages.replies import Handler
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.seals import SEALS
from nanokv.cluster.wire.client import WireClient
from nanokv.cluster.wire.server import WireServer, World
from nanokv.fsck import check_cache
from nanokv.transfer.object_calls import Routing

SECRET = b"a secret of the tests"
OWNER, ASKER = Sender("owner.0", 7), Sender("asker.0", 9)
SECONDS = 20.0  #: far above the usual


class Served(NamedTuple):
    """A world, and what serves it. `ends`: what is closed after the test."""

    world: nanokv.NanoKVCache
    server: WireServer
    ends: ExitStack
    seal: str

    def client(self, address: str = "", **options: Any) -> WireClient:
        """A client; by the UNIX socket, if no other address is given."""
        made = WireClient(SECRET, ASKER, OWNER, (address or self.server.local,), **({"seal": self.seal} | options))
        self.ends.callback(made.close)
        return made

    def plain(self) -> PlainWire:
        """A connection that sends what it is told."""
        made = PlainWire(self.server.local, SECRET, ASKER, OWNER, SECONDS, self.seal)
        self.ends.callback(made.close)
        return made


Serve = Callable[..., Served]


def serve_world(world: nanokv.NanoKVCache, handlers: dict[int, Handler] | None = None, **options: Any) -> WireServer:
    """A server of a world."""
    engine = world.engine
    assert isinstance(engine.allocation, ProducerAllocation)
    routing = Routing(engine.heap, engine.machine, engine.allocation)
    served = World(engine.heap, engine.machine.table_address, engine.allocation, routing)
    return WireServer(served, OWNER, SECRET, handlers or {}, **options)


@pytest.fixture(params=SEALS)
def seal(request: pytest.FixtureRequest) -> str:
    """As of `ClusterOptions`, of all members."""
    return str(request.param)


@pytest.fixture
def serve(seal: str) -> Iterator[Serve]:
    """Serves worlds. After the test each has nothing left that was begun, and is whole, as fsck says."""
    made: list[Served] = []

    def make(
        heap_bytes: int = 4 << 20,
        handlers: dict[int, Handler] | None = None,
        patience: float = SECONDS,
        spin: float = 0.0,
        **options: Any,
    ) -> Served:
        world = nanokv.NanoKVCache(heap_bytes, **({"page_bytes": 4096} | options))
        server = serve_world(world, handlers, patience=patience, spin=spin, seal=seal)
        made.append(Served(world, server, ExitStack(), seal))
        return made[-1]

    yield make
    breaches: list[Any] = []
    for world, server, ends, _ in made:
        ends.close()
        server.close()
        world.flush()
        breaches += check_cache([world]).breaches
        world.close()
    assert not breaches, "\n".join(map(str, breaches))


@pytest.fixture
def served(serve: Serve) -> Served:
    """A world of 4 MiB."""
    return serve()

"""A world behind two ends of the wire, one of each seal, in a process that does nothing else until it is ended."""

import sys

from nanokv import NanoKVCache
from nanokv.allocation.producer import ProducerAllocation
from nanokv.bench.nodes.transports import take_half
from nanokv.bench.peers.server import sleep_while_wanted, write_note
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.seals import SEALS
from nanokv.cluster.wire.server import WireServer, World
from nanokv.transfer.object_calls import Routing

SECRET, OWNER, ASKER = b"a secret of the benchmarks", Sender("owner.0", 1), Sender("asker.0", 2)
PATIENCE = 30.0  #: seconds: what is slow is measured, not given up


def main(note: str, heap_bytes: str, page_bytes: str) -> None:
    """Serve, say where, and stay. What is put evicts what was put long ago."""
    take_half(1)
    world = NanoKVCache(int(heap_bytes), page_bytes=int(page_bytes))
    engine = world.engine
    assert isinstance(engine.allocation, ProducerAllocation)
    routing = Routing(engine.heap, engine.machine, engine.allocation)
    served = World(engine.heap, engine.machine.table_address, engine.allocation, routing)
    servers = {seal: WireServer(served, OWNER, SECRET, {}, patience=PATIENCE, seal=seal) for seal in SEALS}
    addresses = {seal: {"UNIX socket": each.local, "TCP": each.address} for seal, each in servers.items()}
    write_note(note, {"addresses": addresses})
    sleep_while_wanted()
    for each in servers.values():
        each.close()
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The node that has the objects, in a process that does nothing else until it is ended."""

import os
import sys

import numpy as np

from nanokv import NanoKVCache
from nanokv.bench.nodes.echo import Answerer
from nanokv.bench.nodes.transports import take_half
from nanokv.bench.peers.server import sleep_while_wanted, write_note
from nanokv.cluster import NanoKVCluster

NODE = "owner"
_PAGE = 4096  #: of the machine
_ECHO_BYTES = 64 << 20  #: of bare exchanges: more than the processor's cache has
PATIENCE = 30.0  #: seconds: what is slow is measured, not given up


def main(
    note: str, folder: str, link: str, guests: str, heap_bytes: str, page_bytes: str, places: str, place_bytes: str
) -> None:
    """Join, say where memory lies into which bare transfers may write, and who answers bare exchanges, and stay.

    What is put evicts what was put long ago, as in an engine's life.
    """
    take_half(1)
    world = NanoKVCache(int(heap_bytes), page_bytes=int(page_bytes), guests=int(guests))
    segment = world.engine.heap.host_view(0)
    assert segment is not None
    touched = segment[::_PAGE]
    np.bitwise_or(touched, 0, out=touched)  # every page is there: one that nobody wrote is read faster, from one page
    plans = [world.open_for_write(f"a place {i}", int(place_bytes)) for i in range(int(places))]
    cluster = NanoKVCluster(world, f"file://{folder}", node=NODE, timeout=PATIENCE, link=link)
    places_at = [world.remote_ptr(0, plan.payload_base) for plan in plans]
    write_note(note, {"places": places_at, "echo": Answerer(_ECHO_BYTES).addresses, "pid": os.getpid()})
    sleep_while_wanted()
    cluster.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The node that has the objects, in a process that does nothing else until it is ended."""

import sys

from nanokv import NanoKVCache
from nanokv.bench.peers.server import sleep_while_wanted, write_note
from nanokv.bench.suite.settings import KIB, MIB
from nanokv.cluster import NanoKVCluster

NODE = "owner"
PAGE_BYTES = 64 * KIB
PART_BYTES = 8 * MIB  #: of the memory for bare transfers: the largest object
PATIENCE = 30.0  #: seconds: what is slow is measured, not given up


def main(note: str, folder: str, heap_bytes: str, place_bytes: str) -> None:
    """Join, say where memory lies into which bare transfers may write, and stay.

    A page is as large as an object of the batches. What is put evicts what was put long ago, as in an engine's life.
    """
    world = NanoKVCache(int(heap_bytes), page_bytes=PAGE_BYTES)
    plans = [world.open_for_write(f"a place {i}", PART_BYTES) for i in range(int(place_bytes) // PART_BYTES)]
    cluster = NanoKVCluster(world, f"file://{folder}", node=NODE, timeout=PATIENCE)
    write_note(note, {"places": [world.remote_ptr(0, plan.payload_base) for plan in plans]})
    sleep_while_wanted()
    cluster.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

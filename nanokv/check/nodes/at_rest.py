"""A world in which nobody works: what it stores is what is known, and nothing leaks."""

import time
from collections.abc import Collection
from typing import Any

from nanokv.cluster import NanoKVCluster
from nanokv.errors import NanoKVError
from nanokv.fsck import check_cache
from nanokv.types import KeyDigest

REST_SECONDS = 20.0  #: for transfers that were given up to end, and for what the dead had begun to come back
_LOOK = 0.02  #: seconds
_COUNTS = ("ready", "unfinished", "quarantined", "used_pages", "late_reads", "late_pulls")


def unknown_objects(cluster: NanoKVCluster, known: Collection[KeyDigest]) -> list[str]:
    """What this node's world stores beside the objects of known keys, and whether the counts agree with the objects."""
    world = cluster.world
    world.flush()
    found = list(world.segment_keys())
    wrong = [f"an object of a key that nobody put: {digest}" for digest in found if digest not in known]
    stats = world.stats()
    nbytes = sum(tensor.nbytes for tensor in map(world.get, found))
    if (stats["ready"], stats["bytes_stored"]) != (len(found), nbytes):
        wrong.append(
            f"{stats['ready']} objects of {stats['bytes_stored']} bytes are counted, "
            f"and {len(found)} of {nbytes} bytes can be read"
        )
    return wrong


def empty(cluster: NanoKVCluster, patience: float = REST_SECONDS) -> list[str]:
    """Remove everything from this node's world, until nothing is left. Returns what is left after `patience` seconds.

    Late messages of a network that was cut may still bring objects: those are removed too.
    """
    world, end = cluster.world, time.monotonic() + patience
    while True:
        try:
            world.clear()
            stats: dict[str, Any] = cluster.stats()
            left = [f"{count} is {stats[count]}, not 0" for count in _COUNTS if stats[count]]
            left = left or [str(finding) for finding in check_cache([world], patience=1.0).findings]
        except NanoKVError as error:
            left = [f"{type(error).__name__}: {error}"]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(_LOOK)

"""The quota of a cache's identity: written into a segment before the cache's first object there."""

from collections.abc import Callable

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import QUOTA_TAG_SHIFT
from nanokv.errors import OutOfMemory


def writer(machine: Machine, tag: int, quota_bytes: int) -> Callable[[int], None]:
    """A function of a rank that writes the quota into that segment at its first call.

    It raises OutOfMemory if that segment has no place for a further quota.
    """
    pages, there = min(quota_bytes // machine.geometry.page_bytes, (1 << QUOTA_TAG_SHIFT.value) - 1), set[int]()

    def write(rank: int) -> None:
        if rank in there:
            return
        if machine.set_quota(rank, tag, pages) != Status.OK:
            raise OutOfMemory(
                f"the segment of rank {rank} has no place for a further quota: no other identity can have one there "
                "before its world is made anew"
            )
        there.add(rank)

    return write

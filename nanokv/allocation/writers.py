"""Who writes an object that is not READY yet: what its header says."""

from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import RESERVED, STATE_MASK, WRITING, names_producer
from nanokv.host_poller.index import key_of
from nanokv.types import KeyDigest


def writer_in(machine: Machine, owner: int, slot: int, key: KeyDigest) -> tuple[int, int] | None:
    """The rank and the incarnation that write the object of a key in a header slot; None if no rank is seen to."""
    header = machine.headers(owner, slot, 1)[0]
    if key_of(header) != key or header["state"] & STATE_MASK.value not in (RESERVED.value, WRITING.value):
        return None
    if not names_producer(header):
        return None
    return producer_of(int(header["producer"]))

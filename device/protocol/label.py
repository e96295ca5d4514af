"""The label of an object: the group with which it is dropped, and the time at which its owner removes it.

A label has two words beside the header (LABEL). FLAG_LABEL says that they are of the object in the slot: the flags name
the epoch to which they belong, so a label never passes to the next object. Only hosts read labels: the owner's sweeper,
which removes objects whose time is over, and a host that drops a group.

Guarantees
- An object that has a label is READY with it: the producer writes it before the commit.
- A host changes the label of an object that is READY only while it holds a pin: the object stays in the slot. Of two
  hosts that change one at the same time, each word is of one of them.
- A host that reads a label has copied the header first, and removes the object only in that epoch. So a label that it
  reads of a later object removes nothing.

Why the orderings suffice: the commit releases the label, and a host acquires it with the STATE word of the header. No
word of a label is read for the sake of the other.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, store64, table64
from nanokv.device.protocol.request import Q_GROUP, Q_OWNER, Q_UNTIL
from nanokv.device.segment.layout import FLAG_LABEL, H_FLAGS, L_GROUP, L_UNTIL
from nanokv.device.segment.world_table import World, header_at, label_at, open_world, segment


@triton.jit
def label(world: World, owner: tl.int64, slot: tl.int64, group: tl.int64, until: tl.int64) -> None:
    """Give a label to an object that the caller is writing, or has pinned.

    Args:
        group: LABEL.group, or 0. until: the time in ns at which the owner removes the object, or 0.
    """
    seg = segment(world, owner)
    at = label_at(world, seg, slot)
    store64(at + L_GROUP, group, "relaxed")
    store64(at + L_UNTIL, until, "relaxed")
    header = header_at(world, seg, slot)
    flags = load64(header + H_FLAGS, "relaxed")  # the caller's own store, or nobody changes it
    store64(header + H_FLAGS, flags | FLAG_LABEL, "relaxed")


@triton.jit(noinline=True)
def label_request(table: tl.int64, request: tl.int64, slot: tl.int64) -> None:
    """Give the object of a request the label that the request names."""
    label(open_world(table), table64(request + Q_OWNER), slot, table64(request + Q_GROUP), table64(request + Q_UNTIL))


@triton.jit
def has_label(request: tl.int64) -> Any:
    """True if a request names a label."""
    return (table64(request + Q_GROUP) | table64(request + Q_UNTIL)) != 0

"""The protocol functions that a host calls: the one table that all machines use.

All arguments and answers are 64-bit integers. The first argument is the world table; the machine supplies it.
"""

import inspect
from typing import Any, NamedTuple

from nanokv.device.protocol import (
    directory,
    generations,
    get,
    host_alloc,
    host_calls,
    joinable,
    joining,
    label,
    layouts,
    lease,
    pins,
    put,
    put_copied,
    quotas,
    reclaim,
    replicate,
    ring,
    splitting,
)
from nanokv.device.protocol.activity import in_flight


class Entry(NamedTuple):
    """One protocol function as a host calls it."""

    function: Any
    answers: int  #: number of words that it returns
    by_owner: bool = False  #: True: a call of the owner's host, which does not wait for kernels about objects
    rare: bool = False  #: True: most ranks never call it, so a CPU compiles it when it is first called
    objects: int = 0  #: so many objects of Python come first, before the world; see `add_python_call`
    whole: bool = False  #: it is told what Python calls it with; see `add_whole_call`

    @property
    def arguments(self) -> int:
        """Number of words that it takes, the world table included."""
        return len(inspect.signature(self.function.fn).parameters)


OWNER, RARE = True, True
ENTRIES = {
    "begin": Entry(put.begin_described, 5),
    "seal": Entry(put.seal_payload, 0),
    "finish": Entry(host_calls.finish_hinted, 2),
    "commit": Entry(host_calls.commit_hinted, 2),
    "abort": Entry(host_calls.abort_hinted, 2),
    "enter": Entry(host_calls.enter_segment, 1),
    "leave": Entry(host_calls.leave_segment, 0),
    "put": Entry(put.put, 2, rare=RARE),
    "lookup": Entry(get.lookup_described, 14),
    "read": Entry(get.read, 1),
    "verify": Entry(get.verify, 1),
    "get": Entry(get.get_described, 1, rare=RARE),
    "validate": Entry(get.validate, 1),
    "touch": Entry(lease.touch, 0),
    "write_layout": Entry(layouts.write_layout, 1, OWNER, RARE),
    "set_quota": Entry(quotas.set_quota, 1, OWNER, RARE),
    "raise_generation": Entry(generations.raise_generation, 1, OWNER, RARE),
    "lease": Entry(lease.lease, 0, rare=RARE),
    "label": Entry(label.label, 0, rare=RARE),
    "renew": Entry(lease.renew, 1, rare=RARE),
    "find": Entry(directory.find, 2),
    "remove": Entry(host_calls.remove_hinted, 4),
    "remove_slot": Entry(host_calls.remove_slot_hinted, 2),
    "evict_slot": Entry(host_calls.evict_slot_hinted, 2, rare=RARE),
    "evict_pages": Entry(host_calls.evict_pages_hinted, 3, rare=RARE),
    "joiner": Entry(joining.joiner_of, 1, rare=RARE),
    "replicate": Entry(replicate.replicate, 2, rare=RARE),
    "begin_replica": Entry(replicate.begin_replica, 10, rare=RARE),
    "end_replica": Entry(replicate.end_replica, 2, rare=RARE),
    "put_copied": Entry(put_copied.put_copied, 2, rare=RARE),
    "find_copies": Entry(replicate.find_copies, 1, rare=RARE),
    "pin": Entry(pins.pin, 2),
    "unpin": Entry(pins.unpin, 1),
    # v1
    "install": Entry(host_alloc.install, 1, rare=RARE),
    "store_payload": Entry(host_alloc.store_payload, 0, rare=RARE),
    "state": Entry(host_alloc.state_of, 1, rare=RARE),
    "kill": Entry(host_alloc.kill_slot, 1, rare=RARE),
    "announce": Entry(host_alloc.announce_slot, 1, rare=RARE),
    # the owner's host: the poller and the sweeper
    "drain": Entry(ring.drain, 3, OWNER),
    "snapshots": Entry(reclaim.snapshots, 0, OWNER),
    "store_control": Entry(reclaim.store_control, 0, OWNER),
    "in_flight": Entry(in_flight, 1, OWNER),
    "give_up": Entry(reclaim.give_up, 1, OWNER, RARE),
    "release": Entry(reclaim.release, 1, OWNER, RARE),
    "adopt_slot": Entry(reclaim.adopt_slot, 0, OWNER, RARE),
    "begin_join": Entry(joining.begin_join, 1, OWNER, RARE),
    "end_join": Entry(joining.end_join, 0, OWNER, RARE),
    "forget_splits": Entry(splitting.forget_splits, 1, OWNER, RARE),
    "outlook": Entry(joinable.outlook_of, 1, OWNER, RARE),
    "detach_rest": Entry(reclaim.detach_rest, 1, OWNER, RARE),
    "detach_class": Entry(reclaim.detach_class, 0, OWNER, RARE),
    "push_extents": Entry(reclaim.push_extents, 0, OWNER, RARE),
    "walk_pages": Entry(reclaim.walk_pages, 0, OWNER, RARE),
    "walk_slots": Entry(reclaim.walk_slots, 0, OWNER, RARE),
    "drop_pin": Entry(pins.drop_pin, 1, OWNER, RARE),
    "clear_intent": Entry(pins.clear_intent, 0, OWNER, RARE),
    "recount": Entry(pins.recount, 1, OWNER, RARE),
}

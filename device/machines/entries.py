"""The protocol functions that a host calls: the one table that all machines use.

All arguments and answers are 64-bit integers. The first argument is the world table; the machine supplies it.
"""

import inspect
from typing import Any, NamedTuple

from nanokv.device.protocol import (
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
    quotas,
    reclaim,
    ring,
    splitting,
)
from nanokv.device.protocol.activity import in_flight


class NativeEntry(NamedTuple):
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
    "begin": NativeEntry(host_calls.host_begin, 5),
    "seal": NativeEntry(host_calls.host_seal, 0),
    "finish": NativeEntry(host_calls.host_finish, 2),
    "commit": NativeEntry(host_calls.host_commit, 2),
    "abort": NativeEntry(host_calls.host_abort, 2),
    "enter": NativeEntry(host_calls.host_enter, 1),
    "leave": NativeEntry(host_calls.host_leave, 0),
    "put": NativeEntry(host_calls.host_put, 2, rare=RARE),
    "lookup": NativeEntry(host_calls.host_lookup, 14),
    "read": NativeEntry(host_calls.host_read, 1),
    "verify": NativeEntry(host_calls.host_verify, 1),
    "get": NativeEntry(host_calls.host_get, 1, rare=RARE),
    "validate": NativeEntry(get.validate, 1),
    "touch": NativeEntry(lease.touch, 0),
    "write_layout": NativeEntry(layouts.write_layout, 1, OWNER, RARE),
    "set_quota": NativeEntry(quotas.set_quota, 1, OWNER, RARE),
    "raise_generation": NativeEntry(generations.raise_generation, 1, OWNER, RARE),
    "lease": NativeEntry(lease.lease, 0, rare=RARE),
    "label": NativeEntry(label.label, 0, rare=RARE),
    "renew": NativeEntry(lease.renew, 1, rare=RARE),
    "find": NativeEntry(host_calls.host_find, 2),
    "remove": NativeEntry(host_calls.host_remove, 4),
    "remove_slot": NativeEntry(host_calls.host_remove_slot, 2),
    "evict_slot": NativeEntry(host_calls.host_evict_slot, 2, rare=RARE),
    "evict_pages": NativeEntry(host_calls.host_evict_pages, 3, rare=RARE),
    "joiner": NativeEntry(joining.joiner_of, 1, rare=RARE),
    "replicate": NativeEntry(host_calls.host_replicate, 2, rare=RARE),
    "begin_replica": NativeEntry(host_calls.host_begin_replica, 10, rare=RARE),
    "end_replica": NativeEntry(host_calls.host_end_replica, 2, rare=RARE),
    "put_copied": NativeEntry(host_calls.host_put_copied, 2, rare=RARE),
    "find_copies": NativeEntry(host_calls.host_find_copies, 1, rare=RARE),
    "pin": NativeEntry(pins.pin, 2),
    "unpin": NativeEntry(pins.unpin, 1),
    # v1
    "install": NativeEntry(host_calls.host_install, 1, rare=RARE),
    "store_payload": NativeEntry(host_alloc.store_payload, 0, rare=RARE),
    "state": NativeEntry(host_alloc.state_of, 1, rare=RARE),
    "kill": NativeEntry(host_alloc.kill_slot, 1, rare=RARE),
    "announce": NativeEntry(host_alloc.announce_slot, 1, rare=RARE),
    # the owner's host: the poller and the sweeper
    "drain": NativeEntry(ring.drain, 3, OWNER),
    "snapshots": NativeEntry(reclaim.snapshots, 0, OWNER),
    "store_control": NativeEntry(reclaim.store_control, 0, OWNER),
    "in_flight": NativeEntry(in_flight, 1, OWNER),
    "give_up": NativeEntry(reclaim.give_up, 1, OWNER, RARE),
    "release": NativeEntry(reclaim.release, 1, OWNER, RARE),
    "adopt_slot": NativeEntry(reclaim.adopt_slot, 0, OWNER, RARE),
    "begin_join": NativeEntry(joining.begin_join, 1, OWNER, RARE),
    "end_join": NativeEntry(joining.end_join, 0, OWNER, RARE),
    "forget_splits": NativeEntry(splitting.forget_splits, 1, OWNER, RARE),
    "outlook": NativeEntry(joinable.outlook_of, 1, OWNER, RARE),
    "detach_rest": NativeEntry(reclaim.detach_rest, 1, OWNER, RARE),
    "detach_class": NativeEntry(reclaim.detach_class, 0, OWNER, RARE),
    "push_extents": NativeEntry(reclaim.push_extents, 0, OWNER, RARE),
    "walk_pages": NativeEntry(reclaim.walk_pages, 0, OWNER, RARE),
    "walk_slots": NativeEntry(reclaim.walk_slots, 0, OWNER, RARE),
    "drop_pin": NativeEntry(pins.drop_pin, 1, OWNER, RARE),
    "clear_intent": NativeEntry(pins.clear_intent, 0, OWNER, RARE),
    "recount": NativeEntry(pins.recount, 1, OWNER, RARE),
}

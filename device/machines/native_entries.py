"""The functions that a CPU compiles: those of `entries`, and those that only a host in native code can run."""

from nanokv.device.fabric import fetches, homes, locations, nixl, pulls
from nanokv.device.fabric import rounds as fabric
from nanokv.device.machines.entries import ENTRIES, Entry
from nanokv.device.native.calls import get_now, plan_now, put_now
from nanokv.device.native.keys import hash_each
from nanokv.device.native.many import find_each, get_each, put_each, remove_each, use_each
from nanokv.device.native.objects import exists_call, get_call, new_kind, put_call, remove_call, take_call
from nanokv.device.native.rounds import rounds
from nanokv.device.native.tensors import look, look_each
from nanokv.device.native.waits import await_ready
from nanokv.device.native.watch import watch

NATIVE_ENTRIES = ENTRIES | {
    "put_now": Entry(put_now, 1),
    "get_now": Entry(get_now, 1),
    "plan_now": Entry(plan_now, 4),
    "find_each": Entry(find_each, 1),
    "use_each": Entry(use_each, 1),
    "put_each": Entry(put_each, 1),
    "get_each": Entry(get_each, 1),
    "remove_each": Entry(remove_each, 4),
    "look": Entry(look, 1, objects=1),
    "look_each": Entry(look_each, 1, objects=1),
    "hash_each": Entry(hash_each, 1, objects=1),
    "new_kind": Entry(new_kind, 1),
    "put_call": Entry(put_call, 1, whole=True),
    "get_call": Entry(get_call, 1, whole=True),
    "exists_call": Entry(exists_call, 1, whole=True),
    "remove_call": Entry(remove_call, 1, whole=True),
    "take_call": Entry(take_call, 1, whole=True),
    "rounds": Entry(rounds, 1, by_owner=True),
    "await_ready": Entry(await_ready, 1),
}

#: what only the poller of a segment on a GPU calls
GPU_ENTRIES = {"watch": Entry(watch, 1)}

#: what only a process calls that reads segments of other hosts
FABRIC_ENTRIES = {
    # a round at a time, for any link
    "ask_buckets": Entry(fabric.ask_buckets, 1),
    "ask_headers": Entry(fabric.ask_headers, 2),
    "take_headers": Entry(fabric.take_headers, 0),
    "ask_known": Entry(fabric.ask_known, 1),
    "take_known": Entry(fabric.take_known, 0),
    "place_each": Entry(fetches.place_each, 1),
    "ask_bytes": Entry(fabric.ask_bytes, 2),
    "take_descriptors": Entry(fabric.take_descriptors, 0),
    "ask_again": Entry(fabric.ask_again, 1),
    "take_again": Entry(fabric.take_again, 1),
    "copy_each": Entry(fetches.copy_each, 0),
    "uses_of": Entry(fetches.uses_of, 2),
    # an owner's puts from other hosts
    "fault_of_pulls": Entry(pulls.fault_of_pulls, 1),
    "begin_each": Entry(pulls.begin_each, 1),
    "rows_of_pulls": Entry(pulls.rows_of_pulls, 1),
    "copy_pulls": Entry(pulls.copy_pulls, 0),
    "end_each": Entry(pulls.end_each, 1),
    # what is known of other nodes
    "learn_each": Entry(locations.learn_each, 0),
    "learn_headers": Entry(locations.learn_headers, 1),
    "learn_put": Entry(locations.learn_put, 0),
    "forget_node": Entry(locations.forget_node, 0),
    "node_of": Entry(locations.node_of, 1),
    "nodes_of": Entry(locations.nodes_of, 0),
    "recall": Entry(locations.recall, 1),
    "home_node": Entry(homes.home_node, 1),
    "home_nodes": Entry(homes.home_nodes, 0),
    # all rounds, over NIXL
    "nixl_locate": Entry(nixl.locate, 1),
    "nixl_look": Entry(nixl.look, 1),
    "nixl_fetch": Entry(nixl.fetch, 2),
    "nixl_get_one": Entry(nixl.get_one, 2),
    "nixl_begin": Entry(nixl.begin, 1),
    "nixl_read_rows": Entry(nixl.read_rows, 1),
    "nixl_look_at": Entry(nixl.look_at, 1),
    "nixl_lock": Entry(nixl.lock, 0),
    "nixl_unlock": Entry(nixl.unlock, 0),
}

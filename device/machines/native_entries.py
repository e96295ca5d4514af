"""The functions that a CPU compiles: those of `entries`, and those that only a host in native code can run."""

from nanokv.device.fabric import fetches, homes, locations, nixl, pulls
from nanokv.device.fabric import rounds as fabric
from nanokv.device.fabric.first_asked import first_asked
from nanokv.device.machines.entries import ENTRIES, NativeEntry
from nanokv.device.native.calls import get_now, plan_now, put_now
from nanokv.device.native.keys import hash_each
from nanokv.device.native.many import find_each, get_each, put_each, remove_each, use_each
from nanokv.device.native.objects import exists_call, get_call, new_kind, put_call, remove_call, take_call
from nanokv.device.native.rounds import rounds
from nanokv.device.native.telling import take_told, tell_each, wake_reader
from nanokv.device.native.tensors import look, look_each
from nanokv.device.native.waits import await_ready
from nanokv.device.native.watch import watch
from nanokv.device.wire import asker, calls, owner, siphash

NATIVE_ENTRIES = ENTRIES | {
    "put_now": NativeEntry(put_now, 1),
    "get_now": NativeEntry(get_now, 1),
    "plan_now": NativeEntry(plan_now, 4),
    "find_each": NativeEntry(find_each, 1),
    "use_each": NativeEntry(use_each, 1),
    "put_each": NativeEntry(put_each, 1),
    "get_each": NativeEntry(get_each, 1),
    "remove_each": NativeEntry(remove_each, 4),
    "look": NativeEntry(look, 1, objects=1),
    "look_each": NativeEntry(look_each, 1, objects=1),
    "hash_each": NativeEntry(hash_each, 1, objects=1),
    "new_kind": NativeEntry(new_kind, 1),
    "put_call": NativeEntry(put_call, 1, whole=True),
    "get_call": NativeEntry(get_call, 1, whole=True),
    "exists_call": NativeEntry(exists_call, 1, whole=True),
    "remove_call": NativeEntry(remove_call, 1, whole=True),
    "take_call": NativeEntry(take_call, 1, whole=True),
    "rounds": NativeEntry(rounds, 1, by_owner=True),
    "await_ready": NativeEntry(await_ready, 1),
}

#: what only the poller of a segment on a GPU calls
GPU_ENTRIES = {"watch": NativeEntry(watch, 1)}

#: what only a process calls that reads segments of other hosts
FABRIC_ENTRIES = {
    # a round at a time, for any link
    "ask_buckets": NativeEntry(fabric.ask_buckets, 1),
    "ask_headers": NativeEntry(fabric.ask_headers, 2),
    "take_headers": NativeEntry(fabric.take_headers, 0),
    "ask_known": NativeEntry(fabric.ask_known, 1),
    "take_known": NativeEntry(fabric.take_known, 0),
    "place_each": NativeEntry(fetches.place_each, 1),
    "ask_bytes": NativeEntry(fabric.ask_bytes, 2),
    "take_descriptors": NativeEntry(fabric.take_descriptors, 0),
    "ask_again": NativeEntry(fabric.ask_again, 1),
    "take_again": NativeEntry(fabric.take_again, 1),
    "copy_each": NativeEntry(fetches.copy_each, 0),
    "uses_of": NativeEntry(fetches.uses_of, 2),
    # an owner's puts from other hosts
    "fault_of_pulls": NativeEntry(pulls.fault_of_pulls, 1),
    "begin_each": NativeEntry(pulls.begin_each, 1),
    "rows_of_pulls": NativeEntry(pulls.rows_of_pulls, 1),
    "copy_pulls": NativeEntry(pulls.copy_pulls, 0),
    "end_each": NativeEntry(pulls.end_each, 1),
    # what is known of other nodes
    "learn_each": NativeEntry(locations.learn_each, 0),
    "learn_headers": NativeEntry(locations.learn_headers, 1),
    "learn_put": NativeEntry(locations.learn_put, 0),
    "forget_node": NativeEntry(locations.forget_node, 0),
    "node_of": NativeEntry(locations.node_of, 1),
    "size_of": NativeEntry(locations.size_of, 1),
    "nodes_of": NativeEntry(locations.nodes_of, 0),
    "sizes_of": NativeEntry(locations.sizes_of, 0),
    "recall": NativeEntry(locations.recall, 1),
    # what others are told of this one
    "tell_each": NativeEntry(tell_each, 0),
    "take_told": NativeEntry(take_told, 2),
    "wake_reader": NativeEntry(wake_reader, 0),
    # where keys belong
    "home_node": NativeEntry(homes.home_node, 1),
    "home_nodes": NativeEntry(homes.home_nodes, 0),
    "first_asked": NativeEntry(first_asked, 1, objects=2),
    # all rounds, over NIXL
    "nixl_locate": NativeEntry(nixl.locate, 1),
    "nixl_look": NativeEntry(nixl.look, 1),
    "nixl_fetch": NativeEntry(nixl.fetch, 2),
    "nixl_get_one": NativeEntry(nixl.get_one, 2),
    "nixl_get_into": NativeEntry(nixl.get_into, 2, objects=2),
    "nixl_begin": NativeEntry(nixl.begin, 1),
    "nixl_read_rows": NativeEntry(nixl.read_rows, 1),
    "nixl_look_at": NativeEntry(nixl.look_at, 1),
    "nixl_lock": NativeEntry(nixl.lock, 0),
    "nixl_unlock": NativeEntry(nixl.unlock, 0),
}

#: what a process calls that exchanges objects with others over sockets
WIRE_ENTRIES = {
    "serve": NativeEntry(owner.serve, 1),
    "go_on": NativeEntry(owner.go_on, 1),
    "answer": NativeEntry(owner.answer, 1),
    "give_up": NativeEntry(owner.give_up, 1),
    "put_pulls": NativeEntry(asker.put_pulls, 1),
    "get_wanted": NativeEntry(asker.get_wanted, 1),
    "ask_keys": NativeEntry(asker.ask_keys, 1),
    "call": NativeEntry(asker.call, 1),
    "receive_called": NativeEntry(asker.receive_called, 1),
    "put_one": NativeEntry(calls.put_one, 1, objects=2),
    "get_one": NativeEntry(calls.get_one, 1, objects=2),
    "get_any": NativeEntry(calls.get_any, 1, objects=1),
    "siphash": NativeEntry(siphash.siphash, 0),
}

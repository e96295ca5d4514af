"""The functions that a CPU compiles: those of `entries`, and those that only a host in native code can run."""

from nanokv.device.machines.entries import ENTRIES, Entry
from nanokv.device.native.calls import get_now, plan_now, put_now
from nanokv.device.native.many import find_each, get_each, put_each, remove_each
from nanokv.device.native.objects import find_object, get_object, put_object
from nanokv.device.native.rounds import rounds
from nanokv.device.native.tensors import look
from nanokv.device.native.waits import await_ready

NATIVE_ENTRIES = ENTRIES | {
    "put_now": Entry(put_now, 1),
    "get_now": Entry(get_now, 1),
    "plan_now": Entry(plan_now, 4),
    "find_each": Entry(find_each, 1),
    "put_each": Entry(put_each, 1),
    "get_each": Entry(get_each, 1),
    "remove_each": Entry(remove_each, 4),
    "look": Entry(look, 1, objects=1),
    "put_object": Entry(put_object, 1, objects=2),
    "get_object": Entry(get_object, 1, objects=2),
    "find_object": Entry(find_object, 1, objects=1),
    "rounds": Entry(rounds, 1, by_owner=True),
    "await_ready": Entry(await_ready, 1),
}

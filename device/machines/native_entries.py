"""The functions that a CPU compiles: those of `entries`, and those that only a host in native code can run."""

from nanokv.device.machines.entries import ENTRIES, Entry
from nanokv.device.native.calls import get_now, plan_now, put_now
from nanokv.device.native.many import find_each
from nanokv.device.native.rounds import rounds

NATIVE_ENTRIES = ENTRIES | {
    "put_now": Entry(put_now, 1),
    "get_now": Entry(get_now, 1),
    "plan_now": Entry(plan_now, 4),
    "find_each": Entry(find_each, 1),
    "rounds": Entry(rounds, 1, by_owner=True),
}

"""Every ordering of the protocol, made one step weaker: the suite must notice, or it says here why it stays.

`KEPT` are the orderings that no execution of the simulated memory needs. They are of two kinds: those that keep later
accesses of a task behind (the simulated memory delays none but the words of a copy), and loads that are atomics on
a GPU, so that all warps of a CTA get the same word (`device/memory.py`).
"""

from types import ModuleType
from typing import Any

from nanokv.device import (
    activity,
    directory,
    evict,
    extent,
    freelist,
    header,
    object,
    pins,
    reclaim,
    retire,
    ring,
)
from nanokv.device.sim.mutants import WeakOrdering, weak_orderings

PROTOCOL: tuple[ModuleType, ...] = (
    freelist,
    extent,
    header,
    directory,
    ring,
    activity,
    pins,
    retire,
    evict,
    object,
    reclaim,
)
UNIFORM = "a load that decides is an atomic: one word for all warps of a CTA"
BEHIND = "what follows stays behind it: the simulated memory does not reorder that"
HOST = "a call of the owner's host, which nobody waits for"

KEPT: dict[str, str] = {
    "find#0:acquire>relaxed": UNIFORM,
    "survey#0:acquire>relaxed": UNIFORM,
    "settle#0:acquire>relaxed": UNIFORM,
    "erase#0:acquire>relaxed": UNIFORM,
    "oldest#0:acquire>relaxed": UNIFORM,
    "oldest#1:acquire>relaxed": UNIFORM,
    "evict_for#0:acquire>relaxed": UNIFORM,
    "enter#1:acquire>relaxed": BEHIND,
    "in_flight#0:acq_rel>acquire": "what the host looked at before stays before",
    "add_pin#1:acq_rel>release": BEHIND,
    "recount#2:release>relaxed": "the lines were counted before",
    "release#0:acquire>relaxed": BEHIND,
    "walk#0:acquire>relaxed": HOST,
    "state_of#0:acq_rel>acquire": HOST,
    "state_of#0:acq_rel>release": HOST,
}

#: the scenario that finds a weaker ordering soonest; others are found by trying all
FOUND_BY: dict[str, str] = {}


def functions() -> list[Any]:
    """Every function of the protocol."""
    return [
        function
        for module in PROTOCOL
        for function in vars(module).values()
        if hasattr(function, "fn") and function.fn.__module__ == module.__name__
    ]


def orderings() -> list[WeakOrdering]:
    """Every ordering of the protocol, made one step weaker."""
    return [weaker for function in functions() for weaker in weak_orderings(function)]

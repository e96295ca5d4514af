"""Every ordering of the protocol, made one step weaker: a scenario notices it, or a reason here says why it stays.

`KEPT` are the orderings that no execution of the simulated memory needs: mostly those that keep later accesses of a task
behind (the simulated memory delays only the words of a copy).
"""

from types import ModuleType
from typing import Any

from nanokv.check.protocol.model.explore import SCHEDULERS, Explorer, named
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.report import Row
from nanokv.device.protocol import (
    activity,
    claim,
    cooperative,
    directory,
    evict,
    extent,
    freelist,
    get,
    header,
    host_alloc,
    joinable,
    joining,
    label,
    lease,
    pins,
    put,
    put_copied,
    quotas,
    reclaim,
    remove,
    replicate,
    retire,
    ring,
    runs,
    search,
    splitting,
    ticket,
)
from nanokv.device.sim.mutants import WeakOrdering, weak_orderings

PROTOCOL: tuple[ModuleType, ...] = (
    freelist,
    splitting,
    extent,
    header,
    directory,
    claim,
    ring,
    activity,
    pins,
    retire,
    joining,
    joinable,
    lease,
    label,
    quotas,
    search,
    evict,
    put,
    get,
    remove,
    replicate,
    put_copied,
    reclaim,
    host_alloc,
    ticket,
    cooperative,
    runs,
)
BEHIND = "later accesses stay behind it: the simulated memory does not reorder them"
RMW = "LLVM makes a load of an addition of 0 that does not release; page marks hide the error that follows"
ACK = "a sweeper that sees FLAG_ACK by a load need not see what the STATE word carried before"
HOST = "a call of the owner's host; no operation depends on it"

KEPT: dict[str, str] = {
    "enter#1:acquire>relaxed": BEHIND,
    "begin_join#1:acquire>relaxed": "a producer that looked before the mark was set looked before the lists were taken",
    "begin_split#0:acquire>relaxed": "a producer that looked before a split was counted looked before the extent was taken",
    "in_flight#0:acq_rel>acquire": "earlier looks of the host stay before",
    "add_pin#1:acq_rel>release": BEHIND,
    "recount#2:release>relaxed": "the lines were counted before",
    "release#0:acq_rel>release": BEHIND,
    "release#0:acq_rel>acquire": RMW,
    "acknowledge#0:release>relaxed": RMW,
    "acknowledge#2:release>relaxed": ACK,
    "release#1:acquire>relaxed": ACK,
    "is_writing#0:acquire>relaxed": "a checksum is written, or the commit that follows fails",
    "walk#0:acquire>relaxed": HOST,
    "remove_whole#1:acquire>relaxed": "the removal of an object acquires the entries of all that have validated it",
    "state_of#0:acq_rel>acquire": HOST,
    "state_of#0:acq_rel>release": HOST,
}

#: for each other ordering an execution that notices it; `python -m nanokv.check.protocol.model.orderings` finds them anew
FOUND_BY: dict[str, str] = {
    "pop_nodes#0:acquire>relaxed": "list-aba/weak: 0.2 5.1 13.1 18.2 23.1 31.1",
    "pop_nodes#3:acquire>relaxed": "list/weak: 1.1 3.1 12.1 15.1",
    "push_marked#2:release>relaxed": "list/weak: 7.1 8.1 13.1",
    "detach#1:acquire>relaxed": "list-detach/weak: 6.1 7.2 13.2 14.2 15.1 19.2 23.1 25.1 28.1 33.1",
    "end_split#0:release>relaxed": "split-full/weak: 0.1 22.1 27.1 31.1",
    "ended_splits#0:acquire>relaxed": "split-full/weak: 0.1 22.1 27.1 31.1",
    "is_split_since#0:release>relaxed": "split-full/weak: 3.1 17.1 22.1",
    "commit_state#0:release>relaxed": "replace/weak: 0.1 91.1",
    "kill#0:acquire>relaxed": "host-evicts/weak: 0.1 11.1 120.1 150.1",
    "still_ready#0:release>relaxed": "reuse/weak: 0.1 8.1 9.1 10.1 18.1 46.1 53.1 120.1 123.1 127.1 136.1",
    "judge#0:acquire>relaxed": "put-get/weak: 14.1 20.1 31.1 46.1 47.1 51.1 52.1 65.1 105.1",
    "claim_at#0:acq_rel>acquire": "same-key-busy/weak: 3.1 16.1 24.2 28.2 59.1 64.1 65.1 79.1",
    "claim_at#0:acq_rel>release": "same-key-busy/weak: 3.1 16.1 24.2 28.2 59.1 64.1 65.1 79.1",
    "announce#1:release>relaxed": "ring/weak: 25.6 26.4 27.1 28.1 29.3 32.1",
    "announce_run#2:release>relaxed": "ring-run/weak: 25.1",
    "drain#2:acquire>relaxed": "ring/weak: 25.6 26.4 27.1 28.1 29.3 32.1",
    "leave#0:release>relaxed": "polled/weak: 0.1 93.1 103.1 108.1 143.1 146.1 147.1 223.1 269.1 271.2 273.1",
    "in_flight#0:acq_rel>release": "polled/weak: 0.1 93.1 103.1 108.1 110.1 127.1 143.1 146.1 147.1 186.1 223.1 269.1 271.2 273.1",
    "add_pin#1:acq_rel>acquire": "recount/weak: 0.1 10.1 12.4 24.2",
    "recount#1:acquire>relaxed": "recount/weak: 0.1 10.1 12.4 24.2",
    "end_join#0:release>relaxed": "join-full/weak: 0.1 7.1 13.1 33.1",
    "joiner#0:acq_rel>acquire": "shards-full/weak: 0.1 7.1 17.1",
    "joiner#0:acq_rel>release": "join-full/weak: 0.1 7.1 13.1 33.1",
    "outlook#0:acquire>relaxed": "neighbours/weak: 26.1 51.1",
    "must_stay#0:acquire>relaxed": "leased/weak: 23.1 28.1 43.1 52.1 57.1 67.1 86.1 88.1 110.1 112.1 118.1 120.1",
    "remove_whole#0:acquire>relaxed": "copy-remove/weak: 91.1",
    "enter_copy#0:acq_rel>acquire": "copy-copy/weak: 49.1 141.2 142.1 143.1",
    "enter_copy#0:acq_rel>release": "copy-copy/weak: 49.1 141.2 142.1 143.1",
    "snapshot#0:acquire>relaxed": "swept/weak: 0.2 2.2 56.1 58.1 112.1 128.1 129.1 141.1 142.1 175.1 181.1",
    "share#6:release>relaxed": "put-parts/weak: 71.1",
    "await_answer#0:acquire>relaxed": "put-parts/weak: 71.1",
    "await_answer#1:acquire>relaxed": "put-parts/weak: 13.1 14.1 37.1 42.1 75.1",
    "is_last#0:acq_rel>acquire": "put-parts/weak: 30.1 70.1",
    "is_last#0:acq_rel>release": "put-parts/weak: 30.1 70.1",
}


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


def kill_orderings(schedules: int, seed: int) -> Row:
    """Every weaker ordering that is not in KEPT must be noticed.

    Args:
        schedules: executions per scheduler, where the known execution does not notice it any more.
        seed: of all that is random.
    """
    row = Row("mutants", "orderings made weaker", unit="mutants")
    names = set()
    with row.timed():
        for weaker in orderings():
            names.add(weaker.name)
            if weaker.name not in KEPT:
                row.tried += 1
                if not is_noticed(weaker, schedules, seed):
                    row.failures.append(f"{weaker.name} survives: {weaker.text}")
        row.failures += [f"{name} is listed, but is no ordering of the protocol" for name in {*KEPT, *FOUND_BY} - names]
    row.note = f"all noticed except {len(KEPT)} that stay for reasons that no execution shows (`KEPT` in orderings.py)"
    return row


def is_noticed(weaker: WeakOrdering, schedules: int, seed: int) -> bool:
    """Whether a weaker ordering fails: in the execution that is known for it, or in another one of that scenario."""
    known = FOUND_BY.get(weaker.name)
    if known is None:
        return False
    explorer, schedule = named(known, weaker.replaced())
    return explorer.execute(schedule) is not None or any(
        explorer.draw(scheduler, schedules, seed).failure is not None for scheduler in SCHEDULERS
    )


def find_all(seconds: float) -> None:
    """Print FOUND_BY anew: after a change of the protocol the old executions may notice nothing any more."""
    for weaker in orderings():
        if weaker.name not in KEPT:
            print(f'    "{weaker.name}": "{find(weaker, seconds)}",', flush=True)


def find(weaker: WeakOrdering, seconds: float) -> str | None:
    """An execution that notices a weaker ordering: the known one, or one of its scenario, or one of any."""
    known = FOUND_BY.get(weaker.name)
    if known is not None:
        explorer, schedule = named(known, weaker.replaced())
        if explorer.execute(schedule) is not None:
            return known
        near = explorer.near(schedule)
        if near is not None:
            return explorer.smallest(near).replay
    first = [known.partition("/")[0]] if known is not None else []
    for name in [*first, *SCENARIOS]:
        explorer = Explorer(SCENARIOS[name], "weak", weaker.replaced())
        for scheduler in SCHEDULERS:
            found = explorer.draw(scheduler, 1 << 30, 3, seconds=seconds if name in first else seconds / 10)
            if found.failure is not None:
                return explorer.smallest(found.failure).replay
    return None


if __name__ == "__main__":
    find_all(30.0)

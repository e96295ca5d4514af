"""For each PTX mutant an execution that notices it, or the reason why none does.

`python -m nanokv.check.protocol.compiled.known` finds the executions anew: those of an old protocol may notice nothing.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial

from nanokv.check.protocol.compiled.follow import follow
from nanokv.check.protocol.compiled.mutants import PtxMutant, mutants
from nanokv.check.protocol.compiled.tasks import CompiledTasks
from nanokv.check.protocol.model import orderings
from nanokv.check.protocol.model.explore import SCHEDULERS, Explorer, Failure, named
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.report import Row

MEMORY, TARGET = "weak", "sm_90"

SCHEDULES = 1000  #: per scheduler, where the known execution notices nothing

STAYS = "in PTX it stays a read-modify-write, which reads the newest word; only the compiler would make a load of it"
TOGETHER = "one lane stores what this call publishes, and all lanes together load what it makes visible"
ANOTHER = "another barrier stands between the copy and this call"

#: calls whose barriers no execution needs: only payload is copied by several lanes, and each call ends like a barrier
WITHOUT_BARRIER: dict[str, str] = dict.fromkeys(
    (
        "pop_nodes#0",
        "pop_nodes#3",
        "push_marked#2",
        "detach#1",
        "begin_split#0",
        "end_split#0",
        "ended_splits#0",
        "is_split_since#0",
        "kill#0",
        "acknowledge#0",
        "acknowledge#2",
        "judge#0",
        "claim_at#0",
        "announce#1",
        "announce_run#2",
        "drain#2",
        "enter#1",
        "leave#0",
        "in_flight#0",
        "add_pin#1",
        "recount#1",
        "recount#2",
        "begin_join#1",
        "end_join#0",
        "joiner#0",
        "outlook#0",
        "must_stay#0",
        "is_writing#0",
        "snapshot#0",
        "release#0",
        "release#1",
        "walk#0",
        "state_of#0",
        "share#6",
        "await_answer#0",
        "await_answer#1",
        "is_last#0",
        "remove_whole#1",
    ),
    TOGETHER,
) | {"still_ready#0": ANOTHER}

KEPT: dict[str, str] = (
    orderings.KEPT
    | {"is_split_since#0:release>relaxed": STAYS, "joiner#0:acq_rel>acquire": STAYS}
    | {f"{call}:barrier": why for call, why in WITHOUT_BARRIER.items()}
)

FOUND_BY: dict[str, str] = {
    "pop_nodes#0:acquire>relaxed": "list-aba/weak/sm_90: 0.2 5.1 13.1 18.2 23.1 31.1",
    "pop_nodes#3:acquire>relaxed": "list/weak/sm_90: 1.1 3.1 12.1 15.1",
    "push_marked#2:release>relaxed": "list/weak/sm_90: 7.1 8.1 13.1",
    "detach#1:acquire>relaxed": "list-detach/weak/sm_90: 6.1 7.2 13.2 14.2 15.1 19.2 23.1 25.1 28.1 33.1",
    "end_split#0:release>relaxed": "split-full/weak/sm_90: 0.1 22.1 27.1 31.1",
    "ended_splits#0:acquire>relaxed": "split-full/weak/sm_90: 0.1 22.1 27.1 31.1",
    "commit_state#0:release>relaxed": "replace/weak/sm_90: 0.1 91.1",
    "kill#0:acquire>relaxed": "host-evicts/weak/sm_90: 0.1 8.1 117.1 143.2",
    "still_ready#0:release>relaxed": "reuse/weak/sm_90: 7.1 8.1 18.1 27.1 29.1 44.1 46.1 49.1",
    "judge#0:acquire>relaxed": "put-get/weak/sm_90: 14.1 20.1 31.1 46.1 47.1 51.1 52.1 65.1 105.1",
    "claim_at#0:acq_rel>acquire": "same-key-busy/weak/sm_90: 10.2 12.2 24.1 53.1 56.1 59.1 73.1",
    "claim_at#0:acq_rel>release": "same-key-busy/weak/sm_90: 10.2 12.2 24.1 53.1 56.1 59.1 73.1",
    "announce#1:release>relaxed": "ring/weak/sm_90: 25.6 26.4 27.1 28.1 29.3 32.1",
    "announce_run#2:release>relaxed": "ring-run/weak/sm_90: 25.1",
    "drain#2:acquire>relaxed": "ring/weak/sm_90: 25.6 26.4 27.1 28.1 29.3 32.1",
    "leave#0:release>relaxed": "polled/weak/sm_90: 7.2 114.1 188.1",
    "in_flight#0:acq_rel>release": "polled/weak/sm_90: 7.2 114.1 188.1",
    "add_pin#1:acq_rel>acquire": "recount/weak/sm_90: 0.1 10.1 12.4 24.2",
    "recount#1:acquire>relaxed": "recount/weak/sm_90: 0.1 10.1 12.4 24.2",
    "end_join#0:release>relaxed": "join-full/weak/sm_90: 0.1 28.1 29.1",
    "joiner#0:acq_rel>release": "join-full/weak/sm_90: 0.1 27.1 29.1 30.1",
    "outlook#0:acquire>relaxed": "neighbours/weak/sm_90: 26.1 51.1",
    "must_stay#0:acquire>relaxed": "leased/weak/sm_90: 17.1 71.1 142.1 144.1",
    "remove_whole#0:acquire>relaxed": "copy-remove/weak/sm_90: 92.1",
    "enter_copy#0:acq_rel>acquire": "copy-copy/weak/sm_90: 49.1 142.2 143.2 145.1",
    "enter_copy#0:acq_rel>release": "copy-copy/weak/sm_90: 49.1 142.2 143.2 145.1",
    "snapshot#0:acquire>relaxed": "swept/weak/sm_90: 0.2 10.2 70.1 120.1 135.1 136.1 148.1 180.1 181.1 187.1",
    "share#6:release>relaxed": "put-parts/weak/sm_90: 71.1",
    "await_answer#0:acquire>relaxed": "put-parts/weak/sm_90: 71.1",
    "await_answer#1:acquire>relaxed": "put-parts/weak/sm_90: 0.1 3.1 6.2 17.1 77.1",
    "is_last#0:acq_rel>acquire": "put-parts/weak/sm_90: 21.1 23.1 30.1 70.1",
    "is_last#0:acq_rel>release": "put-parts/weak/sm_90: 21.1 23.1 30.1 70.1",
    "commit_state#0:barrier": "replace/weak/sm_90: 6.1 94.1",
    "remove_whole#0:barrier": "copy-remove/weak/sm_90: 92.1",
    "enter_copy#0:barrier": "copy-copy/weak/sm_90: 49.1 143.1",
    "add:unguarded": "bump/weak/sm_90: plain",
    "cas:unguarded": "recount/weak/sm_90: 14.1 29.1 85.1 186.1 188.1 293.1",
    "exch:unguarded": "ring-count/weak/sm_90: 5.1 26.1",
    "barriers:none": "replace/weak/sm_90: 6.1 94.1",
    "copies:unmasked": "release/weak/sm_90: plain",
}


def find(mutant: PtxMutant, seconds: float, target: str = TARGET) -> Failure | None:
    """An execution that notices a mutant: the known one, or one of its scenario, or one of any.

    Args:
        seconds: for each scheduler in the scenario that should notice it; in the others a tenth of that.
    """
    known = FOUND_BY.get(mutant.name)
    if known is not None:
        explorer, schedule = named(known, in_tasks=CompiledTasks(target, mutant.rewrite))
        near = explorer.near(schedule)
        if near is not None:
            return near
    followed = _followed(mutant, target)
    if followed is not None:
        return followed
    likely = [*_likely(mutant)]
    for name in dict.fromkeys([*likely, *SCENARIOS]):
        tasks = CompiledTasks(target, mutant.rewrite)
        explorer = Explorer(SCENARIOS[name], MEMORY, in_tasks=tasks)
        for scheduler in SCHEDULERS:
            found = explorer.draw(scheduler, 2, 1)
            if found.failure is None and tasks.changed:
                found = explorer.draw(scheduler, 1 << 30, 3, seconds=seconds if name in likely else seconds / 10)
            if found.failure is not None:
                return explorer.smallest(found.failure)
    return None


def kill_mutants(pool: Executor, seed: int, target: str = TARGET) -> Row:
    """Every mutant that is not in KEPT must be noticed.

    Args:
        pool: of processes.
        seed: of the executions that are tried where the known one notices nothing: compilers differ.
    """
    row = Row("compiled", f"PTX broken on purpose, {target}", unit="mutants")
    names = sorted(mutants().keys() - KEPT.keys())
    with row.timed():
        for name, noticed in zip(names, pool.map(partial(is_noticed, seed=seed, target=target), names), strict=True):
            row.tried += 1
            if not noticed:
                row.failures.append(f"{name} survives: {mutants()[name].about}")
        row.failures += [f"{name} is listed, but is no mutant" for name in {*KEPT, *FOUND_BY} - mutants().keys()]
    row.note = f"all noticed except {len(KEPT)} that no execution shows, for reasons in compiled/known.py"
    return row


def is_noticed(name: str, seed: int, target: str = TARGET) -> bool:
    """Whether a mutant fails: in the execution that is known for it, or in another one of that scenario."""
    if name not in FOUND_BY:
        return False
    explorer, schedule = named(FOUND_BY[name], in_tasks=CompiledTasks(target, mutants()[name].rewrite))
    return explorer.execute(schedule) is not None or any(
        explorer.draw(scheduler, SCHEDULES, seed).failure is not None for scheduler in SCHEDULERS
    )


def _followed(mutant: PtxMutant, target: str) -> Failure | None:
    """An execution that notices an ordering of the same call in the source, taken by compiled code."""
    for weaker in orderings.orderings():
        known = orderings.FOUND_BY.get(weaker.name)
        if known is not None and _call(weaker.name) == _call(mutant.name):
            source, schedule = named(known, weaker.replaced())
            compiled = Explorer(source.scenario, MEMORY, in_tasks=CompiledTasks(target, mutant.rewrite))
            found = follow(source, schedule, compiled)
            if found is not None:
                why = compiled.execute(found)
                return compiled.smallest(Failure(source.scenario.name, compiled.memory, found, why or ""))
    return None


def _call(name: str) -> str:
    """The call that a mutant of this name is about."""
    return name.partition(":")[0]


def _likely(mutant: PtxMutant) -> Iterator[str]:
    """The scenarios that notice the ordering in the source, or this mutant so far."""
    for name, replay in (FOUND_BY | orderings.FOUND_BY).items():
        if _call(name) == _call(mutant.name):
            yield replay.partition("/")[0]


def find_all(seconds: float, names: list[str]) -> None:
    """Print FOUND_BY anew."""
    for name, mutant in mutants().items():
        if name in names or not (names or name in KEPT or name in orderings.KEPT):
            found = find(mutant, seconds)
            print(f'    "{name}": "{found.replay if found else None}",', flush=True)


if __name__ == "__main__":
    find_all(10.0, sys.argv[1:])

"""What the calls of a round prove. docs/cluster.md promises, and this judges:

- a get returns the whole bytes of one put of its key, never those of a put that was refused
- the calls for a key whose home was a member all the while are linearizable, whoever makes them: a put is a create, and
  an object that was put is found by all until it is removed. A put or a removal that raised PeerLost may have taken
  effect at any later moment, or never. A get or `exists` that raised PeerLost tells nothing
- the same for a key whose home was no member for a while, up to the fault. After it such a key may have objects on two
  nodes, and a node that died has taken its objects along
- an object whose put returned is found by all afterwards, if nobody removed it and its node did not die; where its home
  was away, that may take a while, until events have told where it lies
- nothing that a node had stored before it was killed is read after its death
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nanokv.check.machine.histories.key_model import ABSENT, DUPLICATE, FULL, KILLED, OK, WorldKind, with_excuses
from nanokv.check.machine.histories.linearizability import NEVER, Operation, check, until
from nanokv.check.machine.histories.timeline import explain
from nanokv.check.nodes.calls import LOST, NO_HOME, NOTHING, WRONG, Call
from nanokv.check.nodes.keys import is_own

MOST = 400_000  #: configurations per key
WORLD = WorldKind(may_be_full=True)
_REFUSED = (DUPLICATE, FULL, NOTHING)  #: puts that have stored nothing


@dataclass(frozen=True)
class Facts:
    """What happened in a round, apart from calls. Times are ns.

    Attributes:
        homes: the number of each key's home, with all nodes.
        away: the numbers of nodes that were no members for a while, as any node saw it.
        begun, ended: when the fault began, and when it was undone.
        killed: the number of the node that was killed, if one was.
        dead: when its process had ended.
    """

    homes: dict[int, int]
    away: set[int]
    begun: int
    ended: int
    killed: int = NO_HOME
    dead: int = NEVER


@dataclass
class Judgement:
    """What was found.

    Attributes:
        calls: how many were looked at; unsure: of these, the puts and removals whose effect is not known.
        undecided: keys for which too many orders had to be tried.
    """

    failures: list[str] = field(default_factory=list)
    calls: int = 0
    unsure: int = 0
    undecided: int = 0
    explored: int = 0


def judge(calls: Sequence[Call], facts: Facts) -> Judgement:
    """Judge all calls of a round."""
    found = Judgement(calls=len(calls))
    by_key: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
        found.unsure += call.answer in (LOST, KILLED) and call.call in ("put", "remove")
    strayed = {facts.homes[call.key] for call in calls if call.home not in (NO_HOME, facts.homes[call.key])}
    away = facts.away | strayed
    for key, some in by_key.items():
        found.failures += [f"key {key}: {why}" for why in _wrong_values(some, facts)]
        found.failures += [f"key {key}: {why}" for why in _not_found(some, facts)]
        history = operations(some)
        _check_order(key, until(history, facts.begun) if facts.homes[key] in away else history, found)
    return found


def operations(calls: Sequence[Call]) -> list[Operation]:
    """The calls for a key that tell something, as the search for an order takes them."""
    found = []
    for call in calls:
        changes = call.call in ("put", "remove")
        if call.answer == WRONG or (call.answer in (LOST, KILLED) and not changes):
            continue
        is_unsure = call.answer in (LOST, KILLED)
        answer = KILLED if is_unsure else FULL if call.answer == NOTHING else call.answer
        returned = NEVER if is_unsure else call.returned
        found.append(Operation(call.called, returned, call.call, call.value, answer, call.caller))
    return found


def _check_order(key: int, history: Sequence[Operation], found: Judgement) -> None:
    marked, step = with_excuses(history, WORLD), WORLD.step()
    verdict = check(marked, step, ABSENT, MOST)
    found.explored += verdict.explored
    found.undecided += verdict.holds is None
    if verdict.holds is False:
        found.failures.append(f"key {key}: not linearizable; {explain(marked, step, ABSENT, MOST)}")


def _wrong_values(calls: Sequence[Call], facts: Facts) -> Iterator[str]:
    puts = {call.value: call for call in calls if call.call == "put"}
    for call in calls:
        if call.answer == WRONG:
            yield f"wrong bytes, or an error that no document names, for {call.caller}"
        if call.call != "get" or call.answer != OK:
            continue
        put = puts.get(call.value)
        if put is None or put.called > call.returned:
            yield f"{call.caller} read version {call.value:#x}, which nobody had put"
        elif put.answer in _REFUSED:
            yield f"{call.caller} read version {call.value:#x}, whose put was answered {put.answer}"
        elif _was_lost(put, facts) and call.called > facts.dead:
            yield f"{call.caller} read version {call.value:#x} from a node that was dead"


def _was_lost(put: Call, facts: Facts) -> bool:
    """Whether what this put has stored died with the node that was killed."""
    return facts.homes[put.key] == facts.killed and put.answer == OK and put.returned < facts.begun


def _not_found(calls: Sequence[Call], facts: Facts) -> Iterator[str]:
    """Objects that must be there after the round, and were not found by all."""
    if any(call.call == "remove" for call in calls):
        return
    puts = [call for call in calls if call.call == "put" and call.answer == OK]
    for put in puts:
        may_be_dead = put.home == facts.killed and put.called < facts.ended
        if put.home == NO_HOME or may_be_dead or len(puts) > 1:
            continue
        last = {call.caller: call for call in calls if call.audit}
        for call in last.values():
            if call.answer not in (OK, LOST, WRONG):
                yield (
                    f"{call.caller} did not find what {put.caller} had put to node {put.home} "
                    f"{(put.called - facts.begun) / 1e9:+.2f} s after the fault began: {call.answer}; "
                    f"its home is node {facts.homes[put.key]}"
                )


def to_be_found(calls: Sequence[Call]) -> list[int]:
    """The keys of single threads whose objects may be there after the round."""
    put = {call.key for call in calls if call.call == "put" and is_own(call.key) and call.answer not in _REFUSED}
    removed = {call.key for call in calls if call.call == "remove" and call.answer == OK}
    return sorted(put - removed)


def stored_for_good(calls: Sequence[Call], killed: int, ended: int) -> list[int]:
    """The keys of `to_be_found` whose objects must be there: nobody has tried to remove them, and their node lives.

    Args:
        killed, ended: as of `Facts`.
    """
    put = {
        call.key
        for call in calls
        if call.call == "put"
        and is_own(call.key)
        and call.answer == OK
        and call.home != NO_HOME
        and not (call.home == killed and call.called < ended)
    }
    return sorted(put - {call.key for call in calls if call.call == "remove"})

"""Calls of all nodes of a cluster at random times (Poisson), and how long they take."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.bench.simulate.cluster.calls import ALL_ROUNDS, Calls
from nanokv.bench.simulate.cluster.homes import homes_of, random_keys
from nanokv.bench.simulate.cluster.networks import network
from nanokv.bench.simulate.queues import Gate, Operation, Queues
from nanokv.cluster.at_once import THREADS

WARM_UP = 0.2  #: of the calls, which are simulated and do not count
IDLE = 1e-3  #: calls a second of each node, in a cluster with next to nothing to do
STEPS = 16  #: of a pass, at most
Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call.

    Attributes:
        keys: of a call. chain: all of them lie on one node, by a preferred segment; else each at its home.
        rounds: four; or two, with a location.
        threads: that ask for a call at the same time, each its part of the nodes (`nanokv.cluster.at_once`).
    """

    label: str
    do: Literal["get", "put"] = "get"
    net: str = "TCP"
    nodes: int = 64
    keys: int = 1
    nbytes: int = 1024
    rounds: int = ALL_ROUNDS
    chain: bool = False
    threads: int = THREADS


class LookupResult(NamedTuple):
    """What one run found.

    Attributes:
        p50, p99: us from the beginning of a call to its end.
        asked: nodes other than its own that a call asked, on average.
        busiest: the kind of station that had most to do; most: its us a call.
    """

    p50: float
    p99: float
    asked: float
    busiest: str
    most: float


def places(case: Case, count: int, seed: int) -> tuple[Words, Words]:
    """Who calls, and the node of each key: [count], [count, keys]."""
    rng = np.random.default_rng(seed)
    here = rng.integers(case.nodes, size=count)
    if case.chain:
        return here, np.repeat(rng.integers(case.nodes, size=(count, 1)), case.keys, axis=1)
    return here, homes_of(case.nodes, random_keys(count * case.keys, seed + 1)).reshape(count, case.keys)


def run(case: Case, given: ClusterAssumptions, load: float, count: int, seed: int) -> LookupResult:
    """Simulate `count` calls, `load` a second of each node.

    Raises:
        ValueError: `load` or `count` is not positive.
    """
    if not (load > 0 and count > 0):
        raise ValueError(f"a run needs a positive load and count, not {load} and {count}")
    calls = Calls(given, network(given, case.net), case.nodes, seed + 2)
    here, nodes = places(case, count, seed)
    arrivals = np.cumsum(np.random.default_rng(seed + 3).exponential(1e6 / load / case.nodes, count))
    begun: list[float] = []
    parts: list[tuple[int, list[tuple[int, int]]]] = []
    whose: list[int] = []
    asked = 0
    for i in range(count):
        found, sizes = np.unique(nodes[i], return_counts=True)
        asked += int((found != here[i]).sum())
        pairs = list(zip(found.tolist(), sizes.tolist(), strict=True))
        for part in (pairs[thread :: case.threads] for thread in range(case.threads)):
            if part:
                parts.append((int(here[i]), part))
                begun.append(float(arrivals[i]))
                whose.append(i)
    queues = Queues()
    most = STEPS * len(parts) * (1 + min(case.keys, case.nodes))
    ends = queues.run(begun, lambda k: _steps(case, calls, *parts[k]), Gate([], None), most=most)
    last = np.zeros(count)
    np.maximum.at(last, whose, ends)
    took = (last - arrivals)[int(WARM_UP * count) :]
    p50, p99 = (float(each) for each in np.quantile(took, (0.5, 0.99), method="higher"))
    return LookupResult(p50, p99, asked / count, *_busiest(queues, count))


def _steps(case: Case, calls: Calls, here: int, part: list[tuple[int, int]]) -> Operation:
    for node, keys in part:
        if case.do == "put":
            yield from calls.put(here, node, keys, case.nbytes)
        elif case.keys == 1:
            yield from calls.get(here, node, case.nbytes, case.rounds)
        else:
            yield from calls.pass_of(here, node, keys, case.nbytes, case.rounds)


def _busiest(queues: Queues, count: int) -> tuple[str, float]:
    kinds: dict[str, float] = {}
    for (kind, _, _), us in queues.busy.items():
        kinds[kind] = kinds.get(kind, 0.0) + us / count
    kind = max(kinds, key=lambda each: kinds[each])
    return kind, kinds[kind]


class CaseAnswer(NamedTuple):
    """Latencies of one case: idle, and where the busiest part of all nodes works a share `use` of its time.

    Attributes:
        capacity: calls a second of each node at which that part works all the time.
    """

    idle: LookupResult
    capacity: float
    loaded: LookupResult


def answer(case: Case, given: ClusterAssumptions, count: int, seed: int) -> CaseAnswer:
    """Run a case twice."""
    idle = run(case, given, IDLE, count, seed)
    capacity = 1e6 / max(idle.most, 1e-9)
    return CaseAnswer(idle, capacity, run(case, given, given.use * capacity, count, seed))

"""The questions, and the rows that answer them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from nanokv.bench.simulate.cluster import homes, hot, traffic
from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.bench.simulate.cluster.calls import LAST_ROUNDS
from nanokv.bench.simulate.cluster.lookups import Case, answer
from nanokv.bench.simulate.cluster.networks import NETWORKS

BATCH = 256  #: keys of a get_many
FEW = 8  #: of a batch there are so many times fewer calls simulated than of single ones
CALLS = 3  #: of each node, at least
PUTS = (1.0, 10.0, 100.0, 1000.0)  #: a second of each node
JOINS = (1, 4, 8)
HOT_LOAD = 0.9  #: of the load that fills the owner's port
Cell = str | float | int
Row = dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to simulate: calls of a run, and keys whose homes are looked up; and where chance begins."""

    operations: int = 4_000
    seed: int = 1


class Question(NamedTuple):
    """What is asked; and the rows for a number of nodes. The first two columns say what a row is about."""

    name: str
    asks: str
    rows: Callable[[ClusterAssumptions, int, Effort], Iterator[Row]]


# --- look-ups ---
def _cases(net: str, nodes: int) -> Iterator[Case]:
    get = Case("get", net=net, nodes=nodes)
    yield get
    yield replace(get, label="get, location", rounds=LAST_ROUNDS)
    many = replace(get, label=f"get {BATCH}", keys=BATCH)
    yield many
    yield replace(many, label=f"get {BATCH}, locations", rounds=LAST_ROUNDS)
    yield replace(many, label="the same, in turn *", rounds=LAST_ROUNDS, threads=1)
    yield replace(many, label="a chain, one node", chain=True)
    yield replace(get, label="put", do="put")
    yield replace(many, label=f"put {BATCH}", do="put")
    yield replace(many, label="a chain, put", do="put", chain=True)


def _lookups(given: ClusterAssumptions, nodes: int, effort: Effort) -> Iterator[Row]:
    for net in NETWORKS:
        for case in _cases(net, nodes):
            least = effort.operations if case.keys == 1 else effort.operations // FEW
            found = answer(case, given, max(least, CALLS * nodes), effort.seed)
            yield {
                "net": net,
                "call": case.label,
                "asks": found.idle.asked,
                "p50 µs": found.idle.p50,
                "p99 µs": found.idle.p99,
                "loaded p50": found.loaded.p50,
                "loaded p99": found.loaded.p99,
                "most /s node": found.capacity,
                "busiest": found.idle.busiest,
            }


# --- changes of members ---
def _changes(given: ClusterAssumptions, nodes: int, effort: Effort) -> Iterator[Row]:
    keys = homes.random_keys(10 * effort.operations, effort.seed)
    found = [(f"{joins} join{'s' * (joins > 1)}", homes.joined(nodes, joins, keys)) for joins in JOINS]
    for label, change in [*found, ("one leaves", homes.left(nodes, keys))]:
        yield {
            "nodes": nodes,
            "change": label,
            "home moves %": 100 * change.moved,
            "nodes asked": change.asked,
            "of 99.9 %": change.most,
            "not found %": 100 * change.not_found,
            "for a miss": change.miss,
        }


def _events(given: ClusterAssumptions, nodes: int, effort: Effort) -> Iterator[Row]:
    for puts in PUTS:
        found = traffic.feed(given, nodes, puts)
        yield {
            "nodes": nodes,
            "puts /s node": puts,
            "messages /s": found.messages,
            "B/s out": found.nbytes,
            "B/s, cluster": found.nbytes * nodes * given.members,
            "cores": found.cores,
            "puts for 1 core": traffic.most_puts(given, nodes),
            "locations %": 100 * found.known,
        }


def _watch(given: ClusterAssumptions, nodes: int, effort: Effort) -> Iterator[Row]:
    found = traffic.watch(given, nodes)
    yield {
        "nodes": nodes,
        "": "one joins",
        "renewals /s": found.renewals,
        "registry sends B": found.change_bytes,
        "ms of each member": found.change_us / 1e3,
        "it reads headers, B": found.scan_bytes,
        "all join, s of each": found.start_s,
    }


# --- a hot key ---
def _hot(given: ClusterAssumptions, nodes: int, effort: Effort) -> Iterator[Row]:
    for net in NETWORKS:
        load = HOT_LOAD * hot.capacity(given, net, nodes, 1)
        for label, copies in (("no copy", 1), ("half have one", nodes // 2), ("all have one", nodes)):
            found = hot.reads(given, net, nodes, copies, load, effort.operations, effort.seed)
            yield {
                "net": net,
                "copies": label,
                "most gets/s": found.capacity,
                "of a node": found.capacity / nodes,
                "idle µs": found.idle,
                "p50 µs": found.p50,
                "p99 µs": found.p99,
                "waiting µs": found.waiting,
            }


def _bring(given: ClusterAssumptions, nodes: int, effort: Effort) -> Iterator[Row]:
    for net in NETWORKS:
        for label, window, told in (
            ("at once", 0.0, True),
            ("no locations", given.window_ms, False),
            ("locations", given.window_ms, True),
        ):
            found = hot.brought(given, net, nodes, window, told, effort.seed)
            yield {
                "net": net,
                "bring": label if not window else f"{label}, {window:g} ms",
                "p50 ms": found.p50,
                "p99 ms": found.p99,
                "all have it, ms": found.last,
                "most from one": found.most,
            }


QUESTIONS = (
    Question("look-ups", "Calls of 1 KiB a key, spread over all nodes: how do they grow with N?", _lookups),
    Question("changes", "Keys put before nodes join or leave: which move, and who is asked?", _changes),
    Question("events", "What do events cost each node, in and out?", _events),
    Question("watch", "What does a join cost the registry, the members, and the node that joins?", _watch),
    Question("hot-key", "All nodes get one key of 2 MiB, at 90 % of what its owner's port can send.", _hot),
    Question("bring", "All nodes bring one key of 2 MiB into their own segments.", _bring),
)

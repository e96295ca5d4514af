"""One key that all nodes read: its owner's port is full, and what copies by `bring` change."""

import heapq
from typing import NamedTuple

import numpy as np

from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.bench.simulate.cluster.calls import ALL_ROUNDS, LAST_ROUNDS, Calls
from nanokv.bench.simulate.cluster.networks import Network, network
from nanokv.bench.simulate.queues import Gate, Operation, Queues

OWNER = 0
WARM_UP = 0.2


class Reads(NamedTuple):
    """Gets of the key by all nodes.

    Attributes:
        idle: us of a get that waits for nobody, of a node without a copy if there is one.
        capacity: gets a second of all nodes, at most.
        p50, p99: us at the load asked for; waiting: how much of a get is waiting, on average.
    """

    idle: float
    capacity: float
    p50: float
    p99: float
    waiting: float


def capacity(given: ClusterAssumptions, net: str, nodes: int, copies: int) -> float:
    """Gets a second of all nodes that the owner's port and their own memory can serve.

    copies: nodes that have one, its owner included.
    """
    link, far = network(given, net), 1 - copies / nodes
    service = max(given.hot_bytes * link.per_byte, LAST_ROUNDS * link.answer) * far
    return 1e6 / max(service, _own_us(given) / nodes, 1e-9)


def _own_us(given: ClusterAssumptions) -> float:
    return given.local_us + given.hot_bytes * 1e-3 / given.local_gbps


def reads(given: ClusterAssumptions, net: str, nodes: int, copies: int, load: float, count: int, seed: int) -> Reads:
    """Simulate gets, `load` a second of all nodes."""
    calls, rng = Calls(given, network(given, net), nodes, seed), np.random.default_rng(seed + 1)
    here = rng.integers(nodes, size=count)
    arrivals = np.cumsum(rng.exponential(1e6 / load, count))

    def begin(i: int) -> Operation:
        reader = int(here[i])
        return calls.get(reader, reader if reader < copies else OWNER, given.hot_bytes, LAST_ROUNDS)

    took = np.array(Queues().run(arrivals.tolist(), begin, Gate([], None))) - arrivals
    link = network(given, net)
    alone = link.own + LAST_ROUNDS * link.round + given.hot_bytes * link.per_byte
    least, first = np.where(here < copies, _own_us(given), alone), int(WARM_UP * count)
    p50, p99 = (float(each) for each in np.quantile(took[first:], (0.5, 0.99), method="higher"))
    waiting = float(np.maximum(took - least, 0)[first:].mean())
    idle = alone if copies < nodes else _own_us(given)
    return Reads(idle, capacity(given, net, nodes, copies), p50, p99, waiting)


class Brought(NamedTuple):
    """All nodes bring the key.

    Attributes:
        p50, p99: ms of a `bring`; last: ms from the first one's beginning until all have it.
        most: nodes that read from one and the same node.
    """

    p50: float
    p99: float
    last: float
    most: int


def brought(given: ClusterAssumptions, net: str, nodes: int, window_ms: float, told: bool, seed: int) -> Brought:
    """All other nodes bring the key, within a window of time.

    told: of each copy, by an event; a node reads from the one of whose copy it heard last. Else all ask the owner.
    """
    link = network(given, net)
    begins = np.sort(np.random.default_rng(seed).random(nodes - 1)) * window_ms * 1e3
    takes = given.hot_bytes * link.per_byte
    free, served = np.zeros(nodes), np.zeros(nodes, np.int64)
    heard: list[tuple[float, int]] = []
    last, ends = OWNER, []
    for node, begin in enumerate(begins.tolist(), 1):
        while told and heard and heard[0][0] <= begin:
            last = heapq.heappop(heard)[1]
        start = max(begin + _before(link, told), free[last])
        free[last], end = start + takes, start + takes + link.round
        served[last] += 1
        ends.append(end)
        heapq.heappush(heard, (end + given.pause_ms * 1e3 + given.event_us, node))
    took = (np.array(ends) - begins) / 1e3
    p50, p99 = (float(each) for each in np.quantile(took, (0.5, 0.99), method="higher"))
    return Brought(p50, p99, (max(ends) - float(begins[0])) / 1e3, int(served.max()))


def _before(link: Network, told: bool) -> float:
    """The rounds before the bytes leave."""
    return ((LAST_ROUNDS if told else ALL_ROUNDS) - 1) * link.round

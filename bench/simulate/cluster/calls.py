"""The steps of calls between nodes, in their order, and who waits for what. Stations:

    process  the interpreter of a node: it does one thing at a time
    answers  who answers rounds: a thread of the owner's link, or its NIC
    out, in  the ports of a node, which payloads pass

A call for many keys asks sixteen nodes at a time (`nanokv/cluster/at_once.py`): a pass of rounds for each.
"""

import numpy as np

from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.bench.simulate.cluster.networks import Network
from nanokv.bench.simulate.queues import Operation

ROWS = (2, 1, 3, 2)  #: of each round, for one key: buckets; header; bytes, descriptor, header; header and control block
LAST_ROUNDS = 2  #: those that a location leaves
ALL_ROUNDS = len(ROWS)


class Calls:
    """Makes the steps of calls; chance decides how long ways take."""

    def __init__(self, given: ClusterAssumptions, net: Network, nodes: int, seed: int) -> None:
        self._given, self._net, self._nodes = given, net, nodes
        self._rng = np.random.default_rng(seed)

    def _way(self) -> float:
        way, spread = self._net.way, min(self._given.spread, 1.0)
        return way * (1 - spread) + (float(self._rng.exponential(way * spread)) if way * spread else 0.0)

    def _round(self, node: int, rows: int) -> Operation:
        half = self._way() / 2
        yield half, ("answers", node, 0), self._net.answer + rows * self._net.row, half

    def _payload(self, source: int, to: int, nbytes: int) -> Operation:
        """Through both ports, which overlap."""
        takes = nbytes * self._net.per_byte
        yield 0, ("out", source, 0), takes, -takes
        yield 0, ("in", to, 0), takes, 0

    def work(self, here: int, us: float) -> Operation:
        """Work of the own process."""
        yield 0, ("process", here, 0), us, 0

    def hashing_us(self, keys: int) -> float:
        """What the homes of keys cost."""
        return keys * self._nodes * self._given.hash_ns / 1e3

    def read(self, here: int, node: int, keys: int, nbytes: int, rounds: int) -> Operation:
        """The rounds of a pass: all of them, or the last two."""
        for i in range(ALL_ROUNDS - rounds, ALL_ROUNDS):
            yield from self._round(node, (keys - 1) * ROWS[i])
            if i == LAST_ROUNDS:
                yield from self._payload(node, here, keys * nbytes)

    def get(self, here: int, node: int, nbytes: int, rounds: int) -> Operation:
        """A get of one object."""
        if node == here:
            yield from self.local(here, 1, nbytes)
            return
        yield from self.work(here, self._net.own + (self.hashing_us(1) if rounds == ALL_ROUNDS else 0.0))
        yield from self.read(here, node, 1, nbytes, rounds)

    def local(self, here: int, keys: int, nbytes: int) -> Operation:
        """Objects of the own node."""
        yield 0, ("memory", here, 0), keys * (self._given.local_us + nbytes * 1e-3 / self._given.local_gbps), 0

    def pass_of(self, here: int, node: int, keys: int, nbytes: int, rounds: int) -> Operation:
        """The part of a get_many that one node has."""
        if node == here:
            yield from self.local(here, keys, nbytes)
            return
        hashing = self.hashing_us(keys) if rounds == ALL_ROUNDS else 0.0
        yield from self.work(here, self._given.pass_us + keys * self._given.key_us + hashing)
        yield from self.read(here, node, keys, nbytes, rounds)

    def put(self, here: int, node: int, keys: int, nbytes: int) -> Operation:
        """The part of a put, or put_many, that one node gets: a message, the pull of bytes and ticket, an answer."""
        if node == here:
            yield from self.local(here, keys, nbytes)
            return
        given = self._given
        more = (keys - 1) * given.key_us
        messages = given.put_us - given.put_own_us - given.put_serve_us - 2 * given.sm_round_us
        half = max(messages, 0.0) / 2
        yield from self.work(here, given.put_own_us + more + self.hashing_us(keys))
        yield half, ("process", node, 0), given.put_serve_us + more, 0
        yield from self._round(here, keys - 1)
        yield from self._payload(here, node, keys * nbytes)
        yield from self._round(here, 0)
        yield half, None, 0, 0

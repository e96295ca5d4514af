"""Where keys have their homes before and after nodes come and go, by the code that a cluster runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.cluster.homes import Homes
from nanokv.cluster.nodes import LAST_JOINS

Words = npt.NDArray[np.int64]


def names(nodes: int) -> list[str]:
    """The names of nodes, in the order in which they joined."""
    return [f"node-{i}" for i in range(nodes)]


def random_keys(count: int, seed: int) -> Words:
    """Digests: int64 [count, 2]."""
    return np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, size=(count, 2), endpoint=True)


def _numbers(joined: Sequence[str], keys: Words) -> Words:
    """The home of each key, as the number of its name."""
    homes = Homes(joined)
    number = np.array([int(name.split("-")[1]) for name in homes.nodes], np.int64)
    return number[homes.of_each(keys)]


def homes_of(nodes: int, keys: Words) -> Words:
    """The home of each key among so many nodes."""
    return _numbers(names(nodes), keys)


class HomeChange(NamedTuple):
    """What a change of members does to keys that were put before it.

    Attributes:
        moved: the share whose home is another node now.
        asked: nodes that a reader asks until it has the object, on average, without locations.
        most: the same for 1 key in 1,000.
        not_found: the share that no node has whom a reader without a location asks.
        miss: nodes that it asks for a key that nobody has.
    """

    moved: float
    asked: float
    most: int
    not_found: float
    miss: float


def joined(nodes: int, joins: int, keys: Words) -> HomeChange:
    """Nodes join, one after the other, after all keys were put."""
    before, after = homes_of(nodes, keys), names(nodes + joins)
    lists = [_numbers(after[: len(after) - out], keys) for out in range(min(LAST_JOINS + 1, len(after)))]
    asked, found = np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
    misses = np.zeros(len(keys), np.int64)
    for i, homes in enumerate(lists):
        new = np.ones(len(keys), bool)
        for earlier in lists[:i]:
            new &= homes != earlier
        misses += new
        asked += new & ~found
        found |= homes == before
    there = asked[found]
    return HomeChange(
        float((lists[0] != before).mean()),
        float(there.mean()),
        int(np.quantile(there, 0.999, method="higher")),
        float((~found).mean()),
        float(misses.mean()),
    )


def left(nodes: int, keys: Words) -> HomeChange:
    """The node that joined first leaves. Its objects are gone; those of others are where they were."""
    before = homes_of(nodes, keys)
    after = _numbers(names(nodes)[1:], keys)
    gone, moved = before == 0, after != before
    return HomeChange(float(moved.mean()), 1.0, 1, float((gone | moved).mean()), 1.0)

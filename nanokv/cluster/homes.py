"""The homes of keys among the nodes of a cluster, now and before its last changes (`nanokv.device.fabric.homes`)."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from nanokv.device.machines.native_code import fabric_code
from nanokv.types import KeyDigest

Words = npt.NDArray[np.int64]


class Homes:
    """The home of each key among the nodes that there are at one time.

    Args:
        nodes: their names; at least one.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.nodes: Sequence[str] = tuple(sorted(nodes))
        seeds = [xxhash.xxh3_64_intdigest(node.encode()) for node in self.nodes]
        self._seeds = np.array(seeds, np.uint64).view(np.int64)
        #: the address of the seeds, one for each node, and how many there are
        self.seeds = int(self._seeds.ctypes.data), len(self.nodes)
        code = fabric_code()
        self._one, self._each = code["home_node"], code["home_nodes"]

    def of(self, key: KeyDigest) -> str:
        """The home of a key."""
        return self.nodes[self._one(*self.seeds, key[0])]

    def of_each(self, keys: Words) -> Words:
        """The place in `nodes` of the home of each key. keys: int64 [n, 2], contiguous."""
        found = np.empty(len(keys), np.int64)
        self._each(*self.seeds, keys.ctypes.data, len(keys), found.ctypes.data)
        return found

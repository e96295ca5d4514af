"""Where objects of other nodes lie, as this process has heard (`device.fabric.locations`): hints, of bounded size.

A hint is of one world of a node. A node that comes back with a new world may give the same key the same slot and epoch,
and what was heard of the old world would then name a use of the slot that is still to come.
"""

import threading

import numpy as np

from nanokv.cluster.card import WorldId
from nanokv.cluster.pull_message import Records
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.workspace import Workspace
from nanokv.device.fabric.locations import WAYS
from nanokv.device.fabric.records import PULLED_AT
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import Words
from nanokv.device.segment.location import LOCATION, STORED_NODE
from nanokv.types import KeyDigest

_UNKNOWN = 0


class Locations:
    """The table of one process. Reads from any thread; it is written by one at a time.

    Args:
        most: how many objects, rounded up to a power of two; 72 bytes each. 0: nobody will tell it of any.

    Attributes:
        at: the address of the table, and how many buckets it has, less one.
        names: of the nodes of worlds, by their numbers in the table; "": of none.
    """

    def __init__(self, most: int) -> None:
        self._is_kept = most > 0
        buckets = 1 << max(-(-most // WAYS.value) - 1, 0).bit_length()
        self.table = np.zeros(buckets * WAYS.value, LOCATION.dtype)  #: hints: whoever reads a location looks there
        self.at = self._address, self._mask = int(self.table.ctypes.data), buckets - 1
        self._lock = threading.Lock()
        self._numbers: dict[WorldId, int] = {}
        self.names: list[str] = [""]
        self._code = fabric_code()
        self._node_of, self._size_of, self._learn_put = (
            self._code[name] for name in ("node_of", "size_of", "learn_put")
        )

    def _number(self, world: WorldId) -> int:
        if world not in self._numbers:
            self.names.append(world.node)
            self._numbers[world] = len(self.names) - 1
        return self._numbers[world]

    def learn(self, world: WorldId, events: "np.ndarray[tuple[int], np.dtype[np.void]]") -> None:
        """Take LOCATIONs of a world, as its events tell them."""
        with self._lock:
            number, count = self._number(world), len(events)
            self._code["learn_each"](self._address, self._mask, events.ctypes.data, count, number)

    def learn_put(self, world: WorldId, pulls: Records, found: Records) -> None:
        """Learn where objects of this process' own puts lie: PULLs, and what the owner has answered (PULLED)."""
        if self._is_kept:
            with self._lock:
                number, count = self._number(world), len(pulls)
                self._code["learn_put"](self._address, self._mask, pulls.ctypes.data, found.ctypes.data, count, number)

    def learn_one(self, world: WorldId, pull: int) -> None:
        """Learn where an object of this process' own puts lies: the address of a PULL, as the owner has answered it."""
        if self._is_kept:
            with self._lock:
                self._learn_put(self._address, self._mask, pull, pull + PULLED_AT, 1, self._number(world))

    def learn_keys(self, world: WorldId, keys: Words, nbytes: int) -> None:
        """Learn in which world objects of one size are that this process has put: int64 [n, 2].

        Where there is not learnt, so a reader over a link finds nothing at the place that is told, and looks anew.
        """
        if self._is_kept and len(keys):
            rows = np.zeros(len(keys), LOCATION.dtype)
            rows["key_hash"], rows["key_check"] = keys[:, 0], keys[:, 1]
            rows["node"], rows["nbytes"] = STORED_NODE.value, nbytes
            self.learn(world, rows)

    def learn_headers(self, world: WorldId, rank: int, first: int, headers: Words) -> None:
        """Learn the objects of copied headers, of the slots from `first` on. headers: int64 [n, 8]."""
        with self._lock:
            number = self._number(world)
            self._code["learn_headers"](
                self._address, self._mask, headers.ctypes.data, first, len(headers), number, rank
            )

    def forget(self, world: WorldId) -> None:
        """Forget all that lies in a world."""
        with self._lock:
            if world in self._numbers:
                self._code["forget_node"](self._address, self._mask, self._numbers[world])

    def node_of(self, key: KeyDigest) -> str | None:
        """The node that has the object of a key, as far as is known."""
        return self.names[self._node_of(self._address, self._mask, key[0], key[1])] or None

    def size_of(self, key: KeyDigest) -> int:
        """How many bytes the object of a key has, as far as is known; 0: nothing is."""
        found: int = self._size_of(self._address, self._mask, key[0], key[1])
        return found

    def sizes_of(self, keys: Words) -> Words:
        """`size_of` of each key, int64 [n, 2]."""
        keys, found = np.ascontiguousarray(keys), np.empty(len(keys), np.int64)
        self._code["sizes_of"](self._address, self._mask, keys.ctypes.data, len(keys), found.ctypes.data)
        return found

    def nodes_of(self, keys: Words) -> tuple[Words, list[str]]:
        """The place of each key's node (int64 [n, 2]) in a list of names; 0: none is known."""
        found = np.empty(len(keys), np.int64)
        self._code["nodes_of"](self._address, self._mask, keys.ctypes.data, len(keys), found.ctypes.data)
        return found, self.names

    def number_of(self, world: WorldId) -> int:
        """The number of a world in the table; one that no entry has: nothing is known of it."""
        return self._numbers.get(world, _UNKNOWN)

    def recall(self, world: RemoteWorld, workspace: Workspace, count: int) -> int:
        """Fill in the FETCHes of a workspace for a world: how many are OK; the others are MISS."""
        number = self.number_of(world.id)
        return int(self._code["recall"](world.table, self._address, self._mask, workspace.work, count, number))

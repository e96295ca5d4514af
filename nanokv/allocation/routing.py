"""Which segment a new object goes to, in v2 and in v1 alike."""

from collections.abc import Callable
from itertools import islice

import numpy as np

from nanokv.device.machines.records import Words
from nanokv.device.segment.layout import POSITIVE
from nanokv.errors import PeerLost
from nanokv.keys.digests import Digests
from nanokv.types import KeyDigest

_POSITIVE: int = POSITIVE.value


class Routing:
    """Chooses the owner of a new object.

    Args:
        rank: this rank. It lives. None: who asks is a guest, and no rank.
        has_gone: rank -> True if it has closed its segment, or ended (`Heap.peer_closed`).
    """

    def __init__(self, world_size: int, rank: int | None, has_gone: Callable[[int], bool]) -> None:
        self._world_size = world_size
        self._rank = rank
        self._here: int | None = rank
        self.has_gone = has_gone

    def leave_out_this_rank(self, out: bool) -> None:
        """Let new objects go around this rank too, as long as another one lives; or take that back."""
        self._here = None if out else self._rank

    def others(self, owner: int, count: int) -> list[int]:
        """At most `count` ranks that live, from the one after `owner` on, around: they get an object's copies."""
        order = ((owner + i) % self._world_size for i in range(1, self._world_size))
        living = (rank for rank in order if rank == self._rank or not self.has_gone(rank))
        return list(islice(living, count))

    def owner_of(self, key: KeyDigest, preferred: int | None) -> int:
        """The preferred rank; without one the key's home rank, or in its place the next rank that lives.

        The key chooses where the search begins, so that the ranks that live share the objects of one that has gone.
        Ranks that see the same ranks alive choose the same owner; readers need not, because they ask the directory.
        """
        if preferred is not None:
            return preferred
        home = (key.key_check & _POSITIVE) % self._world_size  # as `Geometry.home_rank`, whose call costs more
        if home == self._here or not self.has_gone(home):
            return home
        return self._instead(key)

    def owners_of(self, keys: Digests) -> Words:
        """`owner_of` each key without a preferred rank: int64 [n]."""
        owners: Words = (keys.words[:, 1] & _POSITIVE) % self._world_size
        for rank in np.unique(owners).tolist():
            if rank != self._here and self.has_gone(rank):
                for i in np.flatnonzero(owners == rank).tolist():
                    owners[i] = self._instead(keys[i])
        return owners

    def _instead(self, key: KeyDigest) -> int:
        """The rank that gets an object whose home has gone. Raises PeerLost to a guest: no rank is there any more."""
        start = (key.key_check & _POSITIVE) // self._world_size
        order = ((start + i) % self._world_size for i in range(self._world_size))
        found = next((rank for rank in order if rank == self._here or not self.has_gone(rank)), self._rank)
        if found is None:
            raise PeerLost("all ranks of the world have closed, or ended")
        return found

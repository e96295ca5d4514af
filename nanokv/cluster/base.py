"""What all calls of a cluster share: who this member is, which node a key belongs to, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import torch

from nanokv.arguments import integer
from nanokv.cache import NanoKVCache
from nanokv.cluster.nodes import Node
from nanokv.cluster.options import ClusterOptions
from nanokv.cluster.parts import Parts, assemble
from nanokv.cluster.patience import Patience
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import NO_TERMS, Terms
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError, PeerLost
from nanokv.status_errors import error_for
from nanokv.terms import Hold, terms_of
from nanokv.types import Key, KeyDigest

Segment = (
    tuple[str, int | None] | int
)  #: a node and one of its ranks; None: the node chooses. An int: a rank of this node


class ClusterBase:
    """One member's parts. `NanoKVCluster` and the files beside this one add the calls."""

    def _setup(self, world: NanoKVCache, cluster: str, options: ClusterOptions) -> None:
        self.world = world
        self.options = options
        self._open, self._process = True, os.getpid()
        self._parts: Parts = assemble(world, cluster, options)
        self._counts = self._parts.counts
        self._nodes, self._reading, self._putting = self._parts.nodes, self._parts.reading, self._parts.putting
        self._hash = world.engine.hasher
        self._here = options.node
        self._detach = world.engine.before_close(self.close)

    # --- who this is ---
    @property
    def node(self) -> str:
        """The name of this node."""
        return self._here

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes that are known to live, this one too, ascending."""
        self._check_open()
        return list(self._nodes.names)

    @property
    def registry_away(self) -> float:
        """Seconds since the registry was last heard of; 0.0 while it answers. Meanwhile the nodes stay as they were."""
        self._check_open()
        return self._parts.membership.away_for()

    @property
    def device(self) -> torch.device:
        """The device of the tensors that `get` returns."""
        return self.world.device

    def digest(self, key: Key) -> KeyDigest:
        """The digest of a key: see `NanoKVCache.digest`."""
        return self.world.digest(key)

    def home(self, key: Key) -> str:
        """The node that gets the object of a key, if no other is preferred."""
        self._check_open()
        return self._nodes.homes[0].of(self._hash(key))

    def register(self, tensor: torch.Tensor) -> None:
        """Let other nodes read the memory of a tensor, so that its rows are put to them without a copy in between.

        For the cache of an engine. The tensor is kept until this cluster is closed.

        Raises:
            InvalidArgument: it is not contiguous, or has no memory of its own.
        """
        self._check_open()
        plain = plain_tensor(tensor)
        if not plain.is_contiguous():
            raise InvalidArgument("register needs a contiguous tensor")
        self._parts.registered.add(plain)

    # --- closing ---
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the world was closed."""
        return not self._open

    def close(self) -> None:
        """Leave the cluster. The world stays open, with its objects. Idempotent.

        Calls of other threads that are under way raise CacheClosed or PeerLost.
        """
        if self._open:
            self._open = False
            if os.getpid() == self._process:  # else nothing here is this process'
                self._detach()
                self._parts.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._open:
            return f"<NanoKVCluster, node {self._here}, closed>"
        return f"<NanoKVCluster, node {self._here}, of {len(self._nodes.names)} nodes, {self.world!r}>"

    # --- what calls share ---
    def _check_open(self) -> None:
        if not self._open:
            raise CacheClosed(f"node {self._here} has left the cluster")
        if self.world.closed:
            self.world.engine.check_open()  # this is a child of a fork, and the threads and sockets are its parent's

    def _check_stays(self) -> None:
        """For what waits: raise CacheClosed also when the program ends."""
        self._check_open()
        self.world.engine.check_waits()

    def _patience(self) -> Patience:
        """That of one call."""
        return Patience(self.options.timeout)

    def _known(self, key: KeyDigest) -> Node | None:
        """The other node that has the object of a key, as far as events and own puts tell."""
        name = self._parts.locations.node_of(key)
        return None if name is None else self._nodes.find(name)

    def _others(self, key: KeyDigest) -> Iterator[Node]:
        """The other nodes that may have the object of a key: its home, those before the last joins, and the one where
        it is known to be. (That one is asked first, for what it has where the object was: `_known`.)

        An object may also lie where nobody here has heard of it. So whoever removes asks all nodes.
        """
        asked = {self._here}
        for homes in self._nodes.homes:
            name = homes.of(key)
            if name not in asked:
                asked.add(name)
                node = self._nodes.find(name)
                if node is not None:
                    yield node
        known = self._known(key)
        if known is not None and known.name not in asked:
            yield known

    def _target(self, key: KeyDigest, preferred: Segment | None) -> tuple[Node | None, int | None]:
        """The node that gets a new object, None for this one, and its rank there."""
        if preferred is None:
            return self._nodes.find(self._nodes.homes[0].of(key)), None
        if not isinstance(preferred, tuple):
            return None, integer("preferred_segment", preferred, 0, self.world.world_size - 1)
        if len(preferred) != 2 or not isinstance(preferred[0], str):
            raise InvalidArgument(f"preferred_segment must be (node, rank) or a rank of this node, not {preferred!r}")
        name, rank = preferred
        if name == self._here:
            return None, rank
        node = self._nodes[name]
        return node, None if rank is None else integer("the rank of preferred_segment", rank, 0, node.ranks - 1)

    def _lost(self, error: PeerLost) -> None:
        """A node that may have an object which was not found elsewhere cannot be reached: see the option `lost`."""
        self._counts.peer_lost += 1
        if self.options.lost == "raise":
            raise error

    def _terms(self, hold: float | Hold | None) -> Terms:
        return NO_TERMS if hold is None else terms_of(hold, self.world.engine.hasher.group)

    def _error(self, status: int, key: Key, node: Node | None, nbytes: int = 0) -> NanoKVError:
        geometry: Any = self.world.engine.geometry if node is None else node.geometry
        owner = f"node {self._here if node is None else node.name}"
        return error_for(status, key, geometry, nbytes=nbytes, owner=owner)

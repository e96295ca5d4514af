"""NanoKVCluster: the public API across hosts, one object per process of a node. Its calls are in the files beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from nanokv.cache import NanoKVCache
from nanokv.cluster.bringing import Bringing
from nanokv.cluster.changes import Listener
from nanokv.cluster.options import make_cluster_options
from nanokv.errors import InvalidArgument, PeerLost


class NanoKVCluster(Bringing):
    """A world, and those of other hosts, as one cache.

    Each object lies in one segment of one node: by default of the key's home, which all members compute from the same
    list of nodes. A node reads the objects of others by one-sided transfers, without their processes; what it puts to
    them they pull.

    Args:
        world: this node's world: an open cache with `alloc="device"`. It stays usable by itself. Closing it, or this,
            leaves the cluster.
        cluster: the registry of the cluster: "etcd://host:port/name", or "file:///folder", a folder that all nodes see.
        options: fields of `nanokv.cluster.options.ClusterOptions`.

    Raises:
        InvalidArgument: an argument is wrong.
        ClusterUnavailable: the registry does not answer, or another living process is this member.
        LinkUnavailable: the link does not work on this machine.

    It may be used from any thread. A key's object may be on two nodes: if it was put with different preferred segments,
    or before and after nodes came or went. Objects are immutable, so that is the same object for whoever names them by
    their contents.
    """

    def __init__(self, world: NanoKVCache, cluster: str, **options: Any) -> None:
        if not isinstance(world, NanoKVCache):
            raise InvalidArgument(f"world must be a NanoKVCache, not {type(world).__name__}")
        world.engine.check_open()
        if world.alloc != "device":
            raise InvalidArgument("a cluster needs a world with alloc='device': v1's objects are found by its master")
        self._has_compared = False
        self._setup(world, cluster, make_cluster_options(world.engine.heap.name, options))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of objects that come to this rank's segment, or to any of other nodes, or go; and of nodes.

        It gets a sequence of `Change`s, on threads of the cluster, one call at a time; a slow one delays what comes
        after. Of what is there already nothing is told, except if events of a node were missed (MISSED): then all that
        it has. The function returned ends that.

        Raises:
            InvalidArgument: `listener` is no function; or this member follows no events (`locations=0`).
        """
        self._check_open()
        if not callable(listener):
            raise InvalidArgument(f"listener must be a function of a sequence of changes, not {listener!r}")
        if not self.options.locations:
            raise InvalidArgument("a member with locations=0 follows no events, so it has none to tell")
        return self._parts.changes.add(listener)

    def about(self) -> dict[str, str]:
        """What the members of the other nodes say of themselves (`ClusterOptions.about`): of each its first."""
        self._check_open()
        nodes = [node for name in self._nodes.names if (node := self._nodes.find(name)) is not None]
        return {node.name: cards[0].about for node in nodes if (cards := node.cards)}

    def generation(self) -> int:
        """The generation of this world's identity (`NanoKVCache.generation`). The first call compares it with those of
        the other nodes, and all take the highest; a node that does not answer is told again later."""
        self._check_open()
        if not self._has_compared:
            self._has_compared = True
            self._parts.generations.tell()
        return self.world.generation()

    def advance_generation(self) -> int:
        """Begin a new generation on all nodes, and return it: see `NanoKVCache.advance_generation`.

        Raises:
            PeerLost: nodes did not answer, and are told again until they do: this node, and those that answered, have
                the new generation, and find nothing that was stored under an older one, wherever it lies.
        """
        self._check_open()
        number = self.world.advance_generation()
        unheard = self._parts.generations.tell()
        if unheard:
            raise PeerLost(f"generation {number} has begun, but not on {', '.join(unheard)}: no answer")
        return number

    def stats(self) -> dict[str, Any]:
        """Counters of this rank (`NanoKVCache.stats`), and of what it did with other nodes."""
        self._check_open()
        mine = cast("dict[str, Any]", self.world.stats())
        more = {"node": self.node, "nodes": self.nodes, "registry_away": self.registry_away}
        return mine | more | self._parts.figures.as_dict()

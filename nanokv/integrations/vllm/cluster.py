"""A worker as a member of a cluster: it joins with its rank of the engine's world, and loads blocks of all nodes.

Stores go to this node, as without a cluster: other nodes learn of them by events, and read them without this process.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from nanokv.background import Handle, Worker
from nanokv.cache.cache import NanoKVCache
from nanokv.errors import NanoKVError, PeerLost
from nanokv.integrations.joining import cluster_class
from nanokv.integrations.vllm.settings import Settings
from nanokv.keys.kv_layout import KVLayout
from nanokv.types import Key

if TYPE_CHECKING:
    from nanokv.cluster import NanoKVCluster
    from nanokv.cluster.paged import ClusterPagedKV

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows what is under its own name

HELD_UP = 0.05  #: seconds: a node that has ended is lost sooner, one that does not answer later
RESTS = 10


def join(world: NanoKVCache, settings: Settings, engine: str, replica: int, about: str = "") -> "NanoKVCluster":
    """Join the cluster that the settings name. The world is closed if that fails.

    Args:
        engine, replica: as for `Settings.node_name`.
        about: as of `ClusterOptions`.

    Raises:
        LinkUnavailable: ZeroMQ or the link is not installed, or does not work here.
        ClusterUnavailable: the registry does not answer, or another living process is this member.
    """
    try:
        options = settings.cluster_options(settings.node_name(engine, replica)) | {"about": about}
        return cluster_class()(world, settings.cluster, **options)
    except BaseException:
        world.close()
        raise


def reachable_prefix(cluster: "NanoKVCluster", hashes: Sequence[bytes]) -> tuple[int, PeerLost | None]:
    """How many of the first blocks this member can read, and a node that was lost meanwhile, if one was.

    A block that may lie on a node which cannot be reached is missing. A node that was lost is not asked again for half
    a second, so only the first question can take its time.
    """
    try:
        return cluster.prefix_length(hashes), None
    except PeerLost as error:
        here, unknown, lost = 0, len(hashes), error  # so many are there; so many cannot be told
    while unknown - here > 1:
        middle = (here + unknown) // 2
        try:
            found = cluster.prefix_length(hashes[:middle])
        except PeerLost:
            unknown = middle
            continue
        if found < middle:
            return found, lost
        here = middle
    return here, lost


class ClusterLookups:
    """Look-ups on all nodes, for which the scheduler waits.

    After a node has held one up before it was lost, this node alone is asked for RESTS times as long: so nodes that do
    not answer take at most a small part of the engine's time, also while the registry cannot tell that they have gone.
    """

    def __init__(self, cluster: "NanoKVCluster") -> None:
        self._cluster, self._rests_until = cluster, 0.0

    def __call__(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks can be read."""
        started = time.monotonic()
        if started < self._rests_until:
            return self._cluster.world.prefix_length(hashes)
        found, lost = reachable_prefix(self._cluster, hashes)
        self._judge(started, lost)
        return found

    def each(self, hashes: Sequence[bytes]) -> list[bool]:
        """Which blocks can be read; those of nodes that are lost cannot."""
        started, lost = time.monotonic(), None
        if started >= self._rests_until:
            try:
                return self._cluster.exists_many(hashes)
            except PeerLost as error:
                lost = error
        self._judge(started, lost)
        return self._cluster.world.exists_many(hashes)

    def _judge(self, started: float, lost: PeerLost | None) -> None:
        took = time.monotonic() - started
        if lost is not None and took > HELD_UP:
            self._rests_until = time.monotonic() + RESTS * took
            logger.warning("NanoKV: a look-up took %.1f s; the next ones ask this node only: %s", took, lost)


class ClusterLoads:
    """Loads of blocks of any node into the engine's cache, and how many came from others.

    A node that is lost is the error of the blocks that may lie there (PeerLost), like a block that has gone.

    Args:
        groups: by group, `layers` and `kv_dim` as for `NanoKVCache.paged_kv`.
    """

    def __init__(
        self, cluster: "NanoKVCluster", groups: Mapping[int, tuple[Sequence[torch.Tensor], int | None]]
    ) -> None:
        self.world = cluster.world
        self.groups = {
            group: GroupLoads(self, cluster.paged_kv(layers, kv_dim=kv_dim))
            for group, (layers, kv_dim) in groups.items()
        }
        device = next(iter(groups.values()))[0][0].device
        self.worker = Worker(f"nanokv-load-{cluster.world.rank}", device)
        self._lock = threading.Lock()
        self._remote = 0

    def note(self, remote: int) -> None:
        """Count blocks that came from other nodes."""
        with self._lock:
            self._remote += remote

    def take_remote(self) -> int:
        """How many blocks of other nodes were loaded since the last call."""
        with self._lock:
            remote, self._remote = self._remote, 0
            return remote

    def close(self) -> None:
        """Finish what was begun."""
        self.worker.close()


class GroupLoads:
    """The loads of one group."""

    def __init__(self, loads: ClusterLoads, paged: "ClusterPagedKV") -> None:
        self._loads, self._paged = loads, paged

    def get_async(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> Handle[list[NanoKVError | None]]:
        """Get as `PagedKV.get_async` does."""
        return self._loads.worker.submit(lambda: self._get(keys, blocks, layers, held, source))

    def _get(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        layers: range | None,
        held: range | None,
        source: KVLayout | None,
    ) -> list[NanoKVError | None]:
        here = self._loads.world.exists_many(keys) if source is None else [True] * len(blocks)
        errors = self._paged.get(keys, blocks, layers=layers, held=held, source=source)
        remote = sum(error is None and not mine for error, mine in zip(errors, here, strict=False))
        self._loads.note(remote)
        return errors

"""Which stored blocks a worker can read: its own layout's, or slices of those of another tensor-parallel degree.

The segments say which layouts they hold (`NanoKVCache.layouts`). So a prefill engine of two workers and a decode engine
of one exchange KV: the reader takes its heads from the objects of all writers that have them.

In a cluster blocks of this worker's own layout are read from all nodes, those of other layouts from this node only.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nanokv.cache.cache import NanoKVCache
from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.cluster import ClusterLookups
from nanokv.keys.kv_layout import KVLayout
from nanokv.transfer.paged import PagedKV

if TYPE_CHECKING:
    from nanokv.cluster import NanoKVCluster

LOOK_SECONDS = 1.0  #: how often a worker looks for new layouts, at most


class Reading:
    """The sources of one worker.

    Args:
        mine: the layout of this worker's own objects.
        cluster: whose nodes may have blocks too.
    """

    def __init__(
        self, cache: NanoKVCache, paged: PagedKV, mine: KVLayout, cluster: "NanoKVCluster | None" = None
    ) -> None:
        self._cache, self._paged, self._mine = cache, paged, mine
        self._all_nodes = ClusterLookups(cluster) if cluster is not None else None
        self._others: list[KVLayout] = []
        self._looked = -LOOK_SECONDS

    def prefix_length(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks this worker can read its part of."""
        return self._best(hashes)[0]

    def source(self, hashes: Sequence[bytes]) -> KVLayout | None:
        """Where these blocks are to be read from: the `source` of `PagedKV.get`."""
        if self._all_nodes is not None and not self._other_layouts():
            return None  # without another question to other nodes
        return self._best(hashes)[1]

    def _mine_of(self, hashes: Sequence[bytes]) -> int:
        return self._cache.prefix_length(hashes) if self._all_nodes is None else self._all_nodes(hashes)

    def _best(self, hashes: Sequence[bytes]) -> tuple[int, KVLayout | None]:
        best: tuple[int, KVLayout | None] = self._mine_of(hashes), None
        if best[0] < len(hashes):
            for source in self._other_layouts():
                length = self._paged.prefix_length(hashes, source=source)
                if length > best[0]:
                    best = length, source
        return best

    def _other_layouts(self) -> list[KVLayout]:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            writers = {replace(row.layout, tp_rank=0) for row in self._cache.layouts() if row.is_mine}
            self._others = [source for source in writers if self._is_readable(source)]
        return self._others

    def _is_readable(self, source: KVLayout) -> bool:
        if source == replace(self._mine, tp_rank=0) or source.block_size != self._mine.block_size:
            return False  # read without a source; or the engine's hashes of its blocks are others
        try:
            self._paged.prefix_length([], source=source)
        except InvalidArgument:
            return False
        return source.layers == self._mine.layers and source.first_layer == self._mine.first_layer

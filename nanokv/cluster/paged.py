"""An engine's paged cache across nodes: blocks of other nodes are brought to this one, and read as its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nanokv.allocation.terms import Hold
from nanokv.arguments import listed
from nanokv.background import Handle, Worker
from nanokv.errors import KeyNotFound, NanoKVError, PeerLost
from nanokv.keys.kv_layout import KVLayout
from nanokv.types import Key

if TYPE_CHECKING:
    from nanokv.transfer.layerwise import LayerwisePut
    from nanokv.transfer.paged import PagedKV


class ClusterPagedKV:
    """`PagedKV`, whose `get` finds blocks on other nodes too. Made by `NanoKVCluster.paged_kv`.

    Puts go to segments of this node: its own kernels and copies write them, layer by layer if that is wanted. Other
    nodes read them from there, and know of them by events.
    """

    def __init__(self, paged: PagedKV, bring: Callable[[Sequence[Key]], list[bool]], worker: Worker) -> None:
        self._paged, self._bring, self._worker = paged, bring, worker

    def put(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
    ) -> list[NanoKVError | None]:
        """See `PagedKV.put`."""
        return self._paged.put(keys, blocks, layers=layers, preferred_segment=preferred_segment, hold=hold)

    def begin_put(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
    ) -> LayerwisePut:
        """See `PagedKV.begin_put`."""
        return self._paged.begin_put(keys, blocks, layers=layers, preferred_segment=preferred_segment, hold=hold)

    def get(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> list[NanoKVError | None]:
        """See `PagedKV.get`. Objects that this node does not have are brought first (`NanoKVCluster.bring`).

        PeerLost is the error of a key whose object may be on a node that cannot be reached.
        """
        keys, lost = listed("keys", keys), None
        if source is None:
            try:
                self._bring(keys)
            except PeerLost as error:
                lost = error
        errors = self._paged.get(keys, blocks, layers=layers, held=held, source=source)
        return errors if lost is None else [lost if isinstance(each, KeyNotFound) else each for each in errors]

    def get_async(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> Handle[list[NanoKVError | None]]:
        """`get` in the background, in the order of the calls; the blocks are undefined until the handle is done."""
        return self._worker.submit(lambda: self.get(keys, blocks, layers=layers, held=held, source=source))

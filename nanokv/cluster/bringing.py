"""Objects of other nodes are brought into this rank's segment, where kernels, pins and paged caches use them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nanokv.cluster.fetched import Fetched, Got
from nanokv.cluster.many import Many
from nanokv.cluster.nodes import Node
from nanokv.cluster.objects import copy_to
from nanokv.cluster.paged import ClusterPagedKV
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import LOW32
from nanokv.types import Key, KeyDigest

_OK, _MISS = int(Status.OK), int(Status.MISS)


class Bringing(Many):
    """Calls that bring objects here."""

    def bring(self, keys: Sequence[Key]) -> list[bool]:
        """Copy objects of other nodes into this rank's segment, so that kernels, pins and `paged_kv` can use them.

        Per key, whether this node has its object now. An object that finds no room is left where it is.

        Raises:
            PeerLost: a node that may have one of them cannot be reached, and no other one has it.
        """
        self._check_open()
        digests = self._digests(keys)
        here = self._find_here(digests) == _OK
        missing = np.flatnonzero(~here)
        if len(missing):
            statuses = np.full(len(digests), _MISS, np.int64)
            self._counts.remote_gets += len(missing)
            patience = self._patience()

            def read(node: Node, which: Words, known: bool) -> Words:
                def take(some: Words, fetched: Fetched) -> None:
                    for i, got in zip(which[some].tolist(), fetched.each(), strict=True):
                        here[i] = self._keep(digests[i], got)

                return self._reading.get_each(node, digests.words[which], patience, take, known=known)

            self._ask(digests, missing, statuses, read, patience)
        found: list[bool] = here.tolist()
        return found

    def _keep(self, digest: KeyDigest, got: Got) -> bool:
        """Put what was read into this rank's segment."""

        def fill(payload: torch.Tensor) -> None:
            copy_to(payload, got)

        rank, kind = self.world.rank, got.descriptor[0] & LOW32.value  # its checksum is made anew
        what = (kind, *got.descriptor[1:])
        return self.world.engine.single.put_filled(digest, got.nbytes, rank, what, fill) in (_OK, int(Status.DUPLICATE))

    def paged_kv(self, layers: Sequence[torch.Tensor], *, kv_dim: int | None) -> ClusterPagedKV:
        """Access to an engine's paged KV cache: see `NanoKVCache.paged_kv`; its `get` finds blocks on all nodes.

        Raises:
            InvalidArgument: as `NanoKVCache.paged_kv`.
        """
        self._check_open()
        return ClusterPagedKV(self.world.paged_kv(layers, kv_dim=kv_dim), self.bring, self.world.engine.worker)

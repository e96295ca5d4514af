"""Puts of objects whose key names their content: an object that is there already is as good as a new one."""

from collections.abc import Sequence
from contextlib import suppress

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.errors import DuplicateKey, KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.integrations.joining import JoinedStore


class ChunkWriter:
    """Stores tensors.

    Args:
        segment: the rank in whose segment they are stored; None: that of a key's home.
    """

    def __init__(self, joined: JoinedStore, segment: int | None) -> None:
        self._world, self._store, self._segment = joined.world, joined.cache, segment
        self._in_place = isinstance(joined.cache, NanoKVCache)

    def put(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[NanoKVError | None]:
        """Per key None, an error, or DuplicateKey: it has such an object already, or somebody is writing it.

        An object of another shape or dtype is of no use to anybody, and is replaced, unless it is being read.
        """
        if not names:
            return []
        outcomes = self._store.put_many(names, tensors, preferred_segment=self._segment)
        return [
            self._settled(name, tensor, outcome) if isinstance(outcome, DuplicateKey) else outcome
            for name, tensor, outcome in zip(names, tensors, outcomes, strict=True)
        ]

    def _settled(self, name: str, tensor: torch.Tensor, duplicate: DuplicateKey) -> NanoKVError | None:
        try:
            with self._world.pin(name) as there:
                if there.dtype == tensor.dtype and there.shape == tensor.shape:
                    return duplicate
            self._world.remove(name)
        except NotReady:
            return duplicate
        except KeyNotFound:
            if not self._in_place and self._store.exists(name):  # on another host, which is not asked what it has
                return duplicate
        except SegmentCorrupt:
            with suppress(NanoKVError):
                self._world.remove(name)
        except NanoKVError as error:
            return error
        return self._store.put_many([name], [tensor], preferred_segment=self._segment)[0]

"""LMCache's LocalCPUBackend: the cache in the memory of the engine's own process."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from nanokv.bench.peers.base import Guarantees, System, SystemFailed

_GIB = 1 << 30
_SLACK = 64 << 20  #: bytes that its allocator has beyond twice the ring: it aligns objects


class LMCache(System):
    """Allocate, copy and submit; get, copy and let go. As its engine does it, but without a GPU."""

    name = "LMCache"
    module = "lmcache"
    packages = ("lmcache", "torch")
    guarantees = Guarantees(
        keys="yes, hashed in the call",
        allocation="yes",
        process="one process alone, under its lock",
        copies="1 and 1",
        checksum="none",
        promise="this process can get the object",
    )

    def start(self) -> None:
        os.environ.update(LMCACHE_LOG_LEVEL="ERROR", LMCACHE_TRACK_USAGE="false")
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

        room = (2 * self.ring.nbytes + self.ring.slots * 4096 + _SLACK) / _GIB
        config = LMCacheEngineConfig.from_defaults(chunk_size=16, local_cpu=True, max_local_cpu_size=room)
        about = LMCacheMetadata(
            model_name="model",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(4, 2, 16, 2, 64),
        )
        self._backend = LocalCPUBackend(config, about)
        self._key, self._format = CacheEngineKey, MemoryFormat.KV_2LTD
        self._shape = torch.Size([self.ring.size])

    def key(self, i: int) -> Any:
        return self._key("model", 1, 0, i, torch.uint8)

    def put(self, key: Any, tensor: torch.Tensor) -> None:
        place = self._backend.allocate(self._shape, torch.uint8, self._format, eviction=False)
        if place is None:
            raise SystemFailed("LMCache has no room")
        place.tensor.copy_(tensor)
        self._backend.submit_put_task(key, place)
        place.ref_count_down()

    def get_into(self, key: Any, tensor: torch.Tensor) -> None:
        place = self._backend.get_blocking(key)
        if place is None:
            raise SystemFailed("LMCache does not have the object")
        tensor.copy_(place.tensor)
        place.ref_count_down()

    def exists(self, key: Any) -> bool:
        return bool(self._backend.contains(key))

    def remove(self, key: Any) -> None:
        if not self._backend.remove(key):
            raise SystemFailed("LMCache did not have the object that was removed")

    def exists_many(self, keys: Sequence[Any]) -> Sequence[bool]:
        return [bool(self._backend.contains(key)) for key in keys]

"""NanoKV: v2 in shared memory, the owner of the objects in another process."""

from collections.abc import Sequence

import torch

from nanokv.bench.peers.base import Guarantees, System
from nanokv.bench.suite.ring import Plan
from nanokv.bench.suite.worlds import OWNER, Worlds


class NanoKV(System):
    """The world that `latency` measures with `--heap shm --alloc device`."""

    name = "NanoKV"
    module = "nanokv"
    packages = ("nanokv", "torch", "numba")
    guarantees = Guarantees(
        keys="yes, hashed in the call",
        allocation="by the client, in pages of 256 KiB",
        process="the memory is another process's, which is not asked",
        copies="1 and 1",
        checksum="off, as by default",
        promise="every process of the world can get, pin or wait for the object; torn reads are noticed and repeated",
    )

    def start(self) -> None:
        plan = Plan(self.ring.size, self.ring.nbytes)
        worlds = self.stack.enter_context(Worlds())
        heap_bytes = (self.ring.slots + 1) * plan.stride
        self._cache, _ = self.stack.enter_context(worlds.open("shm", "device", heap_bytes))

    def put(self, key: str, tensor: torch.Tensor) -> None:
        self._cache.put(key, tensor, preferred_segment=OWNER)

    def get_into(self, key: str, tensor: torch.Tensor) -> None:
        self._cache.get(key, dst=tensor)

    def exists(self, key: str) -> bool:
        return self._cache.exists(key)

    def remove(self, key: str) -> None:
        self._cache.remove(key)

    def exists_many(self, keys: Sequence[str]) -> Sequence[bool]:
        return self._cache.exists_many(keys)

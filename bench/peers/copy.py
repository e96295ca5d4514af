"""A floor: the payload copied into shared memory, and out of it, by one process that knows the places."""

from typing import Any

import torch

from nanokv.bench.peers.base import Guarantees, System
from nanokv.bench.peers.mapped import mapped, memory_file, places


class Copy(System):
    """`copy_` and nothing else."""

    name = "copy"
    packages = ("torch",)
    guarantees = Guarantees(
        keys="none, the place is known",
        allocation="none",
        process="one process alone",
        copies="1 and 1",
        checksum="none",
        promise="the bytes are in shared memory, and nobody knows",
    )

    def start(self) -> None:
        file = memory_file(self.ring.nbytes, self.stack)
        whole = mapped(file, self.ring.nbytes)
        whole.fill_(0)
        self._places = places(whole, self.ring.size)

    def key(self, i: int) -> int:
        return i % self.ring.slots

    def put(self, key: Any, tensor: torch.Tensor) -> None:
        self._places[key].copy_(tensor)

    def get_into(self, key: Any, tensor: torch.Tensor) -> None:
        tensor.copy_(self._places[key])

"""A prefill rank in a process of its own, whose kernels run compiled, on the PTX machine."""

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import RankCommands
from nanokv.transfer.cache_writer import FilledBlock
from tests.gpu.on_ptx import machine_for
from tests.gpu.reshape_and_cache_bodies import BF16, SMALL, Tokens, full_slots, nhd

LAYERS = 3
CPU = torch.device("cpu")
OPTIONS = {"heap": "shm", "alloc": "device", "page_bytes": 4096, "evict": False, "world_size": 2}


def attached(name: str, rank: int) -> NanoKVCache:
    """A rank of a world of two."""
    return NanoKVCache(16 * 4096, name=name, rank=rank, **OPTIONS)  # type: ignore[arg-type]


class WriterRank(RankCommands):
    """Rank 1, which prefills into the segment of rank 0."""

    def __init__(self, rank: int, name: str) -> None:
        self.rank, self.name = rank, name

    def attach(self) -> None:
        self.cache = attached(self.name, self.rank)
        with machine_for("sm_90", 1):
            self.writer = self.cache.cache_writer([nhd(SMALL, BF16, CPU) for _ in range(LAYERS)], capacity=4)

    def write(self, key: str, layers: int) -> list[str]:
        """The first `layers` of a step that fills a block; after all of them, its results."""
        of = Tokens(full_slots(2), SMALL, CPU)
        with machine_for("sm_90", 1):
            self.writer.start([FilledBlock(key, 2, 4)], preferred_segment=0)
            for layer in range(layers):
                self.writer.write(layer, of.k + layer, of.v, of.slots)
            return [repr(each) for each in self.writer.results()] if layers == LAYERS else []

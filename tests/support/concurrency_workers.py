"""The commands of ranks in the concurrency tests, beside those of every `CacheRank`."""

import numpy as np

from nanokv.check.machine.hammer import compiled_hammers
from nanokv.check.machine.random_calls import RandomCalls
from nanokv.check.machine.ranks import CacheRank
from tests.support.plain_world import PAGE, PAGE_WORDS, address, aligned_words

HAMMER_WORDS = 5 * PAGE_WORDS
HAMMER_ROUNDS = 2000  #: rounds after which a process looks whether to stop


class Worker(CacheRank):
    """One rank that does random work, or compiled work without a pause, or holds a pin and a plan."""

    def attach(self) -> tuple[int, bool]:
        attached, options = super().attach(), self.options
        seed = options.seed + self.who
        self.work = RandomCalls(self.cache, self.who, keys=options.keys, max_pages=5, seed=seed, pins=options.pins)
        return attached

    def run(self, count: int) -> dict[str, int]:
        return self.work.run(count)

    def run_until_told(self) -> dict[str, int]:
        while not self.told():
            self.work.step()
            self.progress.value += 1
        return self.work.counts

    def hammer_until_told(self) -> tuple[int, ...]:
        """Compiled work, without a pause: puts, reads, removals, wrong words."""
        hammer, table = compiled_hammers().hammer, self.cache.world_table
        buffer = aligned_words(HAMMER_WORDS)
        sums = np.zeros(4, np.int64)
        while not self.told():
            seed = self.work.random.randrange(1 << 7)
            sums += hammer(table, seed, HAMMER_ROUNDS, 20, address(buffer), HAMMER_WORDS)
            self.progress.value += HAMMER_ROUNDS
        return tuple(sums.tolist())

    def hold(self, pinned: str, planned: str, owner: int) -> None:
        """Pin an object, and open another one, for as long as this process lives."""
        self.held = self.cache.pin(pinned)
        self.cache.open_for_write(planned, 3 * PAGE, preferred_segment=owner)

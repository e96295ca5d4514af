"""The work of the ranks of the kill rounds, each in its process, until they are told to stop or are killed.

A role is one step that is done again and again:

    producer   compiled puts, reads and removals, without a pause
    large      puts whose copy is a step of its own, between `begin` and `finish`
    plan       plans that are opened, written and committed or aborted, several at a time
    reader     compiled pins, reads in place and gets; an object stays pinned meanwhile
    owner      calls on this rank's own segment only
    room       joins free extents, evicts, and puts objects that would not fit otherwise
    poller     only this rank's poller, which drains and sweeps without a pause
"""

import contextlib
import random
from collections.abc import Callable

import torch

from nanokv.check.machine.hammer import compiled_hammers, slow_hammers
from nanokv.check.machine.payloads import name, payload
from nanokv.check.machine.random_calls import EXPECTED, RandomCalls, write_plan
from nanokv.check.machine.ranks import CacheRank
from nanokv.check.report import CheckFailure
from nanokv.device.segment.layout import WORD
from nanokv.space.make_room import make_room

ROLES = ("producer", "large", "plan", "reader", "owner", "room", "poller")

KEYS = 24
MAX_PAGES = 5  #: of most objects
LARGE_PAGES = 16  #: of objects that are copied apart, and of objects that need room
BURST = 100  #: compiled operations before a worker looks again whether it is to stop
PIN_BURST = 20_000  #: the same for pins, which are shorter
SLOW_BURST = 5  #: for both, where each load lingers
PLANS = 3  #: open at a time


class KillWorker(CacheRank):
    """One rank of the kill rounds."""

    def attach(self) -> tuple[int, bool]:
        attached, options = super().attach(), self.options
        self.random = random.Random(options.seed)
        self.calls = RandomCalls(
            self.cache, self.who, keys=KEYS, max_pages=MAX_PAGES, seed=options.seed, pins=options.pins
        )
        self.large_calls = RandomCalls(self.cache, self.who, keys=KEYS, max_pages=LARGE_PAGES, seed=options.seed)
        self.page_words = options.page_bytes // WORD
        self.buffer = torch.zeros(MAX_PAGES * self.page_words, dtype=torch.int64)
        self.wrong = 0
        return attached

    def act(self, role: str, slow: bool = False) -> dict[str, int]:
        """Play a role until told to stop; returns the counts of its calls.

        Args:
            slow: compiled work lingers after each load, so that a kill hits any step as likely as another.

        Raises:
            CheckFailure: bytes that no sequence of correct calls can give.
        """
        step: Callable[[], None] = getattr(self, f"_{role}")
        self.hammers = slow_hammers() if slow else compiled_hammers()
        self.bursts = (SLOW_BURST, SLOW_BURST) if slow else (BURST, PIN_BURST)
        while not self.told():
            step()
            self.progress.value += 1
        if self.wrong:
            raise CheckFailure(f"{self.wrong} words read by compiled work are not of the object that was asked for")
        return self.calls.counts

    def leave(self, key: int, words: int, owner: int) -> int | None:
        """Put an object that must outlive this rank; returns its version, or None if there is no room for it."""
        try:
            self.cache.put(name(key), payload(key, self.who, words), preferred_segment=owner)
        except EXPECTED:
            return None
        return self.who

    def taken_back(self) -> dict[str, int]:
        """How much this rank's sweeper has taken back from the dead so far."""
        counts = self.cache.engine.poller.sweeper.counts
        return {
            "objects": counts.given_up,
            "pages": counts.leaked_pages,
            "slots": counts.leaked_slots,
            "pins": counts.pins_dropped,
        }

    def hold(self, pinned: int, planned: int, owner: int) -> None:
        """Pin an object, and open a plan, for as long as this process lives."""
        self.held = self.cache.pin(name(pinned))
        with contextlib.suppress(*EXPECTED):
            self.cache.open_for_write(name(planned), self.options.page_bytes, preferred_segment=owner)

    # --- roles ---
    def _producer(self) -> None:
        table, buffer = self.cache.world_table, self.buffer
        seed = self.random.randrange(1 << 7)
        done = self.hammers.hammer(table, seed, self.bursts[0], KEYS, buffer.data_ptr(), buffer.numel())
        self.wrong += done[3]

    def _large(self) -> None:
        key = self.random.randrange(KEYS)
        words = self.random.randint(1, LARGE_PAGES * self.page_words)
        apart = payload(key, self.who, 2 * words)[::2]  # not contiguous: it does not go through one call
        with contextlib.suppress(*EXPECTED):
            self.cache.put(name(key), apart, preferred_segment=self.random.randrange(self.cache.world_size))
        self.large_calls.do(self.large_calls.remove)

    def _plan(self) -> None:
        keys = self.random.sample(range(KEYS), PLANS)
        opened = []
        for key in keys:
            with contextlib.suppress(*EXPECTED):
                written = payload(key, self.who, self.random.randint(1, MAX_PAGES * self.page_words))
                write_plan(self.cache, name(key), written, self.random.randrange(self.cache.world_size))
                opened.append(key)
        for key in opened:
            finish = self.cache.abort if self.random.random() < 0.2 else self.cache.commit
            finish(name(key))
        for key in keys:
            with contextlib.suppress(*EXPECTED):
                self.cache.remove(name(key))

    def _reader(self) -> None:
        calls = [self.calls.get, self.calls.get_into]
        if self.options.pins:
            table, seed = self.cache.world_table, self.random.randrange(1 << 7)
            self.wrong += self.hammers.pin_hammer(table, seed, self.bursts[1], KEYS)[1]
            calls.append(self.calls.pin)
        self.calls.do(self.random.choice(calls))

    def _owner(self) -> None:
        key = self.random.randrange(KEYS)
        with contextlib.suppress(*EXPECTED):
            self.cache.put(name(key), payload(key, self.who, self.page_words), preferred_segment=self.cache.rank)
        if self.options.evict and self.random.random() < 0.1:
            self.cache.evict_until_below(self.random.random())
        self.calls.do(self.random.choice((self.calls.get, self.calls.remove)))

    def _room(self) -> None:
        owner = self.random.randrange(self.cache.world_size)
        nbytes = LARGE_PAGES * self.options.page_bytes
        make_room(self.cache.engine.machine, owner, nbytes)
        key = self.random.randrange(KEYS)
        with contextlib.suppress(*EXPECTED):
            self.cache.put(name(key), payload(key, self.who, nbytes // WORD), preferred_segment=owner)
        self.calls.do(self.calls.remove)

    def _poller(self) -> None:
        self.cache.flush()

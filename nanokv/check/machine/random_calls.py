"""Random calls on a cache, for checks of a running world. Every answer is checked."""

import random
from collections.abc import Callable

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.report import CheckFailure
from nanokv.device.machines.records import Place
from nanokv.errors import (
    DuplicateKey,
    InvalidArgument,
    KeyNotFound,
    NotReady,
    ObjectPinned,
    OutOfMemory,
    PeerLost,
)

#: errors that any of these calls may raise while others work on the same key
EXPECTED = (DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory, PeerLost)


class RandomCalls:
    """A random sequence of calls on one cache, by one thread. Every answer is checked, and counted in `done`.

    Args:
        worker: makes versions different from those of other workers; below 256.
        keys: keys 0 to keys - 1 are used, by all workers.
        max_pages: the largest object.
        pins: whether to pin.

    Raises (all methods):
        CheckFailure: bytes that no sequence of correct calls can give.
    """

    def __init__(
        self, cache: NanoKVCache, worker: int, *, keys: int, max_pages: int, seed: int, pins: bool = True
    ) -> None:
        self.cache, self.keys = cache, keys
        self.page_bytes = cache.engine.geometry.page_bytes
        self.max_words = max_pages * self.page_bytes // torch.int64.itemsize
        self.random = random.Random(seed)
        self.versions = worker << 24
        self.done: dict[str, int] = {}
        self.steps: list[Callable[[int], None]] = [
            *[self.put] * 6,
            *[self.get] * 6,
            *[self.get_into] * 2,
            *[self.remove] * 4,
            *[self.pin] * (2 if pins else 0),
            self.plan,
            self.abort,
        ]

    def run(self, count: int) -> dict[str, int]:
        """Do `count` steps."""
        for _ in range(count):
            self.step()
        return self.done

    def step(self) -> None:
        """Do one step. An answer that other workers may cause is no error."""
        self.do(self.random.choice(self.steps))

    def do(self, step: Callable[[int], None]) -> None:
        """Do one step of a kind, on a random key."""
        try:
            step(self.random.randrange(self.keys))
        except EXPECTED as error:
            self._count(type(error).__name__)
        else:
            self._count(step.__name__)

    def _count(self, answer: str) -> None:
        self.done[answer] = self.done.get(answer, 0) + 1

    def _new(self, key: int) -> torch.Tensor:
        self.versions += 1
        return payload(key, self.versions, self.random.randint(1, self.max_words))

    def _owner(self) -> int | None:
        owner = self.random.randrange(-1, self.cache.world_size)
        return None if owner < 0 else owner

    def put(self, key: int) -> None:
        """Put an object, anywhere."""
        self.cache.put(name(key), self._new(key), preferred_segment=self._owner())

    def get(self, key: int) -> None:
        """Read an object into a new tensor."""
        check_payload(key, self.cache.get(name(key)))

    def get_into(self, key: int) -> None:
        """Read an object into a tensor of ours."""
        nbytes = self.cache.get_location(name(key)).bytes_total
        dst = torch.zeros(nbytes // torch.int64.itemsize, dtype=torch.int64)
        try:
            check_payload(key, self.cache.get(name(key), dst=dst))
        except InvalidArgument:  # it was replaced by one of another size
            if dst.any():
                raise CheckFailure(f"key {key}: bytes were copied though the size is wrong") from None

    def remove(self, key: int) -> None:
        """Remove an object."""
        self.cache.remove(name(key))

    def pin(self, key: int) -> None:
        """Read an object in place, for a moment."""
        with self.cache.pin(name(key)) as view:
            version = check_payload(key, view)
            self.get_and_forget()
            if check_payload(key, view) != version:
                raise CheckFailure(f"key {key} changed while it was pinned")

    def get_and_forget(self) -> None:
        """A look at another key, which takes a moment."""
        key = self.random.randrange(self.keys)
        if self.cache.exists(name(key)):
            self.cache.get_many([name(key)])

    def plan(self, key: int) -> None:
        """Write an object as a caller's kernel does: open, store, commit."""
        tensor = self._new(key)
        plan = self.cache.open_for_write(name(key), tensor.nbytes, preferred_segment=self._owner())
        target = self.cache.engine.single.payload(Place(plan.dst_rank, 0, 0, plan.payload_base, plan.bytes_total))
        target.copy_(tensor.view(torch.uint8))
        self.cache.commit(name(key))

    def abort(self, key: int) -> None:
        """Open an object and give it up."""
        self.cache.open_for_write(name(key), self.page_bytes, preferred_segment=self._owner())
        self.cache.abort(name(key))

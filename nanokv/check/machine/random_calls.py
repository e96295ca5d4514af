"""Random calls on a cache, for checks of a running world. Every answer is checked."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

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


class CacheCalls(ABC):
    """Random calls on one cache, by one thread. Every answer is checked, and counted.

    Attributes:
        keys: keys 0 to keys - 1 are used, by all workers.
        dtype: of the objects, which have one dimension.
        steps: the calls, each as many times as it is likely.
        counts: of each call, and of each error that other workers may cause.

    Raises (all calls):
        CheckFailure: bytes that no sequence of correct calls can give.
    """

    cache: NanoKVCache
    random: random.Random
    keys: int
    dtype: torch.dtype
    steps: Sequence[Callable[[], None]]
    counts: Counter[str]

    @abstractmethod
    def new(self, key: int) -> torch.Tensor:
        """An object that nobody has put."""

    @abstractmethod
    def compare(self, key: int, found: torch.Tensor) -> object:
        """Check an object that was read."""

    def step(self) -> None:
        """Make one call."""
        self.do(self.random.choice(self.steps))

    def do(self, call: Callable[[], None]) -> None:
        """Make this call. An answer that other workers may cause is no error."""
        try:
            call()
        except EXPECTED as error:
            self.counts[type(error).__name__] += 1
        else:
            self.counts[call.__name__] += 1

    def key(self) -> int:
        """Any key."""
        return self.random.randrange(self.keys)

    def owner(self) -> int | None:
        """Any segment, or none that is preferred."""
        owner = self.random.randrange(-1, self.cache.world_size)
        return None if owner < 0 else owner

    # --- calls ---
    def put(self) -> None:
        """Put an object, anywhere."""
        key = self.key()
        self.cache.put(name(key), self.new(key), preferred_segment=self.owner())

    def get(self) -> None:
        """Read an object into a new tensor."""
        key = self.key()
        self.compare(key, self.cache.get(name(key)))

    def get_into(self) -> None:
        """Read an object into a tensor of ours."""
        key = self.key()
        nbytes = self.cache.get_location(name(key)).bytes_total
        dst = torch.zeros(nbytes // self.dtype.itemsize, dtype=self.dtype)
        try:
            self.compare(key, self.cache.get(name(key), dst=dst))
        except InvalidArgument:  # it was replaced by one of another size
            if dst.any():
                raise CheckFailure(f"key {key}: bytes were copied though the size is wrong") from None

    def remove(self) -> None:
        """Remove an object."""
        self.cache.remove(name(self.key()))

    def plan(self) -> None:
        """Write an object as a caller's kernel does: open, store, commit."""
        key = self.key()
        write_plan(self.cache, name(key), self.new(key), self.owner())
        self.cache.commit(name(key))

    def abort(self) -> None:
        """Write an object and give it up."""
        key = self.key()
        write_plan(self.cache, name(key), self.new(key), self.owner())
        self.cache.abort(name(key))


def write_plan(cache: NanoKVCache, key: str, tensor: torch.Tensor, owner: int | None = None) -> None:
    """Open an object and write its bytes; it is still to be committed."""
    plan = cache.open_for_write(key, tensor.nbytes, preferred_segment=owner)
    target = cache.engine.single.payload(Place(plan.dst_rank, 0, 0, plan.payload_base, tensor.nbytes))
    target.copy_(tensor.view(torch.uint8))


class RandomCalls(CacheCalls):
    """Calls about objects of words that all say the key and the version.

    Args:
        worker: makes versions different from those of other workers; below 256.
        max_pages: the largest object.
        pins: whether to pin.
    """

    dtype = torch.int64

    def __init__(
        self, cache: NanoKVCache, worker: int, *, keys: int, max_pages: int, seed: int, pins: bool = True
    ) -> None:
        self.cache, self.keys = cache, keys
        self.max_words = max_pages * cache.engine.geometry.page_bytes // torch.int64.itemsize
        self.random = random.Random(seed)
        self.versions = worker << 24
        self.counts = Counter()
        self.steps = [
            *[self.put] * 6,
            *[self.get] * 6,
            *[self.get_into] * 2,
            *[self.remove] * 4,
            *[self.pin] * (2 if pins else 0),
            self.plan,
            self.abort,
        ]

    def run(self, count: int) -> Counter[str]:
        """Make `count` calls."""
        for _ in range(count):
            self.step()
        return self.counts

    def new(self, key: int) -> torch.Tensor:
        self.versions += 1
        return payload(key, self.versions, self.random.randint(1, self.max_words))

    def compare(self, key: int, found: torch.Tensor) -> int:
        return check_payload(key, found)

    def pin(self) -> None:
        """Read an object in place, for a moment."""
        key = self.key()
        with self.cache.pin(name(key)) as view:
            version = self.compare(key, view)
            self.get_and_forget()
            if self.compare(key, view) != version:
                raise CheckFailure(f"key {key} changed while it was pinned")

    def get_and_forget(self) -> None:
        """A look at another key, which takes a moment."""
        key = self.key()
        if self.cache.exists(name(key)):
            self.cache.get_many([name(key)])

"""Events of what a segment holds, for vLLM: blocks stored, and blocks gone.

A block is announced when its store has ended and NanoKV's poller has told of its objects, one per worker; its removal,
when the poller tells that one of them went. The poller tells of an object's coming and going in order, or of neither if
both were between two of its looks. So each removal follows the store that it is of, and what was announced and not
removed is there, or was until just now.

vLLM names blocks by its own keys, the poller objects by digests: so the digests of blocks are remembered until they go.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent, OffloadKey

from nanokv.cache.cache import NanoKVCache
from nanokv.host_poller.events import Event, EventKind
from nanokv.types import KeyDigest

_KEPT = 1024  #: blocks that are waited for before those among them are dropped that are not there


@dataclass(slots=True)
class _Block:
    """A block that is announced, or will be."""

    key: OffloadKey
    objects: tuple[KeyDigest, ...]
    unseen: set[KeyDigest]  #: those that the poller has not told of
    has_ended: bool = False  #: its store, well


class Announcer:
    """Events of the segment of this rank. Its methods are for one thread: the scheduler's."""

    def __init__(self, world: NanoKVCache, locality: Locality) -> None:
        self._world, self._locality = world, locality
        self._heard: deque[tuple[EventKind, KeyDigest]] = deque()  #: from the poller's thread
        self._stores: dict[OffloadKey, _Block] = {}  #: not announced yet
        self._coming: dict[KeyDigest, _Block] = {}  #: the same, by their objects
        self._there: dict[KeyDigest, _Block] = {}  #: announced, by their objects
        self._events: list[OffloadingEvent] = []
        self._limit = _KEPT
        self._unsubscribe = world.subscribe(self._hear)

    def _hear(self, events: Sequence[Event]) -> None:
        self._heard.extend((event.kind, event.key) for event in events if event.key is not None)

    def expect(self, blocks: Mapping[OffloadKey, Sequence[bytes]]) -> None:
        """Blocks are going to be stored, as the objects of these keys. What is there already is not stored again."""
        for key, names in blocks.items():
            objects = tuple(self._world.digest(name) for name in names)
            there = self._world.exists_many(objects)
            block = _Block(key, objects, {each for each, known in zip(objects, there, strict=True) if not known})
            self._stores[key] = block
            self._coming |= dict.fromkeys(objects, block)

    def ended(self, asked: Iterable[OffloadKey], stored: Iterable[OffloadKey]) -> None:
        """The stores of `asked` have ended; these were stored."""
        new = set(stored)
        for key in asked:
            block = self._stores.get(key)
            if block is None:
                continue
            if key in new:
                block.has_ended = True
                self._announce(block)
            else:
                self._drop(block)
        self._take_heard()
        self._drop_lost()

    def _announce(self, block: _Block) -> None:
        if block.has_ended and not block.unseen:
            self._drop(block)
            self._there |= dict.fromkeys(block.objects, block)
            self._tell(block.key, removed=False)

    def _drop(self, block: _Block) -> None:
        """Forget what comes no more."""
        if self._stores.get(block.key) is block:
            del self._stores[block.key]
        for each in block.objects:
            if self._coming.get(each) is block:
                del self._coming[each]

    def _take_heard(self) -> None:
        while self._heard:
            kind, digest = self._heard.popleft()
            block = self._coming.get(digest)
            if kind is not EventKind.STORED:
                self._go(digest)
                if block is not None and digest not in block.unseen:
                    self._drop(block)
            elif block is not None:
                block.unseen.discard(digest)
                self._announce(block)

    def _go(self, digest: KeyDigest) -> None:
        block = self._there.get(digest)
        if block is not None:
            for each in block.objects:
                self._there.pop(each, None)
            self._tell(block.key, removed=True)

    def _drop_lost(self) -> None:
        """Forget the blocks that came and went between two looks of the poller, once there are many."""
        if len(self._stores) > self._limit:
            for block in [block for block in self._stores.values() if block.has_ended]:
                if not all(self._world.exists_many(block.objects)):
                    self._drop(block)
            self._limit = max(_KEPT, 2 * len(self._stores))

    def _tell(self, key: OffloadKey, *, removed: bool) -> None:
        if self._events and self._events[-1].removed == removed:
            self._events[-1].keys.append(key)
            return
        self._events.append(
            OffloadingEvent(
                [key], Medium.CPU, removed, locality=self._locality, ownership="nanokv", removal_expected=True
            )
        )

    def take(self) -> list[OffloadingEvent]:
        """The events since the last call, in order."""
        self._take_heard()
        taken, self._events = self._events, []
        return taken

    def close(self) -> None:
        """Hear no more."""
        self._unsubscribe()

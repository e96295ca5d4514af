"""A subscriber of events, for tests."""

from collections.abc import Sequence

from nanokv.blocks import EventBatch, EventPublisher, EventType, SequenceHash

STORE, REMOVE, SHUTDOWN = EventType
Short = list[tuple[EventType, list[int]]]


class Heard:
    """A subscriber that keeps what it was told."""

    def __init__(self, publisher: EventPublisher) -> None:
        self.batches: list[EventBatch] = []
        self.end = publisher.subscribe(self.hear)

    def hear(self, batches: Sequence[EventBatch]) -> None:
        self.batches += batches

    @property
    def short(self) -> Short:
        """Kinds and positions."""
        return [(batch.event_type, [event.position for event in batch.events]) for batch in self.batches]

    @property
    def hashes(self) -> list[tuple[EventType, SequenceHash]]:
        return [(event.event_type, event.sequence_hash) for batch in self.batches for event in batch.events]

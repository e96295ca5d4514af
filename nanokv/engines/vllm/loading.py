"""A worker's loads: blocks of objects into blocks of the engine's cache, in a background thread.

A block that is no longer there, or is damaged, is reported, and vLLM computes it (with
`kv_load_failure_policy="recompute"`). Nothing that was not verified is ever reported as loaded.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from vllm.logger import init_logger

from nanokv.background import Handle
from nanokv.engines.vllm.metadata import BlockLoad
from nanokv.engines.vllm.reading import Reading
from nanokv.engines.vllm.stats import Counts
from nanokv.errors import NanoKVError, SegmentCorrupt
from nanokv.kv_layout import KVLayout
from nanokv.seldom import Seldom
from nanokv.types import Key

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

REST_SECONDS = 0.005


class Blocks(Protocol):
    """Where blocks come from: `PagedKV`; in a cluster `ClusterLoads`."""

    def get_async(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> Handle[list[NanoKVError | None]]:
        """See `PagedKV.get_async`."""
        ...


@dataclass(slots=True)
class _Load:
    work: BlockLoad
    parts: list[tuple[range, Handle[list[NanoKVError | None]]]]  #: layers, and their errors per block

    def done(self) -> bool:
        return all(handle.done() for _, handle in self.parts)


class Loading:
    """The loads of one worker.

    Args:
        layers: of the model that this worker has.
        by_layer: whether a forward pass begins before its last layers are loaded.
    """

    def __init__(self, paged: Blocks, reading: Reading, layers: int, counts: Counts, *, by_layer: bool) -> None:
        self._paged = paged
        self._reading = reading
        self._all = range(layers)
        self._parts = list(growing_parts(layers)) if by_layer else [self._all]
        self._counts = counts
        self._under_way: list[_Load] = []
        self._seldom = Seldom(logger)
        self._failed: set[int] = set()
        self._failed_whole: set[str] = set()

    def start(self, loads: list[BlockLoad]) -> None:
        """Begin to load, the first layers of all requests first."""
        begun = [(_Load(work, []), self._reading.source(work.hashes)) for work in loads]
        for part in self._parts:
            for load, source in begun:
                load.parts.append((part, self._get(load.work, part, source)))
        self._under_way += [load for load, _ in begun]

    def _get(self, work: BlockLoad, part: range, source: KVLayout | None) -> Handle[list[NanoKVError | None]]:
        held = None if part == self._all or source is not None else self._all
        return self._paged.get_async(work.hashes, work.blocks, layers=part, held=held, source=source)

    def wait(self, layer: int) -> None:
        """Until this layer of all that was begun is loaded, or is not there."""
        for load in self._under_way:
            for part, handle in load.parts:
                if layer in part:
                    with suppress(Exception):  # `finished` reports it
                        handle.wait()

    def rest(self) -> None:
        """Wait for the oldest load, a moment at most: a step without work would only take the interpreter from it."""
        for _, handle in self._under_way[0].parts if self._under_way else ():
            with suppress(Exception):  # `finished` reports it
                handle.result(REST_SECONDS)

    def finished(self) -> set[str]:
        """The requests whose loads have ended since the last call, well or not."""
        ended = [load for load in self._under_way if load.done()]
        self._under_way = [load for load in self._under_way if load not in ended]
        for load in ended:
            self._judge(load)
        return {load.work.request for load in ended}

    def _judge(self, load: _Load) -> None:
        work, errors = load.work, self._errors(load)
        if work.whole and errors:
            self._failed_whole.add(work.request)
        else:
            self._failed.update(work.blocks[i] for i in errors)
        self._counts.loaded += len(work.blocks) - len(errors)
        self._counts.lost += len(errors)
        for damaged in (True, False):
            some = [error for _, error in sorted(errors.items()) if isinstance(error, SegmentCorrupt) is damaged]
            if some:
                what, count = "damaged" if damaged else "gone", f"{len(some)} of {len(work.blocks)}"
                line = f"NanoKV: {count} blocks of {work.request} are {what}, and are computed: {some[0]}"
                self._seldom.warn(type(some[0]).__name__, line)
            self._counts.damaged += len(some) if damaged else 0

    def _errors(self, load: _Load) -> dict[int, Exception]:
        """Per place of a block in the load that has failed, why."""
        found: dict[int, Exception] = {}
        for _, handle in load.parts:
            try:
                answers = handle.result()
            except Exception as error:
                return dict.fromkeys(range(len(load.work.blocks)), error)
            found |= {i: error for i, error in enumerate(answers) if error is not None}
        return found

    def take_failed(self) -> set[int]:
        """The blocks of the cache that could not be filled, since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def take_failed_whole(self) -> set[str]:
        """The requests that must be computed from their beginning, since the last call."""
        failed, self._failed_whole = self._failed_whole, set()
        return failed


def growing_parts(layers: int) -> Iterator[range]:
    """The layers in parts of 1, 2, 4, ...: the first one is soon there, and the number of parts stays small."""
    first, count = 0, 1
    while first < layers:
        yield range(first, min(first + count, layers))
        first, count = first + count, 2 * count

"""A worker's loads: blocks of objects into blocks of the engine's cache, in a background thread.

A block that is no longer there, or is damaged, is reported, and vLLM computes it (with
`kv_load_failure_policy="recompute"`). Nothing that was not verified is ever reported as loaded.
"""

from dataclasses import dataclass

from vllm.logger import init_logger

from nanokv.background import Handle
from nanokv.engines.vllm.metadata import BlockLoad
from nanokv.engines.vllm.stats import Counts
from nanokv.errors import NanoKVError
from nanokv.transfer.paged import PagedKV

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name


@dataclass(slots=True)
class _Load:
    work: BlockLoad
    handle: Handle[list[NanoKVError | None]]


class Loading:
    """The loads of one worker."""

    def __init__(self, paged: PagedKV, counts: Counts) -> None:
        self._paged = paged
        self._counts = counts
        self._under_way: list[_Load] = []
        self._failed: set[int] = set()

    def start(self, loads: list[BlockLoad]) -> None:
        """Begin to load, in order."""
        for work in loads:
            self._under_way.append(_Load(work, self._paged.get_async(work.hashes, work.blocks)))

    def wait(self) -> None:
        """Until all that was begun has ended."""
        for load in self._under_way:
            load.handle.wait()

    def finished(self) -> set[str]:
        """The requests whose loads have ended since the last call, well or not."""
        ended = [load for load in self._under_way if load.handle.done()]
        self._under_way = [load for load in self._under_way if not load.handle.done()]
        for load in ended:
            self._judge(load)
        return {load.work.request for load in ended}

    def _judge(self, load: _Load) -> None:
        work = load.work
        try:
            errors = load.handle.result()
        except Exception as error:
            logger.warning("NanoKV: the blocks of %s could not be loaded: %s", work.request, error)
            errors = [NanoKVError(str(error))] * len(work.blocks)
        lost = [block for block, error in zip(work.blocks, errors, strict=True) if error is not None]
        self._failed.update(lost)
        self._counts.loaded += len(work.blocks) - len(lost)
        self._counts.lost += len(lost)
        if lost:
            first = next(error for error in errors if error is not None)
            logger.info("NanoKV: %d of %d blocks of %s are gone: %s", len(lost), len(errors), work.request, first)

    def take_failed(self) -> set[int]:
        """The blocks of the cache that could not be filled, since the last call."""
        failed, self._failed = self._failed, set()
        return failed

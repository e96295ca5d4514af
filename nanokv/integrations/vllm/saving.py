"""A worker's stores: blocks of the engine's cache into objects, a layer as soon as the forward pass has computed it.

On a CPU a background thread copies, while the next layer is computed. On a GPU the copies follow the layer's kernels on
their stream. The step ends when all its blocks are READY, so the engine may reuse its blocks afterwards.
"""

from collections.abc import Callable, Sequence
from functools import partial

from vllm.logger import init_logger

from nanokv.background import Handle, Worker
from nanokv.cache.cache import NanoKVCache
from nanokv.errors import DuplicateKey, NanoKVError
from nanokv.integrations.vllm.metadata import BlockSave
from nanokv.integrations.vllm.stats import WorkerCounts
from nanokv.seldom import Seldom
from nanokv.transfer.layerwise import LayerwisePut
from nanokv.transfer.paged import PagedKV
from nanokv.types import Key

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name


class Saves:
    """The stores of one worker.

    Args:
        segment: from the target that a step names to the rank in whose segment this worker's part goes.
        hold: seconds for which blocks are leased; None: not leased.
    """

    def __init__(
        self,
        cache: NanoKVCache,
        paged: PagedKV,
        segment: Callable[[int], int],
        hold: float | None,
        counts: WorkerCounts,
    ) -> None:
        self.cache, self.segment, self.hold = cache, segment, hold
        self._paged, self._counts = paged, counts
        self._worker = Worker(f"nanokv-save-{cache.rank}")
        self._saves: Sequence[BlockSave] = ()
        self._puts: list[LayerwisePut] | None = None
        self._pending: list[Handle[None]] = []
        self._seldom = Seldom(logger)

    def bind(self, saves: Sequence[BlockSave]) -> None:
        """The blocks of the step that begins."""
        self._saves, self._puts = saves, None

    def layer_done(self, layer: int) -> None:
        """The forward pass has computed this layer: copy it."""
        if not self._saves:
            return
        if self._puts is None:
            self._puts = [put for save in self._saves if (put := self._begin(save)) is not None]
        if self.cache.device.type == "cpu":
            self._pending.append(self._worker.submit(partial(_write, self._puts, layer)))
        else:
            _write(self._puts, layer)

    def _begin(self, save: BlockSave) -> LayerwisePut | None:
        try:
            return self._paged.begin_put(
                save.hashes, save.blocks, preferred_segment=self.segment(save.target), hold=self.hold
            )
        except NanoKVError as error:
            self.refused(len(save.blocks), error)
            return None

    def finish(self) -> None:
        """Make the blocks of this step READY."""
        if not self._saves:
            return
        if self._puts is None:  # no layer has called: the whole step ran as one graph
            self._puts = [put for save in self._saves if (put := self._begin(save)) is not None]
        pending, self._pending = self._pending, []
        puts, self._saves, self._puts = self._puts, (), None
        for handle in pending:
            try:
                handle.wait()
            except Exception as error:
                self.refused(0, error)
        for put in puts:
            self._commit(put)

    def _commit(self, put: LayerwisePut) -> None:
        try:
            errors = put.commit()
        except Exception as error:
            put.abort()
            self.refused(put.opened, error)
            return
        self.count(put.keys, errors)

    def count(self, keys: Sequence[Key], errors: Sequence[NanoKVError | None]) -> None:
        """Count what was stored. A block that another request has stored is leased anew: its lease may have ended."""
        known = [key for key, error in zip(keys, errors, strict=True) if isinstance(error, DuplicateKey)]
        if known and self.hold is not None:
            self.cache.hold(known, self.hold)
        self._counts.known += len(known)
        self._counts.stored += errors.count(None)
        for refusal in errors:
            if refusal is not None and not isinstance(refusal, DuplicateKey):
                self.refused(1, refusal)

    def refused(self, blocks: int, error: Exception) -> None:
        """Count blocks that were not stored, and tell why, once per cause and minute."""
        self._counts.refused += blocks
        self._seldom.warn(type(error).__name__, f"NanoKV: blocks were not stored: {error}")

    def close(self) -> None:
        """End the background thread."""
        self._worker.close()


def _write(puts: Sequence[LayerwisePut], layer: int) -> None:
    for put in puts:
        put.write(range(layer, layer + 1))

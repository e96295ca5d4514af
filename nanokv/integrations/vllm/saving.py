"""A worker's stores: blocks of the engine's cache into objects.

On a CPU they are copied when the forward pass has ended: another thread would take its time from the pass, and a job
for each layer costs more than its copy. On a GPU the copies of a layer follow its kernels on their stream, if all
layers are one group: those with states tell nobody when they are computed. The step ends when all its blocks are READY,
so the engine may reuse its blocks afterwards.
"""

from collections.abc import Callable, Mapping, Sequence

from vllm.logger import init_logger

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
        paged: by group.
        segment: from the target that a step names to the rank in whose segment this worker's part goes.
        hold: seconds for which blocks are leased; None: not leased.
    """

    def __init__(
        self,
        cache: NanoKVCache,
        paged: Mapping[int, PagedKV],
        segment: Callable[[int], int],
        hold: float | None,
        counts: WorkerCounts,
    ) -> None:
        self.cache, self.segment, self.hold = cache, segment, hold
        self._paged, self._counts = paged, counts
        self._by_layer = cache.device.type != "cpu" and len(paged) == 1
        self._saves: Sequence[BlockSave] = ()
        self._puts: list[LayerwisePut] | None = None
        self._seldom = Seldom(logger)

    def bind(self, saves: Sequence[BlockSave]) -> None:
        """The blocks of the step that begins."""
        self._saves, self._puts = saves, None

    def layer_done(self, layer: int) -> None:
        """The forward pass has computed this layer: copy it."""
        if not self._saves or not self._by_layer:
            return
        if self._puts is None:
            self._puts = [put for save in self._saves if (put := self._begin(save)) is not None]
        for put in self._puts:
            put.write(range(layer, layer + 1))

    def _begin(self, save: BlockSave) -> LayerwisePut | None:
        try:
            return self._paged[save.group].begin_put(
                save.hashes, save.blocks, preferred_segment=self.segment(save.target), hold=self.hold
            )
        except NanoKVError as error:
            self.refused(len(save.blocks), error)
            return None

    def finish(self) -> None:
        """Make the blocks of this step READY."""
        saves, puts, self._saves, self._puts = self._saves, self._puts, (), None
        for put in puts or ():
            self._commit(put)
        for save in saves if puts is None else ():  # on a CPU; or no layer has called: the step ran as one graph
            self._put(save)

    def _put(self, save: BlockSave) -> None:
        """Store blocks at once. Those that are known already, as of a prefix that another request has, cost a look."""
        there = self.cache.exists_many(save.hashes)
        self._known([key for key, is_there in zip(save.hashes, there, strict=True) if is_there])
        new = [i for i, is_there in enumerate(there) if not is_there]
        if not new:
            return
        keys, blocks = [save.hashes[i] for i in new], [save.blocks[i] for i in new]
        try:
            segment = self.segment(save.target)
            errors = self._paged[save.group].put(keys, blocks, preferred_segment=segment, hold=self.hold)
        except NanoKVError as error:
            self.refused(len(blocks), error)
            return
        self.count(keys, errors)

    def _commit(self, put: LayerwisePut) -> None:
        try:
            errors = put.commit()
        except Exception as error:
            put.abort()
            self.refused(put.opened, error)
            return
        self.count(put.keys, errors)

    def count(self, keys: Sequence[Key], errors: Sequence[NanoKVError | None]) -> None:
        """Count what was stored."""
        self._known([key for key, error in zip(keys, errors, strict=True) if isinstance(error, DuplicateKey)])
        self._counts.stored += errors.count(None)
        for refusal in errors:
            if refusal is not None and not isinstance(refusal, DuplicateKey):
                self.refused(1, refusal)

    def _known(self, keys: Sequence[Key]) -> None:
        """Count blocks that another request has stored. They are leased anew: their lease may have ended."""
        if keys and self.hold is not None:
            self.cache.hold(keys, self.hold)
        self._counts.known += len(keys)

    def refused(self, blocks: int, error: Exception) -> None:
        """Count blocks that were not stored, and tell why, once per cause and minute."""
        self._counts.refused += blocks
        self._seldom.warn(type(error).__name__, f"NanoKV: blocks were not stored: {error}")

    def close(self) -> None:
        """Nothing is left to be done: each step ends its own."""

"""`nanokv.write=kernel`: vLLM's step "write K and V of these tokens into the cache", by NanoKV's kernel.

That launch, which the engine needs anyway, also stores the blocks that become full into the reader's segment, layer
by layer, and the last layer's launch publishes them: nothing is copied afterwards. vLLM's attention backends call a
function of their module for this step; here it is replaced, and calls about other caches go on to vLLM's.

Blocks to be stored that are full already (an earlier request computed them) go the other way, by `saving.py`.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.integrations.vllm.metadata import BlockSave
from nanokv.integrations.vllm.saving import Saves
from nanokv.transfer.cache_writer import FilledBlock

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: the modules of vLLM's attention backends, and what they call this step
STEPS = (
    ("vllm.v1.attention.backends.flash_attn", "reshape_and_cache_flash"),
    ("vllm.v1.attention.backends.triton_attn", "triton_reshape_and_cache_flash"),
)


class EngineWrite:
    """The stores of one worker whose cache NanoKV's kernel writes.

    Args:
        saving: of blocks that are full already.
        halves: per layer [blocks, K and V, tokens, heads, head_size].

    Raises:
        InvalidArgument: the cache is not on a GPU, or vLLM has none of these backends.
    """

    def __init__(self, config: "VllmConfig", saving: Saves, halves: Sequence[torch.Tensor]) -> None:
        cache, scheduler = config.cache_config, config.scheduler_config
        self._saving = saving
        self._numbers = {layer.data_ptr(): number for number, layer in enumerate(halves)}
        tokens = scheduler.max_num_batched_tokens
        filled = min(tokens, tokens // cache.block_size + scheduler.max_num_seqs + 1)
        pairs = [(layer[:, 0], layer[:, 1]) for layer in halves]
        self._writer = saving.cache.cache_writer(pairs, kv_cache_dtype=cache.cache_dtype, capacity=filled)
        self._undo = [undo for module, name in STEPS if (undo := self._replace(module, name)) is not None]
        if not self._undo:
            raise InvalidArgument("nanokv.write=kernel needs vLLM's FlashAttention or Triton backend")

    def _replace(self, module: str, name: str) -> Callable[[], None] | None:
        try:
            backend: Any = importlib.import_module(module)
            theirs = getattr(backend, name)
        except (ImportError, AttributeError):
            return None  # not on this platform

        def write(
            key: torch.Tensor,
            value: torch.Tensor,
            key_cache: torch.Tensor,
            value_cache: torch.Tensor,
            slot_mapping: torch.Tensor,
            kv_cache_dtype: str,
            k_scale: torch.Tensor,
            v_scale: torch.Tensor,
        ) -> None:
            number = self._numbers.get(key_cache.data_ptr())
            if number is None:
                theirs(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale)
            else:
                self._writer.write(number, key, value, slot_mapping, k_scale, v_scale)

        setattr(backend, name, write)
        return lambda: setattr(backend, name, theirs)

    def bind(self, saves: Sequence[BlockSave]) -> None:
        """The blocks of the step that begins; the objects of the one before it are published, or refused, by now."""
        self._collect()
        by_kernel = [
            FilledBlock(key, block, fresh, self._saving.segment(save.target))
            for save in saves
            for key, block, fresh in zip(save.hashes, save.blocks, save.fresh, strict=True)
            if fresh
        ]
        self._saving.bind([save for save in map(_full_before, saves) if save.blocks])
        if by_kernel:
            try:
                self._writer.start(by_kernel, hold=self._saving.hold)
            except NanoKVError as error:
                self._saving.refused(len(by_kernel), error)

    def _collect(self) -> None:
        keys, errors = self._writer.started, self._writer.results()
        self._saving.count(keys, errors)

    def layer_done(self, layer: int) -> None:
        """The forward pass has computed this layer."""
        self._saving.layer_done(layer)

    def finish(self) -> None:
        """The end of a step. What the kernel stores is in the reader's segment when its launches have run."""
        self._saving.finish()

    def close(self) -> None:
        """Give vLLM its own step back."""
        for undo in self._undo:
            undo()
        self._collect()
        self._writer.close()
        self._saving.close()


def _full_before(save: BlockSave) -> BlockSave:
    """The blocks that the step brings no tokens of."""
    places = [i for i, fresh in enumerate(save.fresh) if not fresh]
    return replace(
        save,
        hashes=[save.hashes[i] for i in places],
        blocks=[save.blocks[i] for i in places],
        fresh=[0] * len(places),
    )

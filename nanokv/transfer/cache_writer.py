"""An engine's step "write K and V of these tokens into the paged cache", which publishes the blocks that become full.

Instead of `PagedKV.put` after the forward pass: each layer's launch, which the engine needs anyway, stores its part of
the objects straight into the segment of the decode rank, and the launch of the last layer publishes them. The objects
are those of `PagedKV.put`, so `PagedKV.get` reads them.
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from nanokv.allocation.base import Allocation
from nanokv.allocation.status_errors import shown
from nanokv.allocation.terms import Hold
from nanokv.arguments import integer, listed
from nanokv.device.kernels.reshape_and_cache import UNFINISHED
from nanokv.device.machines.full_blocks import FullBlock, FullBlocks
from nanokv.device.machines.launch import check_kernels_run
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.reshape_and_cache import (
    UNSCALED,
    Publish,
    reshape_and_cache,
    reshape_and_cache_flash,
    stored_dtype,
)
from nanokv.device.protocol.status import Status
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError, WriteLost
from nanokv.transfer.descriptors import descriptor_of
from nanokv.transfer.paged import Hooks
from nanokv.types import Key

OLDER = 5  #: dimensions of a key cache of the older layout


class FilledBlock(NamedTuple):
    """A block that the next step fills."""

    key: Key
    block: int
    fresh: int  #: how many of its tokens, the last ones, the step brings; the others are in the cache already
    segment: int | None = None  #: the rank in whose segment it is stored. Default: `preferred_segment` of the step


class CacheWriter:
    """Writes the layers of an engine's paged cache, and publishes full blocks. Made by `NanoKVCache.cache_writer`.

    A step is `start` with the blocks that it fills, `write` for each layer in order, and `results`. A step that fills
    no block may leave out the first and the last. All launches go to the current stream, which must be the same for
    all calls; the writes may be captured in a graph, `start` and `results` not.

    A step that ends half-way is abandoned by the next `start`, `write` of layer 0, `results` or `close`: its objects
    are given up, and no reader ever sees them. Until then, or until this process ends, the owner of the segment frees
    nothing that others gave up. So call `close` where a step may be the last one.
    """

    def __init__(
        self,
        world: int,
        allocation: Allocation,
        hooks: Hooks,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        kv_cache_dtype: str,
        capacity: int,
        device: torch.device,
    ) -> None:
        self._allocation = allocation
        self._hooks = hooks
        self._layers = _checked_layers(layers)
        try:
            check_kernels_run(self._layers[0][0].device)
        except RuntimeError as error:
            raise InvalidArgument(str(error)) from None
        self._kv_cache_dtype = kv_cache_dtype
        k_cache = self._layers[0][0]
        for k, v in self._layers:
            stored_dtype(kv_cache_dtype, k)
            if (k.shape, v.shape, k.dtype, k.device) != (*_shapes(self._layers), k_cache.dtype, k_cache.device):
                raise InvalidArgument("the caches of all layers must be of one shape and dtype, on one device")
        if k_cache.device != device:
            raise InvalidArgument(f"layers must be on {device}, as the heap is, not on {k_cache.device}")
        self._older = k_cache.dim() == OLDER
        blocks, *sizes = k_cache.shape
        heads, dim = self._layers[0][1].shape[1:3] if self._older else sizes[1:]
        block_size = sizes[2] if self._older else sizes[0]
        shape = torch.Size((len(self._layers), 2, block_size, heads, dim))
        self._nbytes, self._what = descriptor_of(k_cache.dtype, shape)
        self._full = FullBlocks(world, integer("capacity", capacity, 1, 1 << 20), blocks, block_size, k_cache.device)
        one = torch.ones(1, dtype=torch.float32, device=k_cache.device)
        self._scales = (one, one)
        self._step: list[tuple[Key, int | None]] = []
        self._next = 0

    def start(
        self, blocks: Sequence[FilledBlock], *, preferred_segment: int | None = None, hold: float | Hold | None = None
    ) -> None:
        """Name the blocks that the next step fills; a step before it that has not ended is abandoned.

        Enqueues a few small operations, and does not wait.

        Args:
            preferred_segment, hold: as for `NanoKVCache.put`.

        Raises:
            InvalidArgument: more than `capacity` blocks; one that does not exist, comes twice, or has more fresh tokens
                than its size.
            PeerLost: the preferred rank has ended.
        """
        preferred_segment = self._hooks.checked_segment(preferred_segment)
        terms = self._hooks.terms(hold)
        step, rows = [], []
        for each in listed("blocks", blocks):
            if not isinstance(each, FilledBlock):
                raise InvalidArgument(f"blocks must be FilledBlock, not {type(each).__name__}")
            key, block, fresh, segment = each
            digest = self._hooks.digest(key)
            preferred = self._hooks.checked_segment(segment)
            preferred = preferred_segment if preferred is None else preferred
            owner = self._allocation.owner_of(digest, preferred)
            place = integer("block", block, 0), integer("fresh", fresh, 0)
            rows.append(FullBlock(digest, *place, owner, self._nbytes, self._what, terms))
            step.append((key, preferred))
        self._full.fill(rows)
        self._step, self._next = step, 0

    def write(
        self,
        layer: int,
        key: torch.Tensor,
        value: torch.Tensor,
        slot_mapping: torch.Tensor,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> None:
        """Write the tokens of one layer, and its part of the step's objects: one launch.

        Args:
            layer: 0, or the one after the last call's.
            key, value, slot_mapping, k_scale, v_scale: as for `reshape_and_cache_flash`; the scales are needed for fp8.

        Raises:
            InvalidArgument: another layer, or tensors that do not fit together; nothing was launched.
        """
        self._hooks.checked_segment(None)
        layer = integer("layer", layer, 0, len(self._layers) - 1)
        if layer not in (0, self._next):
            raise InvalidArgument(f"layer {layer} is not the next one: {self._next}")
        if self._kv_cache_dtype not in UNSCALED and (k_scale is None or v_scale is None):
            raise InvalidArgument(f"{self._kv_cache_dtype} needs k_scale and v_scale")
        if layer == 0 and self._next != 0:
            self._full.abandon()
        scales = (self._scales[0] if k_scale is None else k_scale, self._scales[1] if v_scale is None else v_scale)
        write = reshape_and_cache if self._older else reshape_and_cache_flash
        publish = Publish(self._full, layer, len(self._layers))
        write(key, value, *self._layers[layer], slot_mapping, self._kv_cache_dtype, *scales, publish=publish)
        self._next = (layer + 1) % len(self._layers)

    @property
    def started(self) -> list[Key]:
        """The keys of the step that was started last, until its `results`."""
        return [key for key, _ in self._step]

    def results(self) -> list[NanoKVError | None]:
        """End the step: per block of `start` None if its object was published, or why not. Waits for the stream.

        An error says that this block has no object; its tokens are in the engine's cache in any case. Where there was
        no room, `PagedKV.put` may find some, because it has the owner join free pages.
        """
        self._hooks.checked_segment(None)
        if not self._step:
            return []
        self._full.abandon()
        self._next = 0
        step, self._step = self._step, []
        answers = zip(self._full.batch.answers(), step, strict=True)
        return [self._judged(status, key, preferred) for status, (key, preferred) in answers]

    def _judged(self, status: int, key: Key, preferred: int | None) -> NanoKVError | None:
        if status in (UNFINISHED.value, Status.BUSY):
            self._hooks.judge_put(Status.LOST, key, self._nbytes, preferred)
            why = "a layer was not written, or the step brought other tokens of the block than `fresh` says"
            return WriteLost(f"the object of key {shown(key)} was given up: {why}")
        return self._hooks.judge_put(status, key, self._nbytes, preferred)

    def close(self) -> None:
        """Abandon a step that has not ended. The engine's cache stays as it is. After the cache: nothing."""
        self._step, self._next = [], 0
        with contextlib.suppress(CacheClosed):
            self._hooks.checked_segment(None)
            self._full.abandon()


def _checked_layers(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = []
    for pair in listed("layers", layers):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgument(f"a layer must be a pair, key_cache and value_cache, not {type(pair).__name__}")
        pairs.append((plain_tensor(pair[0]), plain_tensor(pair[1])))
    if not pairs:
        raise InvalidArgument("layers must be a key_cache and a value_cache for each layer")
    k, v = pairs[0]
    if (k.dim(), v.dim()) not in ((4, 4), (OLDER, 4)) or not k.numel():
        raise InvalidArgument(
            f"caches must have the shapes of reshape_and_cache, not {list(k.shape)} and {list(v.shape)}"
        )
    return pairs


def _shapes(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Size, torch.Size]:
    k, v = layers[0]
    return k.shape, v.shape

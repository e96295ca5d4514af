"""The blocks of an engine's paged cache that become full in a step, and the objects that their tokens go to.

The tables lie in device memory, so that the launches of a step can be captured in a graph; see
`kernels.reshape_and_cache`, whose launches publish the objects.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from nanokv.device.kernels.reshape_and_cache import UNFINISHED, abandon_blocks_kernel
from nanokv.device.machines.batch import Batch, default_ctas
from nanokv.device.machines.records import NO_TERMS, Descriptor, Request, Terms
from nanokv.device.protocol.request import REQUEST
from nanokv.device.segment.layout import WORD
from nanokv.errors import InvalidArgument

_BLOCK = REQUEST.offsets["block"] // WORD


class FullBlock(NamedTuple):
    """A block of a paged cache that a step fills, and the object that it becomes."""

    key: tuple[int, int]
    block: int
    fresh: int  #: tokens of the block, its last ones, that the step's launches bring; the others are in the cache
    owner: int  #: the rank whose segment gets the object
    nbytes: int  #: of the object
    what: Descriptor  #: of the object
    terms: Terms = NO_TERMS


class FullBlocks:
    """The tables of one rank. Used by one thread and on one stream at a time.

    Args:
        world: the address of the world table, as `device` sees it.
        capacity: the most objects of a step.
        blocks: of the engine's cache.
        block_size: tokens per block.
        device: where the launches run; a CPU needs Triton's interpreter, or the PTX machine.

    Raises:
        InvalidArgument: `capacity`, `blocks` or `block_size` is not positive.

    Attributes:
        batch: the requests and tickets, and `statuses`, `report` and `answers` of the objects.
        object_of: int64 [blocks], on the device: which request a block belongs to, if that request is about it.
    """

    @torch.inference_mode(False)
    def __init__(self, world: int, capacity: int, blocks: int, block_size: int, device: torch.device) -> None:
        if min(capacity, blocks, block_size) < 1:
            raise InvalidArgument(f"{capacity} objects of {blocks} blocks of {block_size} tokens: all must be positive")
        self.world = world
        self.block_size = block_size
        self.batch = Batch(world, capacity, device)
        self.object_of = torch.zeros(blocks, dtype=torch.int64, device=device)
        self._numbers = torch.arange(capacity, dtype=torch.int64, device=device)
        self._ctas = default_ctas(device)
        self._extra = 0

    def fill(self, blocks: Sequence[FullBlock], now: int | None = None) -> None:
        """Name the objects of the next step; objects of the one before that are not finished are abandoned.

        Enqueues a launch and three copies on the current stream, and does not wait. Not to be captured.

        Args:
            now: the time in ns. Default: `now_ns()` of this host.

        Raises:
            InvalidArgument: more than `capacity`, a block that does not exist or is named twice, or more fresh tokens
                than a block has.
        """
        numbers = [each.block for each in blocks]
        if len(blocks) > self.batch.capacity:
            raise InvalidArgument(f"{len(blocks)} objects in tables with room for {self.batch.capacity}")
        if len(set(numbers)) < len(numbers):
            raise InvalidArgument(f"a block is named twice: {numbers}")
        for each in blocks:
            if not (0 <= each.block < len(self.object_of) and 0 <= each.fresh <= self.block_size):
                where = f"{len(self.object_of)} blocks of {self.block_size} tokens"
                raise InvalidArgument(f"block {each.block} with {each.fresh} fresh tokens is none of {where}")
        self.abandon()
        requests = [
            Request(each.key, each.fresh, each.nbytes, each.owner, each.what, block=each.block, terms=each.terms)
            for each in blocks
        ]
        self.batch.fill(requests, now)
        self._extra = sum(1 + self.block_size - each.fresh for each in blocks)
        count = len(blocks)
        with torch.inference_mode(False):
            self.batch.statuses.fill_(UNFINISHED.value)
            self.object_of.scatter_(0, self.batch.requests[:count, _BLOCK], self._numbers[:count])

    def abandon(self) -> None:
        """Give up the objects that no launch has finished; their status is UNFINISHED. One launch, no waiting."""
        self.batch.launch(abandon_blocks_kernel, self.batch.tickets, self.batch.statuses, self.batch.control)

    def extra_ctas(self, *, captured: bool) -> int:
        """CTAs of a launch besides one per token: to begin objects, and to copy positions out of the cache."""
        most = self.batch.capacity * (self.block_size + 1) if captured else self._extra
        return min(most, self._ctas)

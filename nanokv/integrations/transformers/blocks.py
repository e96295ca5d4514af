"""Blocks between a PromptKV and a NanoKVCache: read the longest prefix, gather what is new, put it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from nanokv.allocation.terms import Hold
from nanokv.cache.cache import NanoKVCache
from nanokv.errors import CacheClosed, DuplicateKey, Forked, KeyNotFound, NanoKVError, SegmentCorrupt
from nanokv.integrations.transformers.layers import BlockShape
from nanokv.seldom import Seldom

STAGING_BYTES = 64 << 20  #: blocks are copied in groups of at most so many bytes, but of one block at least

logger = logging.getLogger("nanokv.transformers")


class PromptTarget(NamedTuple):
    """Where the blocks of a prompt go."""

    preferred_segment: int | None
    hold: float | Hold | None


@dataclass(slots=True)
class ReuseStats:
    """Counts of a PrefixCache. Inexact under threads: counting takes no lock."""

    prompts: int = 0  #: rows that were loaded
    tokens_asked: int = 0  #: prompt tokens of those rows, without pads
    tokens_reused: int = 0  #: of these, whose KV was read instead of computed
    blocks_stored: int = 0
    blocks_known: int = 0  #: computed, while another one had put them
    blocks_refused: int = 0  #: not stored: no room, a rank that has ended, ...
    reads_failed: int = 0  #: blocks that were there at the look-up, and could not be read: evicted, or damaged
    blocks_damaged: int = 0  #: of these, with a wrong checksum or wrong control words; they were dropped


class BlockStore:
    """Reads and puts blocks of one shape. No error of a put reaches the caller; no wrong block does."""

    def __init__(self, cache: NanoKVCache, shape: BlockShape, stats: ReuseStats) -> None:
        self._cache = cache
        self._shape = shape
        self._stats = stats
        self._group = max(STAGING_BYTES // shape.nbytes, 1)
        self._seldom = Seldom(logger)

    # --- read ---
    def present(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys have blocks. A cache that cannot tell has none.

        Raises:
            CacheClosed, Forked.
        """
        try:
            return self._cache.prefix_length(keys)
        except (CacheClosed, Forked):
            raise
        except NanoKVError as error:
            self._stats.reads_failed += 1
            self._complain("cannot be looked up", error)
            return 0

    def read(self, keys: Sequence[bytes], planes: torch.Tensor) -> int:
        """Read blocks into `planes` [layers, 2, heads, tokens of all blocks, head_dim]; returns how many of the first.

        Those after a block that cannot be read are undefined.
        """
        for start in range(0, len(keys), self._group):
            some = keys[start : start + self._group]
            staging = torch.empty(len(some), *self._shape.dims, dtype=self._shape.dtype, device=self._cache.device)
            got = self._read_group(some, list(staging))
            part = planes.narrow(3, start * self._shape.tokens, got * self._shape.tokens)
            torch.unflatten(part, 3, (got, self._shape.tokens)).copy_(staging[:got].permute(1, 2, 3, 0, 4, 5))
            if got < len(some):
                self._stats.reads_failed += 1
                return start + got
        return len(keys)

    def _read_group(self, keys: Sequence[bytes], blocks: list[torch.Tensor]) -> int:
        try:
            found = self._cache.get_many(keys, dsts=blocks)
        except (CacheClosed, Forked):
            raise
        except NanoKVError:  # one of them is corrupt, or no block: which one?
            return self._read_singly(keys, blocks)
        got = [*(block is None for block in found), True].index(True)
        if got < len(keys):
            self._complain("cannot be read", KeyNotFound("it was evicted since it was looked up"))
        return got

    def _read_singly(self, keys: Sequence[bytes], blocks: list[torch.Tensor]) -> int:
        for number, (key, block) in enumerate(zip(keys, blocks, strict=True)):
            try:
                self._cache.get(key, dst=block)
            except Forked:
                raise
            except NanoKVError as error:
                self._complain("cannot be read", error)
                if isinstance(error, SegmentCorrupt):
                    self._stats.blocks_damaged += 1
                    with suppress(NanoKVError):
                        self._cache.remove(key)  # else it would be found again, and never stored anew
                return number
        return len(keys)

    # --- put ---
    def put(self, keys: Sequence[bytes], layers: Sequence[Any], row: int, first: int, target: PromptTarget) -> int:
        """Put the blocks of a row that begin at its column `first`; returns how many were stored."""
        before = self._stats.blocks_stored
        for start in range(0, len(keys), self._group):
            some = keys[start : start + self._group]
            blocks = self.gather(layers, row, first + start * self._shape.tokens, len(some))
            self._count(self._put_group(some, list(blocks), target))
        return self._stats.blocks_stored - before

    @torch.no_grad()
    def gather(self, layers: Sequence[Any], row: int, first: int, count: int) -> torch.Tensor:
        """A copy of `count` blocks of a row, from its column `first` on: [count, *BlockShape.dims], not contiguous."""
        stop = first + count * self._shape.tokens
        planes = [plane[row, :, first:stop] for layer in layers for plane in (layer.keys, layer.values)]
        number, halves, heads, tokens, dim = self._shape.dims
        return torch.stack(planes).view(number, halves, heads, count, tokens, dim).movedim(3, 0)

    def _put_group(
        self, keys: Sequence[bytes], blocks: Sequence[torch.Tensor], target: PromptTarget
    ) -> list[NanoKVError | None]:
        try:
            return self._cache.put_many(keys, blocks, preferred_segment=target.preferred_segment, hold=target.hold)
        except Forked:
            raise
        except NanoKVError as error:  # of the call as a whole: the preferred rank has ended, the cache was closed
            return [error] * len(keys)

    def _count(self, errors: Sequence[NanoKVError | None]) -> None:
        for error in errors:
            if error is None:
                self._stats.blocks_stored += 1
            elif isinstance(error, DuplicateKey):
                self._stats.blocks_known += 1
            else:
                self._stats.blocks_refused += 1
                self._complain("was not stored", error)

    def _complain(self, what: str, error: NanoKVError) -> None:
        """Log an error that generation does not see, once a minute each kind; `stats` counts them."""
        line = f"a block {what}, which costs time and nothing else: {error}"
        self._seldom.warn(f"{what}: {type(error).__name__}", line)

"""CortexStream's KV cache: one arena of K and V, sequences in contiguous blocks, views without a copy.

Guarantees:
- No two sequences share a byte of the arena (`allocator.py`), and each keeps its bytes through growth, eviction,
  restoration, retention and `resize` (`extents.py`).
- A call that returns False has changed no token. With `evict` the sequence may be in host memory afterwards.
- Calls on different sequences share no lock but those of the free lists, one per order, and of the STRIPES of the
  table, while a sequence is allocated. `resize` alone stops all others.

A view is the memory itself. It shows its sequence until that moves: `append_token` may move it if it grows,
`evict_to_host`, `restore`, `retain`, `resize` and `free_for` do, and with `evict` any call that needs room. Within
`pin` it does not move.
"""

import math
from array import array
from collections import abc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TextIO

import torch

from nanokv.arguments import integer, listed, number, whole_number
from nanokv.errors import DuplicateKey, InvalidArgument, OutOfMemory
from nanokv.sequences.allocator import KVHandle
from nanokv.sequences.arena import Arena, ArenaShape, Layout
from nanokv.sequences.extents import Extents
from nanokv.sequences.sequence import Sequence, SequenceTable


# --- which tokens of a sequence stay when it is cut down to those that matter -----------------
def tokens_to_keep(keep: float, tokens: int) -> int:
    """`keep` as a number of tokens: an integer of at least 1, or a fraction of `tokens`, which is rounded up.

    Raises:
        InvalidArgument: it is neither. A fraction is a float above 0 and below 1.
    """
    count = whole_number(keep)
    if count is not None:
        return integer("keep", count, 1)
    if isinstance(keep, Real) and not isinstance(keep, bool) and 0 < keep < 1:
        return math.ceil(keep * tokens)
    raise InvalidArgument(f"keep must be a number of tokens, or a fraction between 0 and 1, not {keep!r}")


def places_to_keep(importance: abc.Sequence[float], keep: int, protect_first: int, protect_last: int) -> list[int]:
    """The places of the tokens that stay, ascending.

    The first `protect_first` and the last `protect_last` stay, and of the others the most important ones; of two that
    are equally important the later one.

    Raises:
        InvalidArgument: more tokens are protected than are to be kept.
    """
    first, last = integer("protect_first", protect_first, 0), integer("protect_last", protect_last, 0)
    tokens = len(importance)
    if keep >= tokens:
        return list(range(tokens))
    if first + last > keep:
        raise InvalidArgument(f"{first} first and {last} last tokens are protected, but only {keep} are to be kept")
    middle = sorted(range(first, tokens - last), key=lambda place: (importance[place], place), reverse=True)
    chosen = sorted(middle[: keep - first - last])
    return [*range(first), *chosen, *range(tokens - last, tokens)]


def finite(name: str, value: object) -> float:
    """A finite number, as an importance has to be."""
    found = number(name, value)
    if math.isinf(found):
        raise InvalidArgument(f"{name} must be finite, not {value!r}")
    return found


# --- CortexStream's report on a cache ---------------------------------------------------------
MB = 1 << 20  #: CortexStream's: it calls 67,108,864 floats 256 MB


def cache_stats(arena: Arena, sequences: Iterable[Sequence]) -> str:
    """The report as text. Each sequence is looked at under its lock, one after the other."""
    shape, allocator = arena.shape, arena.allocator
    used = allocator.used_blocks()
    lines = [line for sequence in sequences if (line := _line(sequence, shape.block_size))]
    return "\n".join(
        [
            "=== KVCache Statistics ===",
            "Configuration:",
            f"  Layers: {shape.num_layers}, Heads: {shape.num_heads}, HeadDim: {shape.head_dim}",
            f"  BlockSize: {shape.block_size}, TotalBlocks: {allocator.total_blocks()}",
            "",
            "Allocation State:",
            f"  Allocated sequences: {len(lines)}",
            f"  Total allocated: {used * shape.block_bytes / MB:.2f} MB",
            f"  Total free: {(allocator.total_blocks() - used) * shape.block_bytes / MB:.2f} MB",
            f"  Fragmentation: {allocator.fragmentation():.2f}",
            "",
            "Sequences:",
            *lines,
            "",
        ]
    )


def _line(sequence: Sequence, block_size: int) -> str:
    with sequence.lock:
        if not sequence.live:
            return ""
        handle = sequence.handle
        where = f"blocks [{handle.start_block_index}, +{handle.num_blocks}]" if handle else "in host memory"
        return f"  {sequence.request_id}: {sequence.tokens}/{sequence.blocks * block_size} tokens, {where}"


# --- the cache --------------------------------------------------------------------------------
class KVCache:
    """K and V of many sequences. All methods may be called by any thread at any time.

    Args:
        num_layers, num_heads, head_dim: of the model; `num_heads` are the heads of K and V.
        block_size: tokens a block.
        max_total_tokens: of all sequences together; rounded up to blocks.
        grow: `append_token` takes further blocks when those of the sequence are full. False: CortexStream's own rule,
            by which a full sequence takes no token.
        evict: when there is no room, send the least recently used sequences to host memory, and bring a sequence back
            when it is used.
        layout: the order of the arena in memory, see `arena.py`.

    Raises:
        InvalidArgument: an argument has an impossible value.

    Every method with a `request_id` raises KeyNotFound if there is no such sequence. Those that need its bytes raise
    NotReady while they are in host memory; with `evict` they bring them back.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        *,
        block_size: int = 16,
        max_total_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        grow: bool = True,
        evict: bool = False,
        layout: Layout = "token_major",
    ) -> None:
        self._shape = ArenaShape(num_layers, num_heads, head_dim, block_size, dtype, torch.device(device), layout)
        blocks = self._shape.blocks_for(integer("max_total_tokens", max_total_tokens, 1))
        self.table = SequenceTable()
        self._extents = Extents(self._shape, blocks, self.table, evict)
        self._grow = grow

    def allocate_for(self, request_id: str, initial_tokens: int, *, max_tokens: int | None = None) -> bool:
        """Blocks for a new sequence of so many tokens, whose K and V the caller writes through the views.

        A sequence of no tokens has one block. The blocks hold what was there before, zeros at first.

        Args:
            max_tokens: take blocks for so many tokens at once, so that they are appended in place.

        Returns:
            Whether there was room. If not, nothing was allocated.

        Raises:
            DuplicateKey: there is a sequence of this id.
            InvalidArgument: a number is negative, or `max_tokens` is less than `initial_tokens`.
        """
        tokens = integer("initial_tokens", initial_tokens, 0)
        reserved = tokens if max_tokens is None else integer("max_tokens", max_tokens, tokens)
        with self.table.coming(request_id):
            if request_id in self.table:
                raise DuplicateKey(f"there is a sequence {request_id!r}")
            handle = self._extents.obtain(max(self._shape.blocks_for(reserved), 1))
            if handle:
                self.table.add(Sequence(request_id, tokens, handle, self.table.now()))
            return bool(handle)

    def free_for(self, request_id: str) -> None:
        """Forget a sequence. Its blocks are free at once.

        Raises:
            ObjectPinned: a reader holds it in place.
        """
        with self.table.locked(request_id) as sequence:
            sequence.refuse_if_pinned("it cannot be freed")
            self._extents.give_back(sequence)
            self.table.remove(sequence)

    def append_token(self, request_id: str, importance: float | None = None) -> bool:
        """Room for one token more, which the caller writes through the views, at their last place.

        A full sequence takes the next block if it is free, else it moves to a larger extent.

        Args:
            importance: for `retain`; None counts as 0.0.

        Returns:
            Whether there was room. If not, the sequence is as it was.

        Raises:
            InvalidArgument: `importance` is no finite number.
            ObjectPinned: the sequence would have to move, and a reader holds it in place.
        """
        score = 0.0 if importance is None else finite("importance", importance)
        with self.table.locked(request_id) as sequence:
            if not self._extents.is_here(sequence):
                return False
            full = sequence.tokens == sequence.blocks * self._shape.block_size
            if full and not (self._grow and self._extents.grow(sequence)):
                return False
            sequence.append(score)
            return True

    def get_k_view(self, request_id: str, layer: int) -> torch.Tensor:
        """K of a sequence in a layer, [heads, tokens, head_dim], without a copy: writes go to the arena.

        Raises:
            InvalidArgument: there is no such layer.
            OutOfMemory: with `evict`, the sequence is in host memory and there is no room for it.
        """
        with self._here(request_id) as sequence:
            return self._view(self._extents.arena.k, sequence, layer)

    def get_v_view(self, request_id: str, layer: int) -> torch.Tensor:
        """V, as `get_k_view`."""
        with self._here(request_id) as sequence:
            return self._view(self._extents.arena.v, sequence, layer)

    @contextmanager
    def pin(self, request_id: str) -> Iterator[None]:
        """Hold the sequence where it is in a `with` block: its views stay true. Any number of threads may pin it.

        What would move or free it raises ObjectPinned, and an eviction takes another one.

        Raises:
            OutOfMemory: as `get_k_view`.
        """
        with self._here(request_id) as sequence:
            sequence.pins += 1
        try:
            yield
        finally:
            with sequence.lock:
                sequence.pins -= 1

    def used_tokens(self, request_id: str) -> int:
        """Tokens of a sequence."""
        with self.table.locked(request_id) as sequence:
            return sequence.tokens

    def max_allowed(self, request_id: str) -> int:
        """Tokens that its blocks hold."""
        with self.table.locked(request_id) as sequence:
            return sequence.blocks * self._shape.block_size

    def get_token_offset_in_block(self, request_id: str) -> int:
        """Where in its block the next token will be: `used_tokens` modulo `block_size`."""
        return self.used_tokens(request_id) % self._shape.block_size

    def get_handle(self, request_id: str) -> KVHandle:
        """The blocks of a sequence, until it moves; false while it is in host memory."""
        with self.table.locked(request_id) as sequence:
            return sequence.handle

    def evict_to_host(self, request_id: str) -> bool:
        """Move a sequence to host memory, pinned if the arena is on a GPU. False: it is there already.

        Raises:
            ObjectPinned: a reader holds it in place.
        """
        with self.table.locked(request_id) as sequence:
            if not sequence.handle:
                return False
            self._extents.to_host(sequence)
            return True

    def restore(self, request_id: str) -> bool:
        """Bring a sequence back from host memory. False: there is no room, and it stays there."""
        with self.table.locked(request_id) as sequence:
            sequence.last_use = self.table.now()
            return self._extents.from_host(sequence)

    def set_importance(self, request_id: str, scores: list[float] | torch.Tensor) -> None:
        """State the importance of all tokens anew, for example the attention that each has received.

        Raises:
            InvalidArgument: there is not one finite number per token.
        """
        stated = [finite("each score", score) for score in listed("scores", _as_list(scores))]
        with self.table.locked(request_id) as sequence:
            if len(stated) != sequence.tokens:
                raise InvalidArgument(f"{len(stated)} scores for {sequence.tokens} tokens")
            sequence.importance = array("d", stated)

    def retain(
        self, request_id: str, keep: float, *, protect_first: int = 4, protect_last: int = 4, release: bool = True
    ) -> list[int]:
        """Drop the least important tokens from the middle of a sequence, and move the others together, in their order.

        Of two equally important tokens the earlier one goes. K and V are moved as they are: what encodes a position in
        them, such as RoPE, encodes the place before (`token_positions`).

        Args:
            keep: how many tokens stay; a fraction between 0 and 1: of its tokens, rounded up. More than it has: all.
            protect_first, protect_last: so many tokens at the ends stay.
            release: give back blocks that are empty then. False: they are for tokens to come.

        Returns:
            The places of the tokens that stayed, ascending, counted as before the call.

        Raises:
            InvalidArgument: `keep` is no such number, or less than what is protected.
            ObjectPinned: a reader holds it in place.
        """
        with self._here(request_id) as sequence:
            sequence.refuse_if_pinned("its tokens cannot be moved")
            kept = places_to_keep(
                sequence.importance, tokens_to_keep(keep, sequence.tokens), protect_first, protect_last
            )
            self._extents.arena.compact(sequence.handle.start_block_index, kept)
            sequence.keep(kept)
            if release:
                self._extents.trim(sequence)
            return kept

    def token_positions(self, request_id: str) -> list[int]:
        """The place that each token of a sequence had when it was appended, dropped tokens counted."""
        with self.table.locked(request_id) as sequence:
            return sequence.positions.tolist()

    def resize(self, new_max_total_tokens: int) -> None:
        """Give the arena another size. All sequences keep their contents; their blocks are numbered anew, without gaps.

        Both arenas exist for a moment. A view from before is valid memory, and shows the old arena as it was: what is
        written later is in one of the two only. Every other call waits meanwhile.

        Raises:
            OutOfMemory: the sequences do not fit. With `evict`, the least recently used ones go to host memory instead.
            ObjectPinned: a reader holds a sequence in place.
        """
        blocks = self._shape.blocks_for(integer("new_max_total_tokens", new_max_total_tokens, 1))
        with self.table.all_locked() as sequences:
            self._extents.resize(sequences, blocks)

    @contextmanager
    def _here(self, request_id: str) -> Iterator[Sequence]:
        """Hold the lock of a sequence whose bytes are in the arena."""
        with self.table.locked(request_id) as sequence:
            if not self._extents.is_here(sequence):
                raise OutOfMemory(f"no room to bring sequence {request_id!r} back from host memory")
            yield sequence

    def _view(self, of: torch.Tensor, sequence: Sequence, layer: int) -> torch.Tensor:
        layer = integer("layer", layer, 0, self._shape.num_layers - 1)
        return self._extents.arena.tokens(of, sequence.handle.start_block_index, sequence.tokens)[layer]

    # --- the whole arena; a report is exact while no other thread is at work ---
    def k_block(self, layer: int, block: int) -> torch.Tensor:
        """K of a block of the arena, whosever it is: [heads, block_size, head_dim], without a copy."""
        return self._block(self._extents.arena.k, layer, block)

    def v_block(self, layer: int, block: int) -> torch.Tensor:
        """V, as `k_block`."""
        return self._block(self._extents.arena.v, layer, block)

    def get_total_allocated(self) -> int:
        """Bytes of the blocks of all sequences: K and V, all layers."""
        return self._extents.arena.allocator.used_blocks() * self._shape.block_bytes

    def get_total_free(self) -> int:
        """Bytes of the free blocks."""
        return self._extents.arena.allocator.free_blocks() * self._shape.block_bytes

    def get_num_allocated_sequences(self) -> int:
        """Sequences, those in host memory too."""
        return len(self.table)

    def is_full(self) -> bool:
        """Whether no block is free."""
        return self._extents.arena.allocator.free_blocks() == 0

    def get_fragmentation(self) -> float:
        """The fragmentation, as `KVBlockAllocator.fragmentation` has it."""
        return self._extents.arena.allocator.fragmentation()

    def dump_cache_stats(self, stream: TextIO) -> None:
        """Write CortexStream's report."""
        stream.write(cache_stats(self._extents.arena, self.table.listed()))

    def dump_block_map(self, stream: TextIO) -> None:
        """The map of blocks, as `KVBlockAllocator.dump_block_map` has it."""
        self._extents.arena.allocator.dump_block_map(stream)

    def _block(self, of: torch.Tensor, layer: int, block: int) -> torch.Tensor:
        blocks = self._extents.arena.blocks(of)
        layer, block = integer("layer", layer, 0, blocks.shape[0] - 1), integer("block", block, 0, blocks.shape[1] - 1)
        return blocks[layer, block]


def _as_list(scores: list[float] | torch.Tensor) -> list[float]:
    return scores.tolist() if isinstance(scores, torch.Tensor) else scores

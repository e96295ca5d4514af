"""Where the sequences of a cache lie: how they get blocks, grow, go to host memory and back, and move to a new arena.

Guarantees:
- A sequence is in the arena or in host memory, whole. Its old place is given up after its bytes are in the new one; if
  a copy fails, the new place is given back and the sequence stays as it was.
- A pinned sequence does not move.
- A step that finds no room changes nothing, but that `evict` may have sent sequences to host memory.

Each method is called with the lock of the sequence held, `obtain` with its stripe held, `resize` with all locks.
"""

from collections.abc import Callable

from nanokv.errors import NotReady, OutOfMemory
from nanokv.sequences.allocator import REFUSED, KVHandle
from nanokv.sequences.arena import Arena, ArenaShape, HostCopy
from nanokv.sequences.sequence import Sequence, SequenceTable


class Extents:
    """The extents of all sequences in one arena.

    Args:
        evict: send the least recently used sequences to host memory when there is no room, and bring a sequence back
            when it is used.

    Attributes:
        arena: the current one; `resize` replaces it.
    """

    def __init__(self, shape: ArenaShape, total_blocks: int, table: SequenceTable, evict: bool) -> None:
        self.arena = Arena(shape, total_blocks)
        self._table, self._evict = table, evict

    def used_by(self, sequence: Sequence) -> int:
        """Blocks that the tokens of a sequence need; at least one."""
        return max(self.arena.shape.blocks_for(sequence.tokens), 1)

    def obtain(self, blocks: int) -> KVHandle:
        """Blocks for a new sequence, or a handle that is false."""
        allocator = self.arena.allocator
        return self._with_room(blocks, lambda: allocator.allocate(blocks))

    def give_back(self, sequence: Sequence) -> None:
        """The sequence ends."""
        if sequence.handle:
            self.arena.allocator.free(sequence.handle)
        sequence.handle, sequence.host = REFUSED, None

    def grow(self, sequence: Sequence) -> bool:
        """One block more: the next one if it is free, else a larger extent, into which the tokens are copied.

        An extent that a sequence moves to is half as large again, if there is one, so that a token is copied a constant
        number of times on average.

        Raises:
            ObjectPinned: it would have to move.
        """
        blocks = sequence.blocks + 1
        handle = self.arena.allocator.extend(sequence.handle, 1) or self._larger(sequence, blocks)
        if handle:
            sequence.move_to(handle)
            return True
        return self._evict and blocks <= self.arena.allocator.total_blocks() and self._through_host(sequence, blocks)

    def trim(self, sequence: Sequence) -> None:
        """Give the blocks back that the tokens do not need."""
        sequence.move_to(self.arena.allocator.shrink(sequence.handle, self.used_by(sequence)))

    def to_host(self, sequence: Sequence) -> None:
        """Copy to host memory and give the blocks back.

        Raises:
            ObjectPinned: a reader holds it in place.
        """
        sequence.refuse_if_pinned("it cannot go to host memory")
        copy = HostCopy.of(self.arena, sequence.handle.start_block_index, sequence.tokens)
        self.arena.allocator.free(sequence.handle)
        sequence.move_to_host(copy)

    def from_host(self, sequence: Sequence) -> bool:
        """Copy back into the arena, with as many blocks as before if possible. False: no room, nothing is changed."""
        copy = sequence.host
        if copy is None:
            return True
        arena, used = self.arena, self.used_by(sequence)
        handle = self._with_room(
            used, lambda: arena.allocator.allocate(sequence.blocks) or arena.allocator.allocate(used)
        )
        if handle:
            self._filled(handle, lambda: copy.write_to(arena, handle.start_block_index))
            sequence.move_to(handle)
        return bool(handle)

    def is_here(self, sequence: Sequence) -> bool:
        """Whether the sequence is in the arena; with `evict`, after it was brought back if there is room.

        Raises:
            NotReady: it is in host memory, and only `restore` brings it back.
        """
        sequence.last_use = self._table.now()
        if sequence.host is not None and not self._evict:
            raise NotReady(f"sequence {sequence.request_id!r} is in host memory: restore it first")
        return self.from_host(sequence)

    def resize(self, sequences: list[Sequence], total_blocks: int) -> None:
        """Move the given sequences, which are all, to a new arena, packed from block 0 in the order of their blocks.

        Raises:
            ObjectPinned, OutOfMemory: as `KVCache.resize`.
        """
        for sequence in sequences:
            sequence.refuse_if_pinned("the arena cannot be resized")
        here = sorted((s for s in sequences if s.handle), key=lambda s: s.handle.start_block_index)
        if self._evict:
            for sequence in sorted(here, key=lambda s: s.last_use):
                if sum(map(self.used_by, here)) > total_blocks:
                    self.to_host(sequence)
                    here.remove(sequence)
        sizes = [sequence.blocks for sequence in here]
        if sum(sizes) > total_blocks:  # without the blocks that are held for tokens to come
            sizes = list(map(self.used_by, here))
        if sum(sizes) > total_blocks:
            raise OutOfMemory(f"the sequences have {sum(sizes)} blocks, the new arena has {total_blocks}")
        self.arena = self._packed(here, sizes, total_blocks)

    def _packed(self, sequences: list[Sequence], sizes: list[int], total_blocks: int) -> Arena:
        old, new = self.arena, Arena(self.arena.shape, total_blocks)
        handles, at = [], 0
        for sequence, size in zip(sequences, sizes, strict=True):
            handles.append(new.allocator.allocate_at(at, size))
            new.copy_from(old, sequence.handle.start_block_index, at, sequence.tokens)
            at += size
        for sequence, handle in zip(sequences, handles, strict=True):  # nothing can fail any more
            sequence.move_to(handle)
        return new

    def _larger(self, sequence: Sequence, blocks: int) -> KVHandle:
        """An extent of at least so many blocks, into which the tokens were copied; or a handle that is false."""
        sequence.refuse_if_pinned("it cannot move to a larger extent")
        allocator = self.arena.allocator
        return self._with_room(
            blocks,
            lambda: (
                allocator.extend(sequence.handle, 1)
                or self._moved(sequence, allocator.allocate(blocks + blocks // 2))
                or self._moved(sequence, allocator.allocate(blocks))
            ),
        )

    def _through_host(self, sequence: Sequence, blocks: int) -> bool:
        """A larger extent for a sequence that is itself in the way of it. Without room it stays in host memory."""
        self.to_host(sequence)
        sequence.blocks = blocks
        return self.from_host(sequence) and sequence.blocks == blocks

    def _moved(self, sequence: Sequence, handle: KVHandle) -> KVHandle:
        """The new handle, after the tokens were copied to its blocks and the old ones given back."""
        if handle:
            arena, old = self.arena, sequence.handle
            self._filled(
                handle,
                lambda: arena.copy_from(arena, old.start_block_index, handle.start_block_index, sequence.tokens),
            )
            arena.allocator.free(old)
        return handle

    def _filled(self, handle: KVHandle, fill: Callable[[], None]) -> None:
        try:
            fill()
        except BaseException:
            self.arena.allocator.free(handle)
            raise

    def _with_room(self, blocks: int, attempt: Callable[[], KVHandle]) -> KVHandle:
        """What the attempt gives; with `evict`, after as many sequences have gone as it takes."""
        if blocks > self.arena.allocator.total_blocks():
            return REFUSED
        while not (handle := attempt()):
            if not (self._evict and self._evict_one()):
                break
        return handle

    def _evict_one(self) -> bool:
        """Send the least recently used sequence to host memory that is not pinned, and that no thread works on."""
        for sequence in sorted(self._table.listed(), key=lambda s: s.last_use):
            with self._table.try_lock(sequence) as mine:
                if mine and sequence.handle and not sequence.pins:
                    self.to_host(sequence)
                    return True
        return False

"""The handles of blocks, a type per state; each is the only one of its block until a call takes the block from it.

    MutableBlock    Reset, and Partial after `init_sequence`
    CompleteBlock   Complete
    ImmutableBlock  Registered; a block may have several
    WeakBlock       Registered, or gone: holds nothing

What it guarantees: the transitions of KVBM's table, and no other. A call that is not possible raises InvalidState, with
the state that the block is in, or was when this handle lost it, and changes nothing. Transitions run under the lock of
the manager, so of two threads that commit one block, one does and the other is refused.

A handle that was dropped, by `drop`, a `with` block or by nobody referring to it, gives its block back: a mutable or
complete one to the reset pool, the last one of a registered block to the inactive pool. After `drop` no view of the
bytes may be used.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import torch

from nanokv.blocks.errors import BlockFull, BlockNotFull, BlockState, InvalidState, NoSuchAction
from nanokv.blocks.hashes import SequenceHash, TokenBlock, checked_parent, checked_salt, checked_tokens, token_block
from nanokv.blocks.leases import Held, Lease, Slot
from nanokv.blocks.views import BlockView
from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from nanokv.blocks.manager import BlockManager

ACTIONS = ("init_sequence", "add_token", "add_tokens", "commit", "register", "reset", "downgrade")


class BlockHandle(BlockView):
    """What all handles have in common. As a sequence, a block has its layers."""

    _state: BlockState

    def __init__(self, manager: "BlockManager", lease: Lease) -> None:
        self._manager, self._lease = manager, lease
        self._ended_by: str | None = None

    @property
    def state(self) -> BlockState:
        """Of the block; once the handle has lost it, the last one."""
        return self._state

    @property
    def valid(self) -> bool:
        """Whether the handle still has its block."""
        return self._ended_by is None

    @property
    def tensor(self) -> torch.Tensor:
        """The elements in place: [1, layers, outer, page_size, inner_dim]."""
        self._check("tensor")
        self._manager._check_open()
        return self._lease.tensor(self._manager.layout)

    @property
    def block_id(self) -> int:
        """The number of the block's header in the segment."""
        return self._lease.holds.place.slot

    def drop(self) -> None:
        """Give the block back. Idempotent; nothing if another call has taken the block, or the manager is closed."""
        if self._manager._cache.closed:  # or this is a fork: the block is its parent's
            self._ended_by = self._ended_by or "drop"
            return
        with self._manager._lock:
            if self._ended_by is None:
                self._ended_by = "drop"
                self._manager._drop(self._lease)

    def __enter__(self) -> Self:
        self._check("with")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def __repr__(self) -> str:
        ended = "" if self._ended_by is None else f", ended by {self._ended_by}"
        return f"<{type(self).__name__} {self.block_id}, {self._state.value}{ended}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            "the handle of a block cannot be copied or sent: clone an ImmutableBlock, or match its hash"
        )

    if not TYPE_CHECKING:  # a type checker is to see the actions of each type only

        def __getattr__(self, name: str) -> NoReturn:
            if name in ACTIONS and "_manager" in self.__dict__:
                raise NoSuchAction(name, self._state, self._ended_by)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check(self, action: str, *states: BlockState) -> None:
        """Raises InvalidState unless the handle has its block, in one of `states`; none: in any."""
        if self._ended_by is not None or (states and self._state not in states):
            raise InvalidState(action, self._state, self._ended_by)

    def _take(self, action: str) -> Lease:
        """The block goes to another handle. The caller has checked, under the lock."""
        self._ended_by = action
        return self._lease


class MutableBlock(BlockHandle):
    """A block that its holder fills with tokens, and writes the elements of, as it likes."""

    def __init__(self, manager: "BlockManager", lease: Lease) -> None:
        super().__init__(manager, lease)
        self._state = BlockState.RESET
        self._tokens: list[int] = []
        self._salt_hash = 0
        self._parent: SequenceHash | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those added so far."""
        return tuple(self._tokens)

    @property
    def remaining(self) -> int:
        """How many more tokens it takes."""
        return self._manager.block_size - len(self._tokens)

    @property
    def is_full(self) -> bool:
        """Whether it can be committed."""
        return not self.remaining

    def init_sequence(self, salt_hash: int, parent: SequenceHash | None = None) -> None:
        """Reset to Partial.

        Args:
            salt_hash: u64, of the request.
            parent: of the block before this one in the sequence; None: this is the first one.

        Raises:
            InvalidState, InvalidArgument: nothing was changed.
        """
        salt_hash, parent = checked_salt(salt_hash), checked_parent(parent)
        with self._manager._entered():
            self._check("init_sequence", BlockState.RESET)
            self._salt_hash, self._parent, self._state = salt_hash, parent, BlockState.PARTIAL

    def add_token(self, token: int) -> None:
        """Add a token, u32, to a Partial block: as `add_tokens`."""
        self._add("add_token", [token])

    def add_tokens(self, tokens: Iterable[int]) -> None:
        """Add tokens, u32 each, to a Partial block.

        Raises:
            BlockFull: there is not room for all: none was added.
            InvalidState, InvalidArgument: none was added.
        """
        self._add("add_tokens", tokens)

    def _add(self, action: str, tokens: Iterable[int]) -> None:
        checked = checked_tokens(tokens)
        with self._manager._entered():
            self._check(action, BlockState.PARTIAL)
            if len(checked) > self.remaining:
                raise BlockFull(f"{len(checked)} tokens were to be added to a block that takes {self.remaining} more")
            self._tokens += checked

    def commit(self) -> "CompleteBlock":
        """Partial to Complete; this handle ends.

        Raises:
            BlockNotFull: tokens are missing.
            InvalidState: nothing was changed.
        """
        with self._manager._entered():
            self._check("commit", BlockState.PARTIAL)
            if self.remaining:
                raise BlockNotFull(f"a block lacks {self.remaining} of {self._manager.block_size} tokens")
            block = token_block(self._tokens, self._salt_hash, self._parent)
            return self._manager._completed(self._take("commit"), block)

    def reset(self) -> None:
        """Partial to Reset: the tokens go. The handle keeps the block; the elements are as they are.

        Raises:
            InvalidState: it has no sequence.
        """
        with self._manager._entered():
            self._check("reset", BlockState.PARTIAL)
            self._tokens, self._parent, self._state = [], None, BlockState.RESET


class CompleteBlock(BlockHandle):
    """A block with all its tokens, which nobody else sees. Its elements are complete when it is registered."""

    _state = BlockState.COMPLETE

    def __init__(self, manager: "BlockManager", lease: Lease, block: TokenBlock) -> None:
        super().__init__(manager, lease)
        self.token_block = block

    @property
    def sequence_hash(self) -> SequenceHash:
        """Of its tokens and all before them."""
        return self.token_block.sequence_hash

    def register(self) -> "ImmutableBlock":
        """Complete to Registered: `BlockManager.register_block`."""
        return self._manager.register_block(self)

    def reset(self) -> MutableBlock:
        """Complete to Reset: the tokens go. This handle ends, the new one has the block.

        Raises:
            InvalidState: this handle has ended.
        """
        with self._manager._entered():
            self._check("reset")
            return self._manager._mutable(self._take("reset"))

    @property
    def _slot(self) -> Slot:
        assert isinstance(self._lease.holds, Slot)
        return self._lease.holds


class ImmutableBlock(BlockHandle):
    """A registered block. While a handle of any process holds it, it stays. Do not write to its elements."""

    _state = BlockState.REGISTERED

    @property
    def sequence_hash(self) -> SequenceHash:
        """What is in it."""
        return self._held.sequence

    @property
    def is_duplicate(self) -> bool:
        """Whether matching finds another block of this sequence hash."""
        return self._held.primary is not None

    def clone(self) -> "ImmutableBlock":
        """A further handle of the same block.

        Raises:
            InvalidState: this handle has ended.
        """
        with self._manager._entered():
            self._check("clone")
            self._held.handles += 1
            return self._manager._immutable(self._held)

    def downgrade(self) -> "WeakBlock":
        """A reference that holds nothing; this handle stays as it is.

        Raises:
            InvalidState: this handle has ended.
        """
        self._check("downgrade")
        return WeakBlock(self._manager, self.sequence_hash)

    @property
    def _held(self) -> Held:
        assert isinstance(self._lease.holds, Held)
        return self._lease.holds


class WeakBlock:
    """A sequence hash that was registered once, and may be still."""

    def __init__(self, manager: "BlockManager", sequence_hash: SequenceHash) -> None:
        self._manager, self.sequence_hash = manager, sequence_hash

    def upgrade(self) -> ImmutableBlock | None:
        """A handle of the block of this sequence hash, active or inactive; None if it is gone."""
        return self._manager._matched(self.sequence_hash)

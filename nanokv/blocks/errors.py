"""The states of a block, and the errors that only blocks raise. Bad arguments raise `nanokv.errors.InvalidArgument`."""

from enum import Enum

from nanokv.errors import NanoKVError


class BlockState(Enum):
    """The life of a block, as KVBM names it."""

    RESET = "Reset"
    PARTIAL = "Partial"
    COMPLETE = "Complete"
    REGISTERED = "Registered"


class BlockError(NanoKVError):
    """The base of the errors below."""


class InvalidState(BlockError):
    """The state of a block, or of its handle, does not have this transition. Nothing was changed.

    Attributes:
        action: what was asked for.
        state: in which the block is, or was when its handle ended.
        ended_by: the call that took the block away from this handle; None if the handle still has it.
    """

    def __init__(self, action: str, state: BlockState, ended_by: str | None = None) -> None:
        where = f"a block in state {state.value}"
        if ended_by is not None:
            where = f"this handle: {ended_by} has taken its block, which was in state {state.value}"
        super().__init__(f"{action} is not possible for {where}")
        self.action, self.state, self.ended_by = action, state, ended_by


class NoSuchAction(InvalidState, AttributeError):
    """Blocks in other states have this action, this type of handle does not: so `hasattr` is False."""


class BlockFull(BlockError):
    """More tokens than the block has room for. None was added."""


class BlockNotFull(BlockError):
    """A block that lacks tokens cannot be committed."""


class PoolInUse(BlockError):
    """`reset_inactive_pool` has emptied the inactive pool, but some blocks are still in use.

    Attributes:
        expected: the blocks of the pool. actual: those that are in the reset pool now.
    """

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"{actual} of {expected} blocks are in the reset pool: the others are in use")
        self.expected, self.actual = expected, actual


class LayoutRefused(BlockError, ValueError):
    """These bytes are no serialised layout of this version, or were damaged, or contradict themselves."""

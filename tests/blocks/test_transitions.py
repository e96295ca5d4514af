"""Every action in every state: the transitions of KVBM's table work, all others raise and change nothing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from nanokv.blocks import (
    BlockError,
    BlockFull,
    BlockManager,
    BlockNotFull,
    BlockState,
    CompleteBlock,
    ImmutableBlock,
    InvalidState,
    MutableBlock,
    NoSuchAction,
)
from nanokv.blocks.manager import ACTIONS, BlockHandle
from nanokv.errors import CacheClosed, InvalidArgument, OutOfMemory
from tests.blocks.conftest import SALT, NewPool, block_of, chain, completed, registered, taken

KVBM = "KVBM block manager"
RESET, PARTIAL, COMPLETE, REGISTERED = BlockState
FULL = "Partial, full"  # KVBM's Partial twice: commit asks whether it is full


def partial(pool: BlockManager, tokens: int = 1) -> MutableBlock:
    (block,) = taken(pool, 1)
    block.init_sequence(SALT)
    block.add_tokens(range(tokens))
    return block


MAKE: dict[object, Callable[[BlockManager], BlockHandle]] = {
    RESET: lambda pool: taken(pool, 1)[0],
    PARTIAL: partial,
    FULL: lambda pool: partial(pool, 4),
    COMPLETE: lambda pool: completed(pool, block_of(0)),
    REGISTERED: lambda pool: registered(pool, block_of(0)),
}
DO: dict[str, Callable[[Any], Any]] = {
    "init_sequence": lambda block: block.init_sequence(SALT),
    "add_token": lambda block: block.add_token(7),
    "add_tokens": lambda block: block.add_tokens([7, 8]),
    "commit": lambda block: block.commit(),
    "register": lambda block: block.register(),
    "reset": lambda block: block.reset(),
    "downgrade": lambda block: block.downgrade(),
    "drop": lambda block: block.drop(),
}
#: (state, action): the state afterwards, and the pool's blocks that are (filling, active, inactive) afterwards
ALLOWED: dict[tuple[object, str], tuple[BlockState, tuple[int, int, int]]] = {
    (RESET, "init_sequence"): (PARTIAL, (1, 0, 0)),
    (RESET, "drop"): (RESET, (0, 0, 0)),
    (PARTIAL, "add_token"): (PARTIAL, (1, 0, 0)),
    (PARTIAL, "add_tokens"): (PARTIAL, (1, 0, 0)),
    (PARTIAL, "reset"): (RESET, (1, 0, 0)),
    (PARTIAL, "drop"): (RESET, (0, 0, 0)),
    (FULL, "commit"): (COMPLETE, (1, 0, 0)),
    (FULL, "reset"): (RESET, (1, 0, 0)),
    (FULL, "drop"): (RESET, (0, 0, 0)),
    (COMPLETE, "register"): (REGISTERED, (0, 1, 0)),
    (COMPLETE, "reset"): (RESET, (1, 0, 0)),
    (COMPLETE, "drop"): (RESET, (0, 0, 0)),
    (REGISTERED, "downgrade"): (REGISTERED, (0, 1, 0)),
    (REGISTERED, "drop"): (REGISTERED, (0, 0, 1)),
}
#: refused for another reason than the state
REFUSED: dict[tuple[object, str], type[BlockError]] = {
    (PARTIAL, "commit"): BlockNotFull,
    (FULL, "add_token"): BlockFull,
    (FULL, "add_tokens"): BlockFull,
}
PAIRS = [(state, action) for state in MAKE for action in DO]


class Seen(NamedTuple):
    """All that an action could change."""

    state: BlockState
    valid: bool
    tokens: tuple[int, ...] | None
    pool: object
    sequence: object
    elements: list[float]

    @staticmethod
    def of(block: BlockHandle, pool: BlockManager) -> "Seen":
        more = [getattr(block, name, None) for name in ("tokens", "sequence_hash")]
        return Seen(block.state, block.valid, more[0], pool.status(), more[1], block.tensor.flatten().tolist())


def test_the_table_has_every_action() -> None:
    assert {*DO} == {*ACTIONS, "drop"}


@pytest.mark.surface(KVBM, "init_sequence")
@pytest.mark.surface(KVBM, "add_token")
@pytest.mark.surface(KVBM, "add_tokens")
@pytest.mark.surface(KVBM, "commit")
@pytest.mark.surface(KVBM, "register")
@pytest.mark.surface(KVBM, "reset")
@pytest.mark.parametrize(("state", "action"), [pair for pair in PAIRS if pair in ALLOWED])
def test_a_transition_of_the_table_works(new_pool: NewPool, state: object, action: str) -> None:
    pool = new_pool(4)
    block = MAKE[state](pool)
    got = DO[action](block)
    after = got if isinstance(got, BlockHandle) else block
    expected, (filling, active, inactive) = ALLOWED[state, action]
    if action != "drop":
        kinds = {RESET: MutableBlock, PARTIAL: MutableBlock, COMPLETE: CompleteBlock, REGISTERED: ImmutableBlock}
        assert after.state is expected and after.valid and type(after) is kinds[expected]
    status = pool.status()
    assert (status.filling, status.active, status.inactive) == (filling, active, inactive)
    assert status.reset == status.total - filling - active - inactive


@pytest.mark.parametrize(("state", "action"), [pair for pair in PAIRS if pair not in ALLOWED])
def test_any_other_action_raises_and_changes_nothing(new_pool: NewPool, state: object, action: str) -> None:
    pool = new_pool(4)
    block = MAKE[state](pool)
    before = Seen.of(block, pool)
    with pytest.raises(REFUSED.get((state, action), InvalidState)) as refused:
        DO[action](block)
    if isinstance(refused.value, InvalidState):
        assert refused.value.action == action
        assert refused.value.state is block.state and refused.value.ended_by is None
        assert block.state.value in str(refused.value)
    assert Seen.of(block, pool) == before


@pytest.mark.parametrize("action", [*ACTIONS, "tensor", "with"])
@pytest.mark.parametrize(
    ("state", "ended_by"),
    [
        (RESET, "drop"),
        (PARTIAL, "drop"),
        (FULL, "commit"),
        (COMPLETE, "register"),
        (COMPLETE, "reset"),
        (COMPLETE, "drop"),
        (REGISTERED, "drop"),
    ],
)
def test_a_handle_that_lost_its_block_raises(new_pool: NewPool, state: object, ended_by: str, action: str) -> None:
    pool = new_pool(4)
    block: Any = MAKE[state](pool)
    was = block.state
    heir = DO[ended_by](block)
    before = pool.status()
    do = DO | {"tensor": lambda gone: gone.tensor, "with": lambda gone: gone.__enter__()}
    with pytest.raises(InvalidState, match=was.value) as refused:
        do[action](block)
    assert (refused.value.state, refused.value.ended_by) == (was, ended_by)
    assert not block.valid and pool.status() == before
    block.drop()  # does nothing
    assert pool.status() == before
    del heir


def test_an_action_of_another_state_is_no_attribute(new_pool: NewPool) -> None:
    block = completed(new_pool(4), block_of(0))
    assert not hasattr(block, "commit") and hasattr(block, "register") and not hasattr(block, "nonsense")
    with pytest.raises(NoSuchAction, match="commit is not possible for a block in state Complete"):
        DO["commit"](block)


@pytest.mark.parametrize("bad", [-1, 1 << 32, 1.5, "7", None, True])
def test_a_token_is_a_u32(new_pool: NewPool, bad: Any) -> None:
    block = partial(new_pool(4))
    with pytest.raises(InvalidArgument):
        block.add_token(bad)
    with pytest.raises(InvalidArgument):
        block.add_tokens([1, bad])
    assert block.tokens == (0,)


@pytest.mark.parametrize("salt", [-1, 1 << 64, "salt", None])
def test_a_salt_hash_is_a_u64(new_pool: NewPool, salt: Any) -> None:
    (block,) = taken(new_pool(4), 1)
    with pytest.raises(InvalidArgument):
        block.init_sequence(salt)
    with pytest.raises(InvalidArgument):
        block.init_sequence(1, parent=salt or 7)  # type: ignore[arg-type]
    assert block.state is RESET


def test_add_tokens_adds_all_or_none(new_pool: NewPool) -> None:
    block = partial(new_pool(4))
    with pytest.raises(BlockFull, match="takes 3 more"):
        block.add_tokens(range(4))
    assert block.tokens == (0,) and block.remaining == 3 and not block.is_full
    block.add_tokens(range(3))
    assert block.is_full


def test_the_hash_of_a_block_is_that_of_its_sequence(new_pool: NewPool) -> None:
    pool, parent = new_pool(4), None
    for expected in chain(3):
        (block,) = taken(pool, 1)
        block.init_sequence(SALT, parent)
        for token in expected.tokens:
            block.add_token(token)
        complete = block.commit()
        assert complete.token_block == expected and complete.sequence_hash == expected.sequence_hash
        parent = complete.register().sequence_hash


def test_a_block_that_was_reset_starts_anew(new_pool: NewPool) -> None:
    pool = new_pool(4)
    complete = completed(pool, chain(2)[1])
    again = complete.reset()
    assert again.tokens == () and again.state is RESET and again.block_id == complete.block_id
    again.init_sequence(SALT)
    again.add_tokens(block_of(5).tokens)
    assert again.commit().sequence_hash == block_of(5).sequence_hash


def test_registration_keeps_the_bytes(new_pool: NewPool) -> None:
    pool = new_pool(4)
    complete = completed(pool, block_of(1))
    expected = torch.arange(complete.tensor.numel(), dtype=torch.float32).reshape(complete.tensor.shape)
    complete.tensor.copy_(expected)
    block = complete.register()
    assert torch.equal(block.tensor, expected)
    assert torch.equal(pool.cache.get(pool.keys.of(block.sequence_hash)), expected)  # an object like any other


def test_a_registration_without_room_keeps_the_block(new_pool: NewPool) -> None:
    pool = new_pool(2, patience=0.0)
    mine = completed(pool, block_of(0), 3.0)
    for key in ("foreign", "foreign too"):
        pool.cache.put(key, torch.zeros(1))
    with pytest.raises(OutOfMemory):
        mine.register()
    assert mine.valid and pool.cache.exists_many(["foreign", "foreign too"]) == [True, True]
    pool.cache.remove("foreign")
    assert float(mine.register().tensor.mean()) == 3.0


def test_the_handles_of_a_closed_manager(new_pool: NewPool) -> None:
    pool = new_pool(4)
    blocks = [make(pool) for make in (MAKE[PARTIAL], MAKE[COMPLETE])]
    pool.close()
    for block, action in zip(blocks, ("add_token", "register"), strict=True):
        with pytest.raises(CacheClosed):
            DO[action](block)
        with pytest.raises(CacheClosed):
            _ = block.tensor
        block.drop()
    pool.close()

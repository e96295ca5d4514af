"""A pool against a model: random calls, by hypothesis. The model is lists and dicts, and knows the exact LRU order."""

import gc
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import nanokv
from nanokv.blocks import BlockManager, CompleteBlock, ImmutableBlock, MutableBlock, PoolInUse
from nanokv.blocks.manager import PoolStatus
from nanokv.fsck import check_cache
from tests.blocks.conftest import LAYOUT, PAGE, block_of

BLOCKS, NUMBERS = 6, 5
NUMBER = st.integers(0, NUMBERS - 1)
INDEX = st.integers(0, 1 << 16)


class PoolModel(RuleBasedStateMachine):
    """The state that the calls should lead to."""

    policy: Any = "allow"

    def __init__(self) -> None:
        super().__init__()
        (self.cache,) = nanokv.local_world(1, (BLOCKS + 1) * PAGE, page_bytes=PAGE, evict=False)
        self.pool = BlockManager(self.cache, LAYOUT, duplication=self.policy)
        self.mutable: list[MutableBlock] = []
        self.complete: list[tuple[CompleteBlock, int, float]] = []
        self.handles: list[tuple[ImmutableBlock, int, float, bool]] = []  # number, content, duplicate
        self.content: dict[int, float] = {}  # of registered blocks, the primaries
        self.inactive: list[int] = []  # the numbers, least recently used first
        self.stamp = 0.0

    # --- what follows from the model's state ---
    @property
    def in_use(self) -> set[int]:
        """Numbers whose primary is active."""
        return {number for _, number, _, _ in self.handles}

    @property
    def duplicates(self) -> int:
        return sum(duplicate for *_, duplicate in self.handles)

    @property
    def reset(self) -> int:
        held = len(self.mutable) + len(self.complete) + self.duplicates
        return BLOCKS - held - len(self.content)

    def use(self, number: int) -> None:
        if number in self.inactive:
            self.inactive.remove(number)

    def released(self, number: int) -> None:
        if number not in self.in_use:
            self.inactive.append(number)

    # --- the calls ---
    @rule(count=st.integers(0, BLOCKS))
    def allocate(self, count: int) -> None:
        got = self.pool.allocate_blocks_with_evictions(count)
        if count > self.reset + len(self.inactive):
            assert got is None
            return
        assert got is not None
        gone = [self.inactive.pop(0) for _ in range(max(count - self.reset, 0))]
        for number in gone:
            del self.content[number]
        self.mutable += got[0]
        assert got[1] == [block_of(number).sequence_hash for number in gone] and len(got[0]) == count

    @precondition(lambda self: self.mutable)
    @rule(at=INDEX, number=NUMBER)
    def complete_one(self, at: int, number: int) -> None:
        block = self.mutable.pop(at % len(self.mutable))
        self.stamp += 1
        block.tensor.fill_(self.stamp)
        block.init_sequence(block_of(number).salt_hash)
        block.add_tokens(block_of(number).tokens)
        self.complete.append((block.commit(), number, self.stamp))

    @precondition(lambda self: self.complete)
    @rule(at=INDEX)
    def reset_one(self, at: int) -> None:
        block, _, _ = self.complete.pop(at % len(self.complete))
        self.mutable.append(block.reset())

    @precondition(lambda self: self.complete)
    @rule(at=INDEX)
    def register(self, at: int) -> None:
        block, number, stamp = self.complete.pop(at % len(self.complete))
        known = number in self.content
        self.use(number)
        duplicate = known and self.policy == "allow"
        got = block.register()
        self.handles.append((got, number, stamp if duplicate or not known else self.content[number], duplicate))
        self.content.setdefault(number, stamp)
        assert got.is_duplicate == duplicate and got.sequence_hash == block_of(number).sequence_hash

    @rule(numbers=st.lists(NUMBER, max_size=4))
    def match(self, numbers: list[int]) -> None:
        got = self.pool.match_blocks([block_of(number).sequence_hash for number in numbers])
        prefix = next((at for at, number in enumerate(numbers) if number not in self.content), len(numbers))
        assert len(got) == prefix
        self.matched(list(zip(got, numbers, strict=False)))

    @rule(numbers=st.lists(NUMBER, max_size=4))
    def scatter(self, numbers: list[int]) -> None:
        got = self.pool.match_blocks_scattered([block_of(number).sequence_hash for number in numbers])
        assert [block is not None for block in got] == [number in self.content for number in numbers]
        self.matched([(block, number) for block, number in zip(got, numbers, strict=True) if block is not None])

    def matched(self, found: list[tuple[ImmutableBlock, int]]) -> None:
        for block, number in found:
            self.use(number)
            self.handles.append((block, number, self.content[number], False))

    @rule(number=NUMBER)
    def touch(self, number: int) -> None:
        assert self.pool.touch_blocks([block_of(number).sequence_hash]) == (number in self.content)
        if number in self.inactive:
            self.use(number)
            self.inactive.append(number)

    @precondition(lambda self: self.handles)
    @rule(at=INDEX, by_reference=st.booleans())
    def drop_handle(self, at: int, by_reference: bool) -> None:
        block, number, _, _ = self.handles.pop(at % len(self.handles))
        if by_reference:
            del block
            gc.collect(0)
            self.pool.status()  # the next call gives it back
        else:
            block.drop()
        self.released(number)

    @precondition(lambda self: self.mutable or self.complete)
    @rule(at=INDEX)
    def drop_unregistered(self, at: int) -> None:
        if self.complete and (not self.mutable or at % 2):
            self.complete.pop()[0].drop()
        else:
            self.mutable.pop().drop()

    @rule()
    def reset_inactive_pool(self) -> None:
        gone, self.inactive = self.inactive, []
        for number in gone:
            del self.content[number]
        try:
            assert self.pool.reset_inactive_pool() == len(gone) and self.reset == BLOCKS
        except PoolInUse as refused:
            assert refused.actual == self.reset < BLOCKS

    # --- what must be true after each call ---
    @invariant()
    def the_status_is_the_models(self) -> None:
        filling, active = len(self.mutable) + len(self.complete), len(self.in_use) + self.duplicates
        assert self.pool.status() == PoolStatus(BLOCKS, self.reset, filling, active, len(self.inactive))
        assert self.pool.available_blocks == self.reset + len(self.inactive)

    @invariant()
    def every_handle_has_its_bytes(self) -> None:
        for block, _, stamp, _ in self.handles:
            assert (block.tensor == stamp).all()
        for complete, _, stamp in self.complete:
            assert (complete.tensor == stamp).all()

    def teardown(self) -> None:
        self.pool.close()
        self.cache.flush()
        breaches = check_cache([self.cache]).breaches
        self.cache.close()
        assert not breaches


class RejectingPoolModel(PoolModel):
    """The same with the policy that keeps no duplicates."""

    policy = "reject"


TestAllow = PoolModel.TestCase
TestReject = RejectingPoolModel.TestCase

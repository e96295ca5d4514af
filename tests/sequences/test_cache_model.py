"""The cache against a dict of lists: any order of calls, and every sequence has the tokens that it should have."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanokv.errors import OutOfMemory
from nanokv.sequences.cache import places_to_keep
from tests.sequences.contents import BLOCK, DIM, HEADS, LAYERS, add, expected, small_cache, write

NAMES = "abcdef"
BLOCK_BYTES = 2 * LAYERS * HEADS * BLOCK * DIM * 4


class CacheMachine(RuleBasedStateMachine):
    """Tokens are marked with numbers that are never used again."""

    @initialize(blocks=st.integers(1, 24), layout=st.sampled_from(["token_major", "head_major"]), evict=st.booleans())
    def start(self, blocks: int, layout: str, evict: bool) -> None:
        self.cache, self.blocks, self.evict = small_cache(blocks, layout=layout, evict=evict), blocks, evict
        self.marks: dict[str, list[int]] = {}
        self.scores: dict[str, list[float]] = {}
        self.places: dict[str, list[int]] = {}
        self.next_mark, self.appended = 1, dict[str, int]()

    def new_marks(self, count: int) -> list[int]:
        self.next_mark += count
        return list(range(self.next_mark - count, self.next_mark))

    def drawn(self, data: Any) -> str:
        return str(data.draw(st.sampled_from(sorted(self.marks))))

    def here(self, name: str) -> bool:
        """Whether its bytes can be used: with `evict` a use brings them back, if there is room."""
        if self.evict and not self.cache.get_handle(name):
            self.cache.restore(name)
        return bool(self.cache.get_handle(name))

    def was_refused_for(self, blocks: int) -> None:
        """A refusal is true: with `evict` all others could have gone, else no run of free blocks is long enough."""
        if self.evict:
            assert blocks > self.blocks
        else:
            free = self.cache.get_total_free() // BLOCK_BYTES
            assert free < blocks or self.cache.get_fragmentation() > 0

    @rule(name=st.sampled_from(NAMES), tokens=st.integers(0, 30))
    def allocate(self, name: str, tokens: int) -> None:
        if name in self.marks:
            return
        if self.cache.allocate_for(name, tokens):
            marks = self.new_marks(tokens)
            if marks:
                write(self.cache, name, marks)
            self.marks[name], self.scores[name] = marks, [0.0] * tokens
            self.places[name], self.appended[name] = list(range(tokens)), tokens
        else:
            self.was_refused_for(max(-(-tokens // BLOCK), 1))
            assert self.cache.get_num_allocated_sequences() == len(self.marks)

    @precondition(lambda self: self.marks)
    @rule(data=st.data(), count=st.integers(1, 9), score=st.sampled_from([None, 0.5, 2.0, -1.0]))
    def append(self, data: Any, count: int, score: float | None) -> None:
        name = self.drawn(data)
        if not self.here(name):
            return
        for _ in range(count):
            full = len(self.marks[name]) == self.cache.max_allowed(name)
            if not self.cache.append_token(name, score):
                assert full
                if self.evict:
                    self.was_refused_for(len(self.marks[name]) // BLOCK + 1)
                return
            self.marks[name] += self.new_marks(1)
            write(self.cache, name, self.marks[name][-1:])
            self.scores[name].append(score or 0.0)
            self.places[name].append(self.appended[name])
            self.appended[name] += 1

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        name = self.drawn(data)
        self.cache.free_for(name)
        del self.marks[name]

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def evict_one(self, data: Any) -> None:
        name = self.drawn(data)
        here = bool(self.cache.get_handle(name))
        assert self.cache.evict_to_host(name) == here
        assert not self.cache.get_handle(name)

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def restore(self, data: Any) -> None:
        name = self.drawn(data)
        restored = self.cache.restore(name)
        assert restored == bool(self.cache.get_handle(name))
        if not restored:
            self.was_refused_for(max(-(-len(self.marks[name]) // BLOCK), 1))

    @precondition(lambda self: self.marks)
    @rule(data=st.data(), first=st.integers(0, 3), last=st.integers(0, 3), release=st.booleans())
    def retain(self, data: Any, first: int, last: int, release: bool) -> None:
        name = self.drawn(data)
        if not self.here(name):
            return
        keep = data.draw(st.integers(max(first + last, 1), max(first + last, 1) + len(self.marks[name])))
        kept = places_to_keep(self.scores[name], keep, first, last)
        assert self.cache.retain(name, keep, protect_first=first, protect_last=last, release=release) == kept
        self.marks[name] = [self.marks[name][place] for place in kept]
        self.scores[name] = [self.scores[name][place] for place in kept]
        self.places[name] = [self.places[name][place] for place in kept]

    @rule(blocks=st.integers(1, 40))
    def resize(self, blocks: int) -> None:
        here = [name for name in self.marks if self.cache.get_handle(name)]
        needed = sum(max(-(-len(self.marks[name]) // BLOCK), 1) for name in here)
        try:
            self.cache.resize(blocks * BLOCK)
        except OutOfMemory:
            assert needed > blocks and not self.evict
            return
        assert needed <= blocks or self.evict
        self.blocks = blocks

    @invariant()
    def every_sequence_has_its_tokens_and_its_own_blocks(self) -> None:
        if not hasattr(self, "cache"):
            return
        taken: set[int] = set()
        for name, marks in self.marks.items():
            assert self.cache.used_tokens(name) == len(marks)
            assert self.cache.token_positions(name) == self.places[name]
            handle = self.cache.get_handle(name)
            assert taken.isdisjoint(handle.block_indices)
            taken.update(handle.block_indices)
            if not handle:
                continue
            assert handle.num_blocks * BLOCK == self.cache.max_allowed(name) >= len(marks)
            for layer, values in enumerate(expected(marks)):  # through the blocks, which use nothing
                for token in range(len(marks)):
                    block, offset = handle.start_block_index + token // BLOCK, token % BLOCK
                    assert (self.cache.k_block(layer, block)[:, offset] == values[:, token]).all()
                    assert (self.cache.v_block(layer, block)[:, offset] == -values[:, token]).all()
        assert self.cache.get_total_allocated() == len(taken) * BLOCK_BYTES
        assert self.cache.get_total_free() == (self.blocks - len(taken)) * BLOCK_BYTES

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for name in self.marks:
            self.cache.free_for(name)
        add(self.cache, "all", self.new_marks(self.blocks * BLOCK))
        assert self.cache.is_full()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30)

"""Random histories of two engines over one world, against a model: which blocks must be found, and with which bytes."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from vllm.v1.kv_offload.base import LookupResult, ReqContext

from tests.integrations.vllm_offload.histories import ENGINES, TwoEngines, case
from tests.integrations.vllm_offload.parts import Tiered, keys_of, right

BLOCKS = 12
SOME = st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=5, unique=True)


class Histories(TwoEngines):
    """Two engines compute, load, forget and lose blocks; each has room for six, the world for as many as `pages` say.

    The model is the set of blocks that were stored and not removed. In a world with room for all, a look-up finds all
    of those. Beside them it may find only what is in the engine's own primary tier. In a small one it may miss some.
    """

    pages = 4 * BLOCKS
    is_exact = True

    @initialize(spread=st.booleans())
    def begin(self, spread: bool) -> None:
        """Start the engines."""
        store: dict[str, Any] = {"size": self.pages * 8192, "page_bytes": 8192, "ranks": 2, "spread": spread}
        self.engines = [Tiered(chunks=6, name=self.name, **store) for _ in range(2)]
        self.stored: set[int] = set()
        self.contexts = [engine.request() for engine in self.engines]

    @rule(engine=ENGINES, numbers=SOME)
    def compute(self, engine: int, numbers: list[int]) -> None:
        """Some blocks are computed."""
        new = self.engines[engine].compute(keys_of(numbers))
        self.stored |= {number for number, key in zip(numbers, keys_of(numbers), strict=True) if key in new}

    @rule(engine=ENGINES, numbers=SOME)
    def load(self, engine: int, numbers: list[int]) -> None:
        """A request wants some blocks: those that are there have the right bytes."""
        one, context = self.engines[engine], self.engines[engine].request()
        primary = {n for n in numbers if self._in_primary(one, n, context)}
        found = right(one, keys_of(numbers), one.load(keys_of(numbers)))
        must = {number for number in numbers if number in self.stored}
        got = {number for number, there in zip(numbers, found, strict=True) if there}
        assert got <= must | primary
        assert must <= got or not self.is_exact

    def _in_primary(self, engine: Tiered, number: int, context: ReqContext) -> bool:
        return bool(engine.primary.lookup(keys_of([number])[0], context) is LookupResult.HIT)

    @rule(engine=ENGINES, numbers=SOME)
    def lose(self, engine: int, numbers: list[int]) -> None:
        """Blocks go from NanoKV."""
        self.engines[engine].tier.joined.cache.remove_many(keys_of(numbers))
        self.stored -= set(numbers)

    @rule(engine=ENGINES, numbers=SOME, gone=SOME)
    def lose_before_load(self, engine: int, numbers: list[int], gone: list[int]) -> None:
        """Blocks go between a look-up and the load."""
        one = self.engines[engine]
        context = one.request()
        for key in keys_of(numbers):
            one.manager.lookup(key, context)
        one.tier.joined.cache.remove_many(keys_of(gone))
        self.stored -= set(gone)
        right(one, keys_of(numbers), one.load(keys_of(numbers), context))
        one.manager.on_request_finished(context)
        one.settle()

    @rule(engine=ENGINES)
    def forget(self, engine: int) -> None:
        """The primary tier is emptied."""
        self.engines[engine].forget()

    @invariant()
    def nothing_is_under_way(self) -> None:
        """No job, and no row of the primary tier, is held for ever."""
        for engine in self.engines:
            assert not engine.manager.has_pending_work()
            assert engine.primary._num_write_pending_chunks == 0


class SmallWorld(Histories):
    """The world evicts."""

    pages = 5
    is_exact = False


TestLargeWorld = case(Histories, 60, 30)
TestSmallWorld = case(SmallWorld, 60, 30)

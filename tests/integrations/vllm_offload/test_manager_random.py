"""Random histories of two engines over one world, against a model: which chunks must be found, and with which bytes."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from vllm.v1.kv_offload.base import OffloadKey

from nanokv.integrations.vllm_offload import manager
from tests.integrations.vllm_offload.histories import ENGINES, TwoEngines, case
from tests.integrations.vllm_offload.offloaded import Offloaded
from tests.integrations.vllm_offload.parts import keys_of, step_of
from tests.support.faults import Limits

KEYS = keys_of(range(8), 0) + keys_of(range(4), 1)  # those of group 0 first, as vLLM names them
SOME = st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=6, unique=True).map(
    lambda places: [KEYS[place] for place in sorted(places)]
)


class Histories(TwoEngines):
    """Two engines of two workers store and load chunks, and reset; chunks go from NanoKV.

    The model: per number of resets of an engine, the chunks that were stored and did not go. In a world with room for
    all, an engine finds exactly those of its own number. In a small one it may miss some.
    """

    pages = 4 * len(KEYS) * 2
    is_exact = True

    @initialize(per_chunk=st.integers(1, 3))
    def begin(self, per_chunk: int) -> None:
        """Start the engines."""
        store: dict[str, Any] = {"size": self.pages * 1024, "page_bytes": 1024, "ranks": 6}
        self.engines = [Offloaded(workers=2, per_chunk=per_chunk, name=self.name, **store) for _ in range(2)]
        self.stored: set[tuple[int, OffloadKey]] = set()
        self.resets = [0, 0]

    @rule(engine=ENGINES, keys=SOME, success=st.booleans())
    def compute(self, engine: int, keys: list[OffloadKey], success: bool) -> None:
        """Chunks are computed. If the store fails, none of the new ones is there."""
        new = self.engines[engine].compute(keys, success)
        if success:
            self.stored |= {(self.resets[engine], key) for key in new}
        elif self.is_exact:
            assert not any((self.resets[engine], key) in self.stored for key in new)

    @rule(engine=ENGINES, keys=SOME)
    def load(self, engine: int, keys: list[OffloadKey]) -> None:
        """A request wants chunks: those that are there have the right bytes."""
        found = self.engines[engine].load(keys)
        must = [(self.resets[engine], key) in self.stored for key in keys]
        assert found == must if self.is_exact else all(there <= may for there, may in zip(found, must, strict=True))

    @rule(engine=ENGINES, keys=SOME)
    def lose(self, engine: int, keys: list[OffloadKey]) -> None:
        """Chunks go from NanoKV: one worker's part of each."""
        manager = self.engines[engine].manager
        gone = manager.world.remove_many([manager.objects(key)[0] for key in keys])
        assert not any(gone) or self.stored
        self.stored -= {(self.resets[engine], key) for key, went in zip(keys, gone, strict=True) if went}

    @rule(engine=ENGINES, keys=SOME)
    def reset_while_loading(self, engine: int, keys: list[OffloadKey]) -> None:
        """A reset comes between a look-up and the copies of its load: these still get their bytes."""
        one = self.engines[engine]
        context = one.request()
        hits = [key for key, found in zip(keys, one.find(keys, context), strict=True) if found.name == "HIT"]
        spec = one.manager.prepare_load(hits, context)
        one.manager.reset_cache()
        self.resets[engine] += 1
        self.stored = set()
        if hits:
            into, job = one.submit_load(hits, spec)
            assert all(one.end([job]))
            for key, blocks in into.items():
                one.check(key, blocks)
        step_of(one.manager)  # until the next step they are there for the other engine
        assert not any(one.load(keys))

    @invariant()
    def nothing_is_held(self) -> None:
        """No request holds anything."""
        for engine in self.engines:
            manager = engine.manager
            assert not manager.pins.found and not manager.pins.loading and not manager.storing


class SmallWorld(Histories):
    """The world evicts."""

    pages = 9
    is_exact = False


@pytest.fixture(autouse=True)
def leave(limits: Limits) -> None:
    """What a reset leaves goes at the next one."""
    limits(manager, LEAVE=0.0)


TestLargeWorld = case(Histories, 40, 25)
TestSmallWorld = case(SmallWorld, 40, 25)

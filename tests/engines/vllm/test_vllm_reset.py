"""`reset_prefix_cache(reset_connector=True)`: when it returns, nothing that was stored before is found anywhere."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.process import EngineProcess, connector
from tests.engines.vllm.conftest import BLOCK, PROMPTS, TOKENS, Start, whole_blocks

EACH = slice(0, 24, 4)  #: prompts that share no prefix
FEW = PROMPTS[EACH]
NOTHING = [0] * len(FEW)


@pytest.fixture
def two(model: Path) -> Iterator[Callable[[int], EngineProcess]]:
    """Engines that store in a world of two ranks, each in its own segment, and load from both."""
    name = f"test-vllm-reset-{os.getpid()}"
    with ExitStack() as stack:

        def start(rank: int) -> EngineProcess:
            transfer = connector("kv_both", name=name, world_size=2, rank=rank, target=rank, size="64MiB")
            engine = EngineProcess(model, transfer)
            stack.callback(engine.close)
            return engine

        yield start


def answer(engine: EngineProcess) -> tuple[list[list[int]], list[int]]:
    """The tokens after FEW, asked one by one, and how many tokens of each were loaded or in the engine's own cache."""
    assert engine.ask("forget")
    found = [engine.ask("generate", prompts=[prompt], tokens=TOKENS) for prompt in FEW]
    return [each["tokens"][0] for each in found], [each["cached"][0] for each in found]


def test_it_is_done_also_where_engines_idle_or_are_dead(
    two: Callable[[int], EngineProcess], expected: list[list[int]]
) -> None:
    idle, asked = two(0), two(1)
    right = expected[EACH]
    assert answer(idle)[0] == right
    assert answer(asked) == (right, whole_blocks(FEW))
    assert idle.ask("alter") + asked.ask("alter") > 0  # as if they were of other weights
    assert all(mine != theirs for mine, theirs in zip(answer(asked)[0], right, strict=True)), "the control"
    assert asked.ask("reset_connector")
    first = asked.ask("generate", prompts=FEW, tokens=TOKENS)
    assert (first["tokens"], first["cached"]) == (right, NOTHING)  # the other engine has had no step meanwhile
    assert answer(idle) == (right, whole_blocks(FEW))  # what was stored anew
    assert asked.ask("alter") + idle.ask("alter") > 0
    idle.kill()
    assert asked.ask("reset_connector")
    last = asked.ask("generate", prompts=FEW, tokens=TOKENS)
    assert (last["tokens"], last["cached"]) == (right, NOTHING)


def test_an_engine_that_comes_later_has_it_too(two: Callable[[int], EngineProcess], expected: list[list[int]]) -> None:
    first, second = two(0), two(1)
    right = expected[EACH]
    for _ in range(2):
        assert second.ask("reset_connector")
    assert answer(first)[0] == right
    second.kill()
    assert answer(two(1)) == (right, whole_blocks(FEW))


def test_tensor_parallel_workers_and_an_engine_alone(model: Path, start: Start, expected: list[list[int]]) -> None:
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with EngineProcess(model, connector("kv_both", size="64MiB"), environment, tensor_parallel_size=2) as several:
        for engine in (several, start("kv_both")):
            tokens, _ = answer(engine)
            assert answer(engine) == (tokens, whole_blocks(FEW))
            assert engine.ask("alter") > 0
            assert engine.ask("reset_connector")
            found = engine.ask("generate", prompts=FEW, tokens=TOKENS)
            assert (found["tokens"], found["cached"]) == (tokens, NOTHING)
            assert answer(engine) == (tokens, whole_blocks(FEW))
        assert tokens == expected[EACH]


@pytest.mark.parametrize("load", ["async", "layer"])
def test_requests_that_run_meanwhile_store_nothing(start: Start, expected: list[list[int]], load: str) -> None:
    """Neither in the step that was planned before the reset, nor in later ones: they compute on what was before."""
    chunks = {"max_num_batched_tokens": 64}
    engine, prompt = start("kv_both", chunks, load=load), PROMPTS[0]
    for first in (0, 1, 3):  # the first chunk, one in the middle, one after more than a block was generated
        assert engine.ask("forget")
        assert engine.ask("reset_connector")
        engine.ask("reset_connector_in_step", after=first)
        found = engine.ask("generate", prompts=[prompt], tokens=64)
        assert found["tokens"][0][:TOKENS] == expected[0]
        assert (found["cached"], engine.ask("stats")[0]["ready"]) == ([0], 0)
    assert "the cache was reset after their request had begun" in engine.log()
    assert engine.ask("forget")
    assert engine.ask("generate", prompts=[prompt], tokens=1)["tokens"] == [expected[0][:1]]
    assert engine.ask("stats")[0]["ready"] == len(prompt) // BLOCK


def test_requests_that_are_computed_anew_are_stored_anew(start: Start, expected: list[list[int]]) -> None:
    engine, prompt = start("kv_both"), PROMPTS[0]
    found = engine.ask("generate", prompts=[prompt], tokens=TOKENS, reset_after=3)
    assert (found["tokens"], found["cached"]) == ([expected[0]], [0])
    assert engine.ask("preemptions") == 1
    assert engine.ask("forget")
    assert engine.ask("generate", prompts=[prompt], tokens=TOKENS)["cached"] == whole_blocks([prompt])

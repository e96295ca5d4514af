"""Real vLLM engines on a CPU with `OffloadingConnector`: every token is that of an engine that offloads nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.__main__ import make_prompts
from nanokv.bench.vllm.model import make_model
from nanokv.bench.vllm.process import EngineProcess
from nanokv.integrations.joining import join, parse
from tests.integrations.vllm_offload.parts import MODULE

TIER, MANAGER = "vLLM SecondaryTierManager", "vLLM OffloadingManager"
ROOT = Path(__file__).parents[3]
BLOCK = 32  #: tokens of a block of these engines
PROMPTS = make_prompts(12, seed=1)
WHOLE = [len(prompt) // BLOCK * BLOCK for prompt in PROMPTS]  #: tokens of each that can be loaded
STORE = {"name": "engines", "size": "64MiB", "page_bytes": 4096, "ranks": 8}
Start = Callable[..., EngineProcess]


def offloading(extra: dict[str, Any]) -> dict[str, Any]:
    """A `kv_transfer_config`."""
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def with_spec(per_chunk: int = 1, **settings: Any) -> dict[str, Any]:
    """NanoKV's own spec."""
    given = {f"nanokv.{name}": value for name, value in (STORE | settings).items()}
    spec = {"spec_name": "NanoKVOffloadingSpec", "spec_module_path": MODULE, "blocks_per_chunk": per_chunk}
    return offloading(spec | given)


def with_tier(primary: int, **settings: Any) -> dict[str, Any]:
    """vLLM's tiers, with NanoKV below a primary tier of so many bytes."""
    tier = {"type": "NanoKVTier", "module_path": MODULE} | STORE | settings
    path = "tests.integrations.vllm_offload.cpu_tiers"
    spec = {"spec_name": "CPUTieringSpec", "spec_module_path": path, "cpu_bytes_to_use": primary}
    return offloading(spec | {"secondary_tiers": [tier]})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """The tokens after each prompt, by an engine that offloads nothing."""
    with EngineProcess(model) as engine:
        tokens: list[list[int]] = generate(engine)["tokens"]
    return tokens


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """start(transfer, **arguments of vLLM) -> an engine, which starts in the background; closed after the test."""
    with ExitStack() as stack:

        def one(transfer: dict[str, Any], **arguments: Any) -> EngineProcess:
            binds = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if "tensor_parallel_size" in arguments else {}
            engine = EngineProcess(model, transfer, {"PYTHONPATH": str(ROOT)} | binds, **arguments)
            stack.callback(engine.close)
            return engine

        yield one


def generate(engine: EngineProcess) -> dict[str, Any]:
    """Greedy tokens after all prompts."""
    found: dict[str, Any] = engine.ask("generate", prompts=PROMPTS, tokens=8)
    return found


def generate_anew(engine: EngineProcess) -> dict[str, Any]:
    """The same, after the engine's own prefix cache was emptied."""
    assert engine.ask("forget")
    return generate(engine)


def double_all_values() -> None:
    """In the segment of every rank."""
    with join(parse(STORE)) as joined:
        world, at = joined.world, joined.world.engine.geometry.offsets
        for rank in world.members():
            segment = world.engine.heap.segment(rank)
            segment[at["heap_base"] : at["heap_limit"]].view(torch.float32).mul_(2)


@pytest.mark.surface(MANAGER, "a real engine on a CPU, with OffloadingConnector")
def test_engines_load_what_they_and_others_have_stored(start: Start, expected: list[list[int]]) -> None:
    first, second = start(with_spec()), start(with_spec())
    assert generate(first)["tokens"] == expected
    for engine in (first, second):
        found = generate_anew(engine)
        assert (found["tokens"], found["cached"]) == (expected, WHOLE)
    double_all_values()
    changed = generate_anew(second)
    assert changed["cached"] == WHOLE and changed["tokens"] != expected  # the bytes of NanoKV are what it computes with
    assert second.ask("reset_connector")
    again = generate(second)
    assert again["tokens"] == expected and again["cached"] != WHOLE
    found = generate_anew(second)
    assert (found["tokens"], found["cached"]) == (expected, WHOLE)


def test_a_small_world_and_a_small_cache_cost_time_only(start: Start, expected: list[list[int]]) -> None:
    block = 2 * 2 * BLOCK * 2 * 32 * 4  # layers, K and V, tokens, heads, dimensions, bytes
    engine = start(with_spec(size=30 * block), num_gpu_blocks_override=40)
    for _ in range(3):
        assert engine.ask("forget")
        found = engine.ask("generate", prompts=PROMPTS, tokens=96)
        assert [tokens[:8] for tokens in found["tokens"]] == expected
    assert engine.ask("preemptions") > 0  # the engine's cache is too small for all requests
    assert 0 < sum(found["cached"]) < sum(WHOLE)  # and the world for all blocks


@pytest.mark.surface(MANAGER, "a real engine with tensor parallelism")
def test_two_workers_store_their_parts_of_chunks(start: Start, expected: list[list[int]]) -> None:
    engine = start(with_spec(per_chunk=2), tensor_parallel_size=2)
    first, again = generate(engine), generate_anew(engine)
    assert first["tokens"] == again["tokens"] == expected
    assert again["cached"][:2] == [len(prompt) // (2 * BLOCK) * (2 * BLOCK) for prompt in PROMPTS[:2]]


@pytest.mark.surface(TIER, "a real engine on a CPU, with TieringOffloadingManager", differs="its worker is the test's")
def test_engines_load_through_the_primary_tier(start: Start, expected: list[list[int]]) -> None:
    engines = [start(with_tier(64 << 20)), start(with_tier(64 << 20))]
    assert generate(engines[0])["tokens"] == expected
    found = generate_anew(engines[1])  # whose primary tier is empty
    assert (found["tokens"], found["cached"]) == (expected, WHOLE)
    double_all_values()
    assert engines[1].ask("reset_connector")  # empties the primary tier; NanoKV keeps what it has
    changed = generate_anew(engines[1])
    assert changed["cached"] == WHOLE and changed["tokens"] != expected

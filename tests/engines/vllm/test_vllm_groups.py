"""Groups of layers as many kinds of models have them, by vLLM's own scheduler and plans, without a model."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.pooling_params import PoolingParams
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from nanokv.bench.vllm.process import connector
from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm import layers
from nanokv.integrations.vllm.groups import Group, Reach
from nanokv.integrations.vllm.worker import Loads
from tests.engines.vllm.planned import PlannedEngine, Wrong
from tests.engines.vllm.test_vllm_refusals import config_of
from tests.support.faults import Calls

HALF = torch.bfloat16


def full(**more: Any) -> KVCacheSpec:
    return FullAttentionSpec(**{"block_size": 32, "num_kv_heads": 2, "head_size": 16, "dtype": HALF} | more)


def window(tokens: int = 96, **more: Any) -> KVCacheSpec:
    given = {"block_size": 32, "num_kv_heads": 2, "head_size": 16, "dtype": HALF, "sliding_window": tokens}
    return SlidingWindowSpec(**given | more)


def chunk(**more: Any) -> KVCacheSpec:
    given = {"block_size": 32, "num_kv_heads": 2, "head_size": 16, "dtype": HALF, "attention_chunk_size": 64}
    return ChunkedLocalAttentionSpec(**given | more)


def latent(**more: Any) -> KVCacheSpec:
    return MLAAttentionSpec(**{"block_size": 64, "num_kv_heads": 1, "head_size": 64, "dtype": HALF} | more)


def states(page: KVCacheSpec | None, size: int = 128) -> KVCacheSpec:
    return MambaSpec(
        block_size=size,
        shapes=((3, 16), (4, 8, 4)),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=None if page is None else page.page_size_bytes,
        mamba_cache_mode="align",
    )


def layer(number: int, name: str = "attn") -> str:
    return f"model.layers.{number}.self_attn.{name}"


def in_turn(count: int, *specs: KVCacheSpec) -> dict[str, KVCacheSpec]:
    return {layer(number): specs[number % len(specs)] for number in range(count)}


INDEXED = {"head_size": 132, "dtype": torch.uint8}
LAYOUTS: dict[str, dict[str, KVCacheSpec]] = {
    "full": in_turn(3, full()),
    "windows alone: Mistral v0.1": in_turn(3, window()),
    "latents: DeepSeek V3": in_turn(3, latent()),
    "latents and the keys of an indexer, one group: DeepSeek V3.2": {
        name: spec
        for number in range(3)
        for name, spec in ((layer(number), latent()), (layer(number, "indexer.k_cache"), latent(**INDEXED)))
    },
    "windows and full in turn: gpt-oss": in_turn(4, window(), full()),
    "five to one, and a group with padding: Gemma 3": in_turn(11, *[window()] * 5, full()),
    "seven windows and three full": in_turn(7, window()) | {layer(7 + i): full() for i in range(3)},
    "the second stage of a pipeline": {layer(5 + i): each for i, each in enumerate([window()] * 3 + [full()])},
    "two windows": in_turn(6, window(64), window(160), full()),
    "full of two head sizes, as of a draft model": in_turn(4, full(), full(head_size=32)),
    "windows of another shape: Gemma 4": in_turn(4, window(), full(head_size=32)),
    "chunks: Llama 4": in_turn(4, chunk(), chunk(), chunk(), full()),
    "states: Granite 4, Qwen 3 Next": in_turn(4, states(full(block_size=128)), full(block_size=128)),
    "states, windows and full": in_turn(
        6, states(full(block_size=128)), window(block_size=128, tokens=200), full(block_size=128)
    ),
    "states alone: Mamba 2": {layer(i): states(None) for i in range(2)},
    "states and latents: Kimi Linear": in_turn(4, *[states(latent(block_size=128))] * 3, latent(block_size=128)),
}


@pytest.fixture(scope="module", autouse=True)
def parallel(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One worker of one: what vLLM's processes set up before they make a connector."""
    config = config_of(model, connector("kv_both"))
    with set_current_vllm_config(config):
        place = tmp_path_factory.mktemp("gloo") / "store"
        init_distributed_environment(1, 0, f"file://{place}", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield
    cleanup_dist_env_and_memory()


Start = Callable[..., PlannedEngine]


@pytest.fixture
def planned(model: Path) -> Iterator[Start]:
    """planned(name of a layout, role, flags, layers of a stage before, arguments of vLLM) -> an engine; closed after
    the test."""
    with ExitStack() as stack:

        def start(
            kind: str,
            role: str = "kv_both",
            flags: dict[str, Any] | None = None,
            before: dict[str, KVCacheSpec] | None = None,
            **arguments: Any,
        ) -> PlannedEngine:
            given = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "async_scheduling": False} | arguments
            config = config_of(model, connector(role, size="32MiB", **flags or {}), **given)
            config.cache_config.mamba_cache_mode = "align"
            engine = PlannedEngine(config, LAYOUTS[kind], 1 << 22, before)
            stack.callback(engine.worker.shutdown)
            return engine

        yield start


def prompts(seed: int = 1) -> list[list[int]]:
    """Of many lengths, also ends of blocks; some that begin alike."""
    dice = random.Random(seed)
    some = [[dice.randrange(900) for _ in range(count)] for count in (1, 33, 64, 65, 128, 129, 200, 257, 300, 385)]
    return [*some, some[-1][:256] + [5] * 70, some[-1][:192] + [6] * 100, some[-2] + [7] * 30]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_what_is_loaded_is_what_each_layer_would_read(planned: Start, kind: str) -> None:
    engine, asked = planned(kind), prompts()
    expected = engine.run(asked, 40)
    engine.forget()
    assert engine.run(asked, 40) == expected
    assert sum(engine.loaded) > 0.4 * sum(map(len, asked))
    engine.forget()
    assert engine.run(asked, 40, together=False) == expected


LITTLE = {  #: blocks of a cache that holds little more than the longest prompt
    "five to one, and a group with padding: Gemma 3": 112,
    "chunks: Llama 4": 70,
    "states, windows and full": 17,
}
HYBRID = ["five to one, and a group with padding: Gemma 3", "chunks: Llama 4", "states, windows and full"]


def test_what_is_altered_in_the_store_is_seen(planned: Start) -> None:
    """The control: one bit of each object."""
    for kind in HYBRID:
        engine, asked = planned(kind), prompts()
        engine.run(asked, 1)
        cache = engine.cache
        cache.flush()
        segment = cache.engine.heap.segment(cache.rank)
        for base in cache.engine.poller.index.rows()[1]["payload_base"].tolist():
            segment[base] ^= 1
        engine.forget()
        with pytest.raises(Wrong):
            engine.run(asked, 1)


@pytest.mark.parametrize("kind", [*HYBRID, "windows alone: Mistral v0.1"])
def test_a_group_that_needs_less_than_vllm_says_is_noticed(planned: Start, calls: Calls, kind: str) -> None:
    """A deliberate bug: a hit is found without the first of the blocks that it needs."""
    engine, asked = planned(kind), prompts()
    expected = engine.run(asked, 1)
    needed = Group.needed

    def less(group: Group, length: int, local: int = 0) -> range:
        found = needed(group, length, local)
        return found if group.reach is Reach.ALL else range(found.start + 1, max(found.stop, found.start + 1))

    calls.instead(Group, "needed", less)
    engine.forget()
    with pytest.raises(Wrong):
        assert engine.run(asked, 1) == expected


def test_groups_whose_keys_are_the_same_are_noticed(planned: Start, calls: Calls) -> None:
    """A deliberate bug: a block of one group is found as that of another."""
    calls.answer(layers, "mark_of", b"one")
    engine = planned("five to one, and a group with padding: Gemma 3")
    engine.run([prompts()[9]], 1)
    engine.forget()
    with pytest.raises(Wrong):
        engine.run([prompts()[9]], 1)


@pytest.mark.parametrize("kind", HYBRID)
def test_blocks_that_go_between_look_up_and_load(planned: Start, calls: Calls, kind: str) -> None:
    """All of such a request is computed, and nothing ends."""
    engine, asked = planned(kind), prompts()
    expected = engine.run(asked, 3)
    engine.forget()
    losses = iter([True, False, True] + [False] * 1000)
    calls.before(Loads, "start", lambda *_: engine.cache.clear() if next(losses) else None, when=lambda _, loads: loads)
    assert engine.run(asked, 3) == expected
    assert engine.worker.get_kv_connector_stats().data["lost"] > 0
    assert engine.run(asked, 3) == expected


@pytest.mark.parametrize("kind", HYBRID)
def test_little_room_and_small_steps(planned: Start, calls: Calls, kind: str) -> None:
    """Requests are preempted, and come back by what they have stored."""
    plain, asked = planned(kind), prompts()
    expected = plain.run(asked, 40)
    engine = planned(kind, num_gpu_blocks_override=LITTLE[kind], max_num_batched_tokens=144, max_model_len=512)
    preempted = calls.noted(type(engine.scheduler), "_preempt_request")
    for _ in range(2):
        assert engine.run(asked, 40) == expected
        assert engine.scheduler.reset_prefix_cache()
    assert preempted


@pytest.mark.parametrize("kind", ["full", "windows alone: Mistral v0.1", *HYBRID[:2], "latents: DeepSeek V3"])
@pytest.mark.parametrize("caching", [True, False])
def test_whole_prompts_are_handed_over(planned: Start, kind: str, caching: bool) -> None:
    """All of a prompt but its last token, which gives the first logits; also without a cache of the engine's own."""
    engine, asked = planned(kind, flags={"save_tails": True}, enable_prefix_caching=caching), prompts()
    expected = engine.run(asked, 2)
    engine.forget()
    assert engine.run(asked, 2) == expected
    assert engine.loaded == [len(prompt) - 1 for prompt in asked]


def test_windows_are_stored_where_hits_need_them(planned: Start) -> None:
    """And the prompt of a later request that forks off an earlier one has its windows stored there."""
    kind = "five to one, and a group with padding: Gemma 3"
    engine, dice = planned(kind), random.Random(3)
    shared = [dice.randrange(900) for _ in range(640)]
    engine.run([[*shared, 1]], 1)
    everything = sum(plane[0].numel() * 20 for plane in engine.caches.values()) * 2
    assert engine.stored < 0.5 * everything
    for number, loaded in enumerate([0, 512, 512]):
        engine.forget()
        engine.run([shared[:512] + [10 + number] * 90], 1)
        assert engine.loaded == [loaded]


def test_a_state_is_made_where_prompts_fork(planned: Start) -> None:
    """Without it no state of a shared beginning would ever be stored: steps of each prompt end elsewhere."""
    engine, dice = planned("states: Granite 4, Qwen 3 Next"), random.Random(4)
    shared = [dice.randrange(900) for _ in range(200)]
    found = []
    for number in range(4):
        engine.run([shared + [10 + number] * (150 + number)], 1)
        found.append(engine.loaded[0])
        engine.forget()
    assert found == [0, 0, 128, 128]


@pytest.mark.parametrize("kind", ["windows alone: Mistral v0.1", "states alone: Mamba 2", "full"])
def test_what_is_lost_behind_what_the_engine_has_itself(planned: Start, calls: Calls, kind: str) -> None:
    """Of windows and states what the engine had before the hit is not there any more when the load fails."""
    engine, prompt = planned(kind), prompts()[9]
    expected = engine.run([prompt, prompt[:256]], 3)
    engine.forget()
    assert engine.run([prompt[:256]], 3)[0] == expected[1]
    calls.before(Loads, "start", lambda *_: engine.cache.clear(), when=lambda _, loads: loads)
    assert engine.run([prompt], 3) == expected[:1]
    assert engine.worker.get_kv_connector_stats().data["lost"] > 0


def test_a_stage_without_layers_of_some_group(planned: Start) -> None:
    engine, asked = (
        planned("full", before={layer(10 + i): spec for i, spec in enumerate([window(), window(), window(), full()])}),
        prompts(),
    )
    expected = engine.run(asked, 3)
    engine.forget()
    assert engine.run(asked, 3) == expected and sum(engine.loaded) > 0


def test_layer_by_layer_needs_layers_of_one_shape(planned: Start) -> None:
    with pytest.raises(InvalidArgument, match=r"nanokv\.load=layer needs layers of one shape"):
        planned("full of two head sizes, as of a draft model", flags={"load": "layer"})


def test_whose_last_token_is_left_to_decode(planned: Start) -> None:
    engine = planned("states: Granite 4, Qwen 3 Next", role="kv_producer")
    connector: Any = engine.scheduler.get_kv_connector()
    prompt = prompts()[4]
    for more, count in (
        ({}, 127),
        ({"pooling_params": PoolingParams(task="embed"), "sampling_params": None}, 128),
        ({"resumable": True}, 128),
        ({"prompt_embeds": torch.zeros(128, 8), "prompt_is_token_ids": [True] * 128}, 128),
    ):
        request = engine.request(prompt, 5, **more)
        for _ in range(2):
            connector.on_new_request(request)
        assert request.num_prompt_tokens == len(request.prompt_token_ids) == request.num_tokens == count
        assert len(request.block_hashes) == count // 128
    assert len(prompt) == 128

"""Kinds of models, with real engines: each is right, or refused in words. Logprobs are compared, not only tokens: some
of these models choose the same tokens whatever KV they read.

The table of docs/vllm.md says what this module shows; a test compares.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.process import EngineFailed, EngineProcess, connector
from tests.engines.vllm.conftest import BLOCK, FAR, PROMPTS, TOKENS, apart
from tests.engines.vllm.kinds import MAKERS, make_adapter
from tests.engines.vllm.mends import WITHOUT_CHECKPOINTS

SOME = PROMPTS[:20]
FACTS = {"max_num_batched_tokens": 256, "enable_chunked_prefill": True}

RIGHT = {
    "sliding": "all layers with a sliding window (Mistral 7B v0.1)",
    "gemma2": "windows and full attention in turn: Gemma 2",
    "gemma3": "Gemma 3",
    "cohere2": "Cohere 2",
    "gptoss": "gpt-oss: sinks, experts",
    "llama4": "chunked local attention: Llama 4",
    "gemma3n": "layers that share KV: Gemma 3n, for prompts with which vLLM agrees with itself",
    "qwen3moe": "experts: Qwen 3 MoE",
    "gemma4": "layers of two shapes, and blocks of two sizes: Gemma 4",
}
UNITS = {"gemma4": 64}  #: tokens at whose multiples hits end, if these are no blocks of 32
STATES: dict[str, tuple[str, dict[str, Any]]] = {  #: with what vLLM needs to run them on a CPU
    "granite4": ("Mamba 2 beside attention: Granite 4", {"before": [WITHOUT_CHECKPOINTS]}),
    "qwen3next": ("gated delta nets beside attention: Qwen 3 Next", {"dtype": "bfloat16"}),
    "mamba2": ("states only: Mamba 2", {"before": [WITHOUT_CHECKPOINTS], "enable_prefix_caching": True}),
    "nemotronh": ("two and one layers of Mamba 2: Nemotron-H", {"before": [WITHOUT_CHECKPOINTS]}),
    "falconh1": ("Mamba 2 and attention in one layer: Falcon-H1", {"before": [WITHOUT_CHECKPOINTS]}),
}
DEAR = {"nemotronh", "falconh1"}
REFUSED = {
    "mla": ("latent attention on a CPU: DeepSeek V2", "does not support DeepseekV2ForCausalLM on a CPU"),
    "lfm2": ("short convolutions on a CPU: LFM 2", "with short convolutions vLLM's kernels for CPUs give other tokens"),
    "granite4": (
        "Mamba 2 on a CPU with vLLM's prefix caching, which itself fails: Granite 4",
        "start vLLM with --no-enable-prefix-caching",
    ),
    "bert": ("an encoder alone: BERT", "has no KV cache"),
    "whisper": ("encoder and decoder: Whisper", "does not support encoder-decoder models"),
}
ARGUMENTS: dict[str, dict[str, Any]] = {  #: of a kind that vLLM itself refuses without them
    "mla": {"dtype": "bfloat16"},
    "whisper": {"skip_tokenizer_init": False, "max_model_len": 200},
}
DOCS = Path(__file__).parents[3] / "docs" / "vllm.md"


def table() -> str:
    """The table of docs/vllm.md."""
    rows = [("Llama; with a draft head (EAGLE), n-grams, LoRA adapters", "right")]
    rows += [(what, "right") for what in RIGHT.values()]
    rows += [("a draft model of another shape", "right")]
    rows += [(what, "right, bit for bit") for what, _ in STATES.values()]
    rows += [(what, "refused") for what, _ in REFUSED.values()]
    return "\n".join(f"| {what} | {how} |" for what, how in rows)


def test_the_table_of_the_docs() -> None:
    assert f"|---|---|\n{table()}\n" in DOCS.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("kinds")

    def made(kind: str) -> Path:
        if not (folder / kind).exists():
            MAKERS[kind](folder / kind)
        return folder / kind

    return made


@pytest.fixture
def started() -> Iterator[Callable[..., EngineProcess]]:
    with ExitStack() as stack:

        def start(folder: Path, transfer: dict[str, Any] | None = None, **arguments: Any) -> EngineProcess:
            engine = EngineProcess(folder, transfer, **FACTS | arguments)
            stack.callback(engine.close)
            return engine

        yield start


def ask(engine: EngineProcess, prompts: list[list[int]] = SOME) -> dict[str, Any]:
    found: dict[str, Any] = engine.ask("generate", prompts=prompts, tokens=TOKENS, logprobs=3)
    return found


@pytest.mark.parametrize("kind", RIGHT)
def test_a_kind_is_right(model_of: Callable[[str], Path], started: Callable[..., EngineProcess], kind: str) -> None:
    plain = started(model_of(kind))
    engine = started(model_of(kind), connector("kv_both", size="64MiB"))
    expected, own = ask(plain), [ask(plain) for _ in range(2)]
    steady = [number for number in range(len(SOME)) if all(apart(each, expected, [number]) < FAR for each in own)]
    assert len(steady) >= (10 if kind == "gemma3n" else len(SOME)), "vLLM differs from itself"
    assert apart(ask(engine), expected, steady) < FAR, "cold"
    assert engine.ask("forget")
    again = ask(engine)
    assert apart(again, expected, steady) < FAR
    unit = UNITS.get(kind, BLOCK)
    assert again["cached"] == [min(len(prompt) // unit * unit, len(prompt) - 1) for prompt in SOME]
    assert engine.ask("forget")
    assert engine.ask("alter") > 0
    assert apart(ask(engine), expected, steady) > 0.5, "what is loaded is not what was stored"


def one_by_one(engine: EngineProcess, prompts: list[list[int]]) -> dict[str, Any]:
    """As `ask`, each prompt alone: chunks of several ones end elsewhere, and states depend on that."""
    found = [ask(engine, [prompt]) for prompt in prompts]
    return {name: [each[name][0] for each in found] for name in ("tokens", "logprobs", "cached")}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.exhaustive] if kind in DEAR else []) for kind in STATES]
)
def test_a_state_is_what_vllm_itself_would_have_kept(
    model_of: Callable[[str], Path], started: Callable[..., EngineProcess], kind: str
) -> None:
    """Bit for bit: the logprobs after a hit in NanoKV and after one in the engine's own cache."""
    arguments = STATES[kind][1]
    plain = started(model_of(kind), **arguments)
    engine = started(model_of(kind), connector("kv_both", size="256MiB"), **arguments)
    cold, own = one_by_one(plain, SOME), one_by_one(plain, SOME)
    assert apart(one_by_one(engine, SOME), cold) == 0
    assert engine.ask("forget")
    found = one_by_one(engine, SOME)
    assert found["cached"] == own["cached"] and sum(own["cached"]) > 1000
    assert found["tokens"] == own["tokens"] and apart(found, own) == 0
    assert engine.ask("forget")
    assert engine.ask("alter") > 0
    assert apart(one_by_one(engine, SOME), own) > 0.5, "what is loaded is not what was stored"


HANDED_OVER: dict[str, dict[str, Any]] = {  #: with vLLM's settings; without prefix caching Mamba 2 needs no mend
    "gemma4": {},
    "granite4": {"enable_prefix_caching": False},
    "qwen3next": {"dtype": "bfloat16"},
}


@pytest.mark.parametrize("kind", HANDED_OVER)
def test_whole_prompts_go_from_prefill_to_decode(
    model_of: Callable[[str], Path], started: Callable[..., EngineProcess], kind: str
) -> None:
    """All of a prompt but its last token, and a state there: bit for bit what an engine alone has, whose last step of
    the prompt is that token."""
    arguments = HANDED_OVER[kind]
    flags = {"name": f"test-vllm-{kind}-{os.getpid()}", "world_size": 2, "size": "64MiB"}
    plain = started(model_of(kind), **arguments)
    prefill = started(model_of(kind), connector("kv_producer", rank=0, target=1, **flags), **arguments)
    decode = started(model_of(kind), connector("kv_consumer", rank=1, **flags), **arguments)
    prompts = [(prompt + SOME[0] + SOME[1])[:257] for prompt in SOME[2:8]]  # a step of 256, and one
    expected = one_by_one(plain, prompts)
    for prompt in prompts:
        prefill.ask("generate", prompts=[prompt], tokens=1)
    found = one_by_one(decode, prompts)
    assert found["cached"] == [256] * len(prompts)
    assert found["tokens"] == expected["tokens"]
    assert apart(found, expected) <= (FAR if kind == "gemma4" else 0)  # whose kernel does not repeat itself exactly
    at_a_block = SOME[0][:256]  # the last token of a block is not handed over, and its block is
    prefill.ask("generate", prompts=[at_a_block], tokens=1)
    assert decode.ask("generate", prompts=[at_a_block], tokens=1)["cached"] == [255]
    decode.ask("forget")
    assert prefill.ask("alter") + decode.ask("alter") > 0
    assert apart(one_by_one(decode, prompts), expected) > 0.5, "the control"


@pytest.mark.parametrize("kind", REFUSED)
def test_a_kind_is_refused(model_of: Callable[[str], Path], started: Callable[..., EngineProcess], kind: str) -> None:
    with pytest.raises(EngineFailed, match=REFUSED[kind][1]):
        started(model_of(kind), connector("kv_both"), **ARGUMENTS.get(kind, {})).wait()


def test_blocks_that_are_lost_behind_a_window(
    model_of: Callable[[str], Path], started: Callable[..., EngineProcess]
) -> None:
    """What is left of a window without one of its blocks is of no use: the request is computed from its beginning."""
    folder = model_of("sliding")
    plain = started(folder)
    engine = started(folder, connector("kv_both", size="64MiB", checksum=True))
    expected = ask(plain)
    assert apart(ask(engine), expected) < FAR
    assert engine.ask("forget")
    assert engine.ask("alter", every=3) > 0
    assert apart(ask(engine), expected) < FAR, "blocks were damaged"
    assert engine.ask("forget")
    assert engine.ask("drop", after_lookup=True) == 0
    assert apart(ask(engine), expected) < FAR, "blocks went between look-up and load"


def test_prefill_and_decode_of_a_model_with_windows(
    model_of: Callable[[str], Path], started: Callable[..., EngineProcess]
) -> None:
    folder, flags = model_of("sliding"), {"name": f"test-vllm-windows-{os.getpid()}", "world_size": 2, "size": "64MiB"}
    plain = started(folder)
    prefill = started(folder, connector("kv_producer", rank=0, target=1, **flags))
    decode = started(folder, connector("kv_consumer", rank=1, **flags))
    expected = ask(plain)
    prefill.ask("generate", prompts=SOME, tokens=1)
    found = ask(decode)
    assert apart(found, expected) < FAR
    assert found["cached"] == [len(prompt) - 1 for prompt in SOME]


def test_layer_by_layer_is_refused_with_windows(
    model_of: Callable[[str], Path], started: Callable[..., EngineProcess]
) -> None:
    with pytest.raises(EngineFailed, match=r"nanokv.load=layer does not go with MistralForCausalLM"):
        started(model_of("sliding"), connector("kv_both", load="layer")).wait()


def test_a_draft_model_of_another_shape(
    model: Path, model_of: Callable[[str], Path], started: Callable[..., EngineProcess]
) -> None:
    """Its layers are in one group with the model's, and have smaller blocks."""
    drafts = {"method": "draft_model", "model": str(model_of("draft")), "num_speculative_tokens": 3}
    expected = ask(started(model))
    engine = started(model, connector("kv_both", size="64MiB"), speculative_config=drafts)
    for _ in range(2):
        found = ask(engine)
        assert found["tokens"] == expected["tokens"] and apart(found, expected) < FAR
        assert engine.ask("forget")
    assert sum(stats["gets"] for stats in engine.ask("stats")) > 0
    assert engine.ask("alter") > 0
    assert ask(engine)["tokens"] != expected["tokens"], "the control"


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_speculation(
    model: Path, model_of: Callable[[str], Path], started: Callable[..., EngineProcess], method: str
) -> None:
    drafts: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    drafts |= {"prompt_lookup_max": 3} if method == "ngram" else {"model": str(model_of("eagle"))}
    expected = ask(started(model))
    engine = started(model, connector("kv_both", size="64MiB"), speculative_config=drafts)
    for _ in range(2):
        found = ask(engine)
        assert found["tokens"] == expected["tokens"]
        assert engine.ask("forget")
    assert sum(stats["gets"] for stats in engine.ask("stats")) > 0
    assert engine.ask("alter") > 0
    assert ask(engine)["tokens"] != expected["tokens"], "the control"


def test_adapters_share_nothing_with_each_other(
    model: Path, tmp_path: Path, started: Callable[..., EngineProcess]
) -> None:
    """Two adapters, and the model alone, on one engine; then the second adapter under the first one's name."""
    adapters = {name: make_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))}
    options = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    plain = started(model, **options)
    engine = started(model, connector("kv_both", size="64MiB"), **options)
    asked: list[Any] = [None, *((name, number, str(path)) for number, (name, path) in enumerate(adapters.items(), 1))]
    asked.append(("one", 3, str(adapters["two"])))

    def answers(of: EngineProcess, adapter: Any) -> list[list[int]]:
        found: list[list[int]] = of.ask("generate", prompts=SOME, tokens=TOKENS, adapter=adapter)["tokens"]
        return found

    expected = [answers(plain, adapter) for adapter in asked]
    assert expected[0] != expected[1] != expected[2] == expected[3]
    for _ in range(2):  # computed, then loaded
        for adapter, tokens in zip(asked, expected, strict=True):
            assert answers(engine, adapter) == tokens
        assert engine.ask("forget")
    assert sum(stats["gets"] for stats in engine.ask("stats")) > 0

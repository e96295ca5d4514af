"""Kinds of models, with real engines: each is right, or refused in words. Logprobs are compared, not only tokens: some
of these models choose the same tokens whatever KV they read.

The table of docs/vllm.md says what this module shows; a test compares.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.process import Engine, EngineFailed, connector
from tests.engines.vllm.conftest import BLOCK, PROMPTS, TOKENS
from tests.engines.vllm.kinds import MAKERS

SOME = PROMPTS[:20]
FAR = 1e-4  #: of two logprobs: more is no rounding. Altered KV differs by 0.5 and more
FACTS = {"max_num_batched_tokens": 256, "enable_chunked_prefill": True}

RIGHT = {
    "sliding": "all layers with a sliding window (Mistral 7B v0.1)",
    "gemma2": "windows and full attention in turn: Gemma 2",
    "gemma3": "Gemma 3",
    "cohere2": "Cohere 2",
    "gptoss": "gpt-oss: sinks, experts",
    "llama4": "chunked local attention: Llama 4",
    "gemma3n": "layers that share KV: Gemma 3n",
    "qwen3moe": "experts: Qwen 3 MoE",
}
REFUSED = {
    "gemma4": ("layers of two shapes: Gemma 4", r"layers of this model have blocks of \d+ and \d+ bytes"),
    "mla": ("latent attention on a CPU: DeepSeek V2", "does not support DeepseekV2ForCausalLM on a CPU"),
    "granite4": ("states beside attention: Granite 4", "its layers have states"),
    "qwen3next": ("linear attention: Qwen 3 Next", "its layers have states"),
    "lfm2": ("convolutions: LFM 2", "its layers have states"),
    "mamba2": ("states only: Mamba 2", "its layers have states"),
}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("kinds")

    def made(kind: str) -> Path:
        if not (folder / kind).exists():
            MAKERS[kind](folder / kind)
        return folder / kind

    return made


@pytest.fixture
def started() -> Iterator[Callable[..., Engine]]:
    with ExitStack() as stack:

        def start(folder: Path, transfer: dict[str, Any] | None = None, **arguments: Any) -> Engine:
            engine = Engine(folder, transfer, **FACTS | arguments)
            stack.callback(engine.close)
            return engine

        yield start


def ask(engine: Engine, prompts: list[list[int]] = SOME) -> dict[str, Any]:
    found: dict[str, Any] = engine.ask("generate", prompts=prompts, tokens=TOKENS, logprobs=3)
    return found


def apart(one: dict[str, Any], two: dict[str, Any]) -> float:
    """The largest difference of two logprobs of the same prompt, step and token, up to the first token that differs."""
    worst = 0.0
    pairs = zip(one["tokens"], two["tokens"], one["logprobs"], two["logprobs"], strict=True)
    for tokens, others, steps, other_steps in pairs:
        for number, (step, other) in enumerate(zip(steps, other_steps, strict=True)):
            shared = step.keys() & other.keys()
            worst = max([worst, *(abs(step[token] - other[token]) for token in shared)])
            if tokens[number] != others[number]:
                return max(worst, 1.0)
    return worst


@pytest.mark.parametrize("kind", RIGHT)
def test_a_kind_is_right(model_of: Callable[[str], Path], started: Callable[..., Engine], kind: str) -> None:
    plain = started(model_of(kind))
    engine = started(model_of(kind), connector("kv_both", size="64MiB"))
    expected = ask(plain)
    assert apart(ask(engine), expected) < FAR, "cold"
    assert engine.ask("forget")
    again = ask(engine)
    assert apart(again, expected) < FAR
    whole = [min(len(prompt) // BLOCK * BLOCK, len(prompt) - 1) for prompt in SOME]
    assert again["cached"] == whole
    assert engine.ask("forget")
    assert engine.ask("alter") > 0
    assert apart(ask(engine), expected) > 0.5, "what is loaded is not what was stored"


@pytest.mark.parametrize("kind", REFUSED)
def test_a_kind_is_refused(model_of: Callable[[str], Path], started: Callable[..., Engine], kind: str) -> None:
    dtype = {"dtype": "bfloat16"} if kind == "qwen3next" else {}
    with pytest.raises(EngineFailed, match=REFUSED[kind][1]):
        started(model_of(kind), connector("kv_both"), **dtype).wait()

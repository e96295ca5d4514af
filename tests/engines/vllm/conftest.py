"""Engines for the tests of this folder. They run with vLLM only: `make test-vllm`."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nanokv.bench.vllm.__main__ import make_prompts
from nanokv.bench.vllm.model import make_model
from nanokv.bench.vllm.process import EngineProcess, connector

Start = Callable[..., EngineProcess]
BLOCK = 32  #: tokens per block in all engines here
PROMPTS = make_prompts(56, seed=1)
TOKENS = 8  #: that are generated after each prompt
FAR = 1e-4  #: of two logprobs: more is no rounding. Altered KV differs by 0.5 and more


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def alone(model: Path) -> Iterator[EngineProcess]:
    """An engine without a connector."""
    with EngineProcess(model) as engine:
        yield engine


@pytest.fixture(scope="session")
def expected(alone: EngineProcess) -> list[list[int]]:
    """The tokens after each of PROMPTS, by one engine alone."""
    tokens: list[list[int]] = alone.ask("generate", prompts=PROMPTS, tokens=TOKENS)["tokens"]
    return tokens


_worlds = iter(range(1_000_000))


class Pair:
    """A prefill engine and a decode engine. `start_prefill` and `start_decode` start one anew."""

    def __init__(
        self, model: Path, flags: dict[str, Any], arguments: dict[str, Any], of_decode: dict[str, Any]
    ) -> None:
        self._model, self._arguments = model, arguments
        self._of_decode = {"model": str(model)} | arguments | of_decode
        self._flags = {"name": f"test-vllm-{os.getpid()}-{next(_worlds)}", "world_size": 2, "size": "64MiB"} | flags
        self.prefill, self.decode = self.start_prefill(), self.start_decode()

    def start_prefill(self) -> EngineProcess:
        self.prefill = EngineProcess(
            self._model, connector("kv_producer", rank=0, target=1, **self._flags), **self._arguments
        )
        return self.prefill

    def start_decode(self) -> EngineProcess:
        self.decode = EngineProcess(self._model, connector("kv_consumer", rank=1, **self._flags), **self._of_decode)
        return self.decode

    def hand_over(self, prompts: list[list[int]]) -> None:
        """Prefill all prompts."""
        self.prefill.ask("generate", prompts=prompts, tokens=1)

    def generate(self, prompts: list[list[int]]) -> dict[str, Any]:
        """Decode after all prompts; the decode engine's own prefix cache is empty before."""
        assert self.decode.ask("forget")
        found: dict[str, Any] = self.decode.ask("generate", prompts=prompts, tokens=TOKENS)
        return found

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()


@pytest.fixture
def start_pair(model: Path) -> Iterator[Callable[..., Pair]]:
    """start_pair(flags, of_decode, **arguments of vLLM) -> a pair, closed after the test. `of_decode`: arguments of the
    decode engine only."""
    with ExitStack() as stack:

        def start(
            flags: dict[str, Any] | None = None, of_decode: dict[str, Any] | None = None, **arguments: Any
        ) -> Pair:
            pair = Pair(model, flags or {}, arguments, of_decode or {})
            stack.callback(pair.close)
            pair.prefill.wait()
            pair.decode.wait()
            return pair

        yield start


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """start(role, arguments of vLLM, **flags) -> one engine with a world of its own; closed after the test."""
    with ExitStack() as stack:

        def one(role: str, arguments: dict[str, Any] | None = None, **flags: Any) -> EngineProcess:
            engine = EngineProcess(model, connector(role, **({"size": "64MiB"} | flags)), **(arguments or {}))
            stack.callback(engine.close)
            return engine

        yield one


def but_one(prompts: list[list[int]]) -> list[int]:
    """Of each prompt the tokens that can be handed over: all but the last one, which gives the first logits."""
    return [len(prompt) - 1 for prompt in prompts]


def blocks_of(prompts: list[list[int]]) -> int:
    """The blocks that hold these tokens of all prompts."""
    return sum(-(-(len(prompt) - 1) // BLOCK) for prompt in prompts)


def whole_blocks(prompts: list[list[int]]) -> list[int]:
    """Of each prompt the tokens that an engine finds that keeps whole blocks: these, but never the last token."""
    return [min(len(prompt) // BLOCK * BLOCK, len(prompt) - 1) for prompt in prompts]


def total(engine: EngineProcess, name: str) -> int:
    """A count of `NanoKVCache.stats`, over all workers of an engine."""
    return sum(stats[name] for stats in engine.ask("stats"))


def apart(one: dict[str, Any], two: dict[str, Any], prompts: Iterable[int] | None = None) -> float:
    """The largest difference of two logprobs of the same prompt, step and token, up to the first token that differs.

    Two tokens may be as probable as each other.
    """
    worst = 0.0
    for number in range(len(one["tokens"])) if prompts is None else prompts:
        of_one, of_two = ((each["tokens"][number], each["logprobs"][number]) for each in (one, two))
        for token, other, step, other_step in zip(of_one[0], of_two[0], of_one[1], of_two[1], strict=True):
            differences = [abs(step[each] - other_step[each]) for each in step.keys() & other_step.keys()]
            worst = max(worst, *differences) if differences else float("inf")
            if token != other:
                break
    return worst

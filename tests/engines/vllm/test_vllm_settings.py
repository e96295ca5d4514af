"""vLLM's settings, with real engines: what one engine prefilled another decodes, and each logprob is as by one engine
alone. The control: with stored values altered it is not; with checksums it is, and the damage is counted.

The table of settings in docs/vllm.md says what this module shows; a test compares.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from nanokv.bench.vllm.model import VOCABULARY, make_model
from nanokv.bench.vllm.process import EngineFailed, EngineProcess, connector
from tests.engines.vllm.conftest import FAR, PROMPTS, TOKENS, Start, apart, but_one, total, whole_blocks

LENGTHS = (1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 255, 256, 257, 500, 700, 1000)
_dice = random.Random(7)
LONGEST = [_dice.randrange(VOCABULARY) for _ in range(max(LENGTHS))]
#: 47: of all lengths about a block's, prefixes of one another, among those that share prefixes and repeat each other
ASKED = [*PROMPTS[:31], *(LONGEST[:length] for length in LENGTHS)]
TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


class Setting(NamedTuple):
    """Of a prefill engine and a decode engine."""

    what: str  #: in the table of the docs
    flags: dict[str, Any] = {}  # noqa: RUF012
    arguments: dict[str, Any] = {}  # noqa: RUF012
    workers: int = 1
    far: float = FAR
    own: bool = False  #: whether values differ from the usual ones: then an engine alone with `arguments` is asked


SETTINGS = {
    "usual": Setting("prefill and decode, nothing else set"),
    "chunks": Setting("prefill in chunks of two blocks", arguments={"max_num_batched_tokens": 64, "max_num_seqs": 8}),
    "layers": Setting("`nanokv.load=layer`", {"load": "layer"}),
    "v1": Setting("`nanokv.alloc=host`", {"alloc": "host"}),
    "checksum": Setting("`nanokv.checksum`, larger pages", {"checksum": True, "page_bytes": "64KiB"}),
    "uncached": Setting("vLLM's prefix cache off", arguments={"enable_prefix_caching": False}),
    "blocks": Setting("blocks of 128 tokens", arguments={"block_size": 128}),
    "bfloat16": Setting("bfloat16", arguments={"dtype": "bfloat16"}, far=0.05, own=True),
    "fp8": Setting("KV in fp8", arguments={"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, far=0.3, own=True),
    "compiled": Setting("a compiled model", arguments={"enforce_eager": False}),
    "tensor": Setting("tensor parallel 2", arguments={"tensor_parallel_size": 2}, workers=2),
}

OTHERS = (  #: of the table; each is a test below, of test_vllm_servers.py or of test_vllm_refusals.py
    "one prefill engine, two decode engines; `nanokv.target` in requests",
    "one head of KV, tensor parallel 1 and 2 in turn",
    "a data-parallel server",
    "logprobs of prompts: nothing is loaded",
    "`--runner pooling`: vectors of prompts, and of tokens (nothing is loaded)",
)
DOCS = Path(__file__).parents[3] / "docs" / "vllm.md"


def table() -> str:
    """The table of settings in docs/vllm.md."""
    right = [f"| {what} | right |" for what in (*(setting.what for setting in SETTINGS.values()), *OTHERS)]
    refused = ["| decode context parallelism | refused |"]
    return "\n".join((*right, *refused))


def test_the_table_of_the_docs() -> None:
    assert f"|---|---|\n{table()}\n" in DOCS.read_text(encoding="utf-8")


def ask(engine: EngineProcess, prompts: list[list[int]] = ASKED, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine.ask("generate", prompts=prompts, tokens=TOKENS, logprobs=3, **more)
    return found


@pytest.fixture(scope="module")
def by_one(model: Path, alone: EngineProcess) -> dict[str, Any]:
    return ask(alone)


class World:
    """Starts engines of one world: a prefill engine first, then those that decode."""

    def __init__(self, stack: ExitStack, folder: Path, setting: Setting, decodes: int = 1) -> None:
        self._stack, self._folder, self._setting = stack, folder, setting
        self._flags = {
            "name": f"test-vllm-settings-{os.getpid()}",
            "world_size": setting.workers * (1 + decodes),
            "size": "64MiB",
        } | setting.flags

    def engine(self, number: int, **flags: Any) -> EngineProcess:
        """The prefill engine (0), or a decode engine."""
        setting = self._setting
        role, place = ("kv_consumer" if number else "kv_producer"), number * setting.workers
        if not number:
            flags = {"target": setting.workers} | flags
        environment = TWO_WORKERS if setting.workers > 1 else None
        transfer = connector(role, rank=place, **self._flags | flags)
        return self._stack.enter_context(EngineProcess(self._folder, transfer, environment, **setting.arguments))


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:
        yield lambda *given, **more: World(stack, *given, **more)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_right(model: Path, by_one: dict[str, Any], world: Callable[..., World], name: str) -> None:
    setting = SETTINGS[name]
    expected = by_one
    if setting.own:
        with EngineProcess(model, **setting.arguments) as alone:
            try:
                expected = ask(alone)
            except EngineFailed as error:
                if "on CPU requires x86 with AVX-512 or AMX" not in str(error):
                    raise
                pytest.skip(f"vLLM alone cannot do it here: {error}")
    made = world(model, setting)
    prefill, decode = made.engine(0), made.engine(1)
    prefill.ask("generate", prompts=ASKED, tokens=1)
    found = ask(decode)
    assert apart(found, expected) < setting.far
    assert found["cached"] == but_one(ASKED)
    damaged = total(decode, "corrupt")
    assert damaged == 0
    assert decode.ask("alter") > 0
    decode.ask("forget")
    altered = ask(decode)
    if setting.flags.get("checksum"):
        assert apart(altered, expected) < setting.far
        assert total(decode, "corrupt") > 0
    else:
        assert apart(altered, expected) > 0.5


def test_two_decode_engines_of_one_prefill_engine(
    model: Path, by_one: dict[str, Any], world: Callable[..., World]
) -> None:
    """Each request names its reader, as a router does: its blocks lie in that one's segment, and both find them."""
    made = world(model, SETTINGS["usual"], decodes=2)
    engines = [made.engine(number) for number in range(3)]
    halves = [ASKED[:24], ASKED[24:]]  # the second shares prefixes with the first
    for reader, prompts in enumerate(halves, 1):
        engines[0].ask("generate", prompts=prompts, tokens=1, parameters={"nanokv.target": reader})
    stored = [total(engine, "ready") for engine in engines]
    assert stored[0] == 0 < min(stored[1:])
    for decode in engines[1:]:
        found = ask(decode)
        assert apart(found, by_one) < FAR
        assert found["cached"] == but_one(ASKED)
    engines[1].kill()
    assert engines[2].ask("forget")
    assert apart(ask(engines[2]), by_one) < FAR  # what lay in the dead one's segment is read there, or computed
    engines[0].ask("generate", prompts=ASKED, tokens=1)  # what cannot be stored is no error


def test_logprobs_of_a_prompt_are_whole(model: Path, start: Start) -> None:
    """vLLM computes all of a prompt whose logprobs are asked for: nothing is loaded, nor looked for."""
    engine = start("kv_both")
    answers = [ask(engine, prompt_logprobs=1) for _ in range(2) if engine.ask("forget")]
    for found in answers:
        assert [len(each) for each in found["prompt_logprobs"]] == but_one(ASKED)
        assert found["cached"] == [0] * len(ASKED)
    first, second = (list(chain.from_iterable(each["prompt_logprobs"])) for each in answers)
    assert all(one == pytest.approx(other, abs=FAR) for one, other in zip(first, second, strict=True))
    assert total(engine, "puts") > 0
    assert total(engine, "gets") == 0
    assert engine.ask("forget")
    assert ask(engine)["cached"] == whole_blocks(ASKED)  # what was stored then serves requests that do not ask


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_models_that_embed(tmp_path: Path, task: str) -> None:
    """A vector of the last token may begin with loaded KV; one per token needs all of them computed."""
    folder = make_model(tmp_path)
    words = {str(number): number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "0")), pad_token="0")
    tokenizer.save_pretrained(folder)  # vLLM wants one here, though it is given token ids
    settings: dict[str, Any] = {"runner": "pooling", "pooler_config": {"task": task}, "skip_tokenizer_init": False}
    with (
        EngineProcess(folder, **settings) as alone,
        EngineProcess(folder, connector("kv_both", size="64MiB"), **settings) as engine,
    ):
        expected = alone.ask("encode", prompts=ASKED, task=task)
        for _ in range(2):
            found = engine.ask("encode", prompts=ASKED, task=task)
            assert [torch.tensor(each).shape for each in found] == [torch.tensor(each).shape for each in expected]
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=1e-4, rtol=0)
            assert engine.ask("forget")
        assert (total(engine, "gets") > 0) == (task == "embed")


@pytest.mark.parametrize(("writers", "readers"), [(2, 2), (2, 1), (1, 2)])
def test_fewer_heads_than_workers(tmp_path: Path, writers: int, readers: int) -> None:
    """One head of KV, which each worker has whole."""
    folder = make_model(tmp_path / "model", heads=1)
    counts = (writers, readers)
    flags = {"name": f"test-vllm-heads-{os.getpid()}", "world_size": sum(counts), "size": "64MiB"}
    places: list[dict[str, Any]] = [{"rank": 0, "target": writers}, {"rank": writers}]
    with ExitStack() as stack:
        alone, prefill, decode = (
            stack.enter_context(EngineProcess(folder, transfer, environment, **arguments))
            for transfer, environment, arguments in (
                (None, None, {}),
                *(
                    (
                        connector(role, **flags, **place),
                        TWO_WORKERS if count > 1 else None,
                        {"tensor_parallel_size": count} if count > 1 else {},
                    )
                    for role, place, count in zip(("kv_producer", "kv_consumer"), places, counts, strict=True)
                ),
            )
        )
        expected = ask(alone)
        prefill.ask("generate", prompts=ASKED, tokens=1)
        found = ask(decode)
        assert apart(found, expected) < FAR
        assert found["cached"] == but_one(ASKED)
        assert decode.ask("alter") + prefill.ask("alter") > 0
        assert decode.ask("forget")
        assert apart(ask(decode), expected) > 0.5

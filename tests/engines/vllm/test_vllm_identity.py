"""What the meaning of KV depends on: every setting of vLLM that changes its values, and none that does not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs

from nanokv.bench.vllm.process import EngineProcess, connector
from nanokv.integrations.vllm.facts import FactsFiles, difference, packed, unpacked
from nanokv.integrations.vllm.identity import facts_of
from nanokv.integrations.vllm.settings import parse
from tests.engines.vllm.conftest import PROMPTS, TOKENS, Pair, but_one, total
from tests.engines.vllm.kinds import MAKERS

FEW = PROMPTS[:8]
StartPair = Callable[..., Pair]


def facts(model: Path, flags: dict[str, Any] | None = None, **arguments: Any) -> dict[str, str]:
    transfer = connector("kv_both", **flags or {})
    given: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 1024, "block_size": 32} | arguments
    engine = EngineArgs(model=str(model), kv_transfer_config=KVTransferConfig(**transfer), **given)
    return facts_of(engine.create_engine_config(), parse(transfer["kv_connector_extra_config"]))


@pytest.fixture(scope="module")
def usual(model: Path) -> dict[str, str]:
    return facts(model)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_model_len": 512}, "max_model_len 512, here 1024"),
        ({"max_model_len": -1}, "max_model_len auto, here 1024"),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}}, "rope_theta 777.0"),
        ({"hf_overrides": {"attention_bias": True}}, "config.attention_bias true, here false"),
        ({"dtype": "float32"}, "dtype torch.float32, here torch.bfloat16"),
        ({"block_size": 64}, "cache.block_size 64, here 32"),
        ({"revision": "0123abc"}, "revision 0123abc"),
        ({"enable_lora": True, "max_lora_rank": 8}, "lora on, here not set"),
        ({"prefix_caching_hash_algo": "sha256_cbor"}, "cache.prefix_caching_hash_algo sha256_cbor, here sha256"),
        ({"load_format": "dummy"}, "load_format dummy, seed 0"),
        ({"disable_sliding_window": True}, "disable_sliding_window true, here false"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_changes_kv_is_part_of_it(
    usual: dict[str, str], model: Path, arguments: dict[str, Any], named: str
) -> None:
    assert named in difference(facts(model, **arguments), usual)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": 7},
        {"max_num_seqs": 3, "max_num_batched_tokens": 1024},
        {"enforce_eager": True},
        {"kv_cache_memory_bytes": 123 << 20, "num_gpu_blocks_override": 77},
        {"enable_prefix_caching": False},
        {"served_model_name": "another"},
        {"generation_config": "vllm"},
        {"max_logprobs": 5},
        {"hf_token": "secret"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_does_not_is_none(usual: dict[str, str], model: Path, arguments: dict[str, Any]) -> None:
    assert difference(facts(model, **arguments), usual) == ""


def test_a_name_stands_for_the_folder(usual: dict[str, str], model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    assert "model " in difference(facts(copy), usual)
    named = facts(model, {"model": "one name"})
    assert difference(facts(copy, {"model": "one name"}), named) == ""
    assert difference(facts(copy, {"model": "one name"}, tokenizer=str(model)), named) == ""
    assert str(tmp_path) not in str(facts(copy, {"model": "one name"})), "a path of a host is in it"


def test_engines_of_two_folders_share_under_one_name(
    start_pair: StartPair, model: Path, tmp_path: Path, expected: list[list[int]]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    pair = start_pair({"model": "one name"}, of_decode={"model": str(copy)})
    pair.hand_over(FEW)
    found = pair.generate(FEW)
    assert (found["tokens"], found["cached"]) == (expected[: len(FEW)], but_one(FEW))


def test_the_limit_chooses_the_factors_of_long_rope(tmp_path: Path) -> None:
    """Prefill with the short factors, decode with the long ones, as `max_model_len` says: nothing is shared, and both
    say why."""
    folder = tmp_path / "longrope"
    MAKERS["longrope"](folder)
    name = f"test-vllm-longrope-{os.getpid()}"
    flags = {"name": name, "world_size": 2, "size": "64MiB"}
    with (
        EngineProcess(folder, max_model_len=1024) as alone,
        EngineProcess(folder, max_model_len=512) as short,
        EngineProcess(folder, connector("kv_producer", rank=0, target=1, **flags), max_model_len=512) as prefill,
        EngineProcess(folder, connector("kv_consumer", rank=1, **flags), max_model_len=1024) as decode,
    ):
        expected = alone.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"]
        assert short.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"] != expected, "the control"
        prefill.ask("generate", prompts=FEW, tokens=1)
        found = decode.ask("generate", prompts=FEW, tokens=TOKENS)
        assert (found["tokens"], total(decode, "gets")) == (expected, 0)
        assert decode.log().count("rank 0 stores under another identity: max_model_len 512, here 1024") == 1


def test_facts_are_kept_and_compared(tmp_path: Path) -> None:
    files = FactsFiles(tmp_path, "world", 3)
    mine = {"dtype": "float32", "max_model_len": "2048"}
    files.write(1, mine)
    assert files.differences(mine) == []
    files.write(0, mine | {"max_model_len": "512"})
    (line,) = files.differences(mine)
    assert line == "rank 0 stores under another identity: max_model_len 512, here 2048"
    (tmp_path / next(iter(tmp_path.glob("*-0.json")))).write_text("no json")
    assert files.differences(mine) == []
    assert FactsFiles(tmp_path, "another", 3).differences({}) == []
    many = {f"setting{number}": "1" for number in range(9)}
    assert difference(many, {}).endswith("; and 5 more")
    assert unpacked(packed(many)) == many
    assert [unpacked(text) for text in ("", "?", packed(many)[:-9])] == [None] * 3

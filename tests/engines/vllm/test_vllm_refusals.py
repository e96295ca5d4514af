"""What the connector refuses when an engine starts, with vLLM's own configuration, factory and base class."""

import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import CrossAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from nanokv.bench.vllm.process import connector
from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm import NanoKVConnector


def config_of(model: Path, transfer: dict[str, Any], **arguments: Any) -> Any:
    engine = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        block_size=32,
        kv_transfer_config=KVTransferConfig(**transfer),
        **{"max_model_len": 1024} | arguments,
    )
    return engine.create_engine_config()


def groups(count: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], spec) for i in range(count)]
    )


def make(config: Any, kv_cache_config: KVCacheConfig) -> KVConnectorBase_V1:
    """As vLLM's scheduler does."""
    found: KVConnectorBase_V1 = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, kv_cache_config)
    return found


def test_the_factory_makes_it(model: Path) -> None:
    made = make(config_of(model, connector("kv_both")), groups(1))
    assert type(made) is NanoKVConnector
    assert made.role == KVConnectorRole.SCHEDULER
    assert not made.requires_kv_delivery


def test_all_that_is_abstract_is_there_and_nothing_is_misspelled() -> None:
    assert not inspect.isabstract(NanoKVConnector)
    bases = (KVConnectorBase_V1, SupportsHMA)
    theirs = {name: getattr(base, name) for base in bases for name, _ in inspect.getmembers(base)}
    mine = {name for name in vars(NanoKVConnector) if not name.startswith("_")}
    assert mine <= theirs.keys(), "vLLM does not call these"
    for name in mine:
        base, here = theirs[name], getattr(NanoKVConnector, name)
        if callable(base) and name != "build_prom_metrics":
            assert list(inspect.signature(base).parameters) == list(inspect.signature(here).parameters), name


def test_groups_that_lose_no_single_block(model: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"load=layer.*2 groups.*take nanokv.load=async"):
        make(config_of(model, connector("kv_both", load="layer")), groups(2))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (CrossAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32), "CrossAttention"),
        (
            FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32, non_causal=True),
            "not causal",
        ),
    ],
)
def test_kinds_that_are_not_known(model: Path, spec: Any, why: str) -> None:
    planned = groups(1)
    planned.kv_cache_groups.append(KVCacheGroupSpec(["another"], spec))
    with pytest.raises(InvalidArgument, match=why):
        make(config_of(model, connector("kv_both")), planned)


def test_wrong_flags(model: Path) -> None:
    for flags, says in (
        ({"nope": 1}, "no flag 'nanokv.nope'"),
        ({"size": "much"}, "a size such as 4GiB"),
        ({"world_size": 2}, "the same nanokv.name"),
        ({"name": "pd", "world_size": 2, "rank": 2}, "more than nanokv.world_size=2 has"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            make(config_of(model, connector("kv_both", **flags)), groups(1))


def test_hashes_that_differ_between_processes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    config = config_of(model, connector("kv_both"), prefix_caching_hash_algo="xxhash")
    with pytest.raises(InvalidArgument, match="PYTHONHASHSEED"):
        make(config, groups(1))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    make(config, groups(1))


def test_context_parallelism(model: Path) -> None:
    config = config_of(model, connector("kv_both"))
    config.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(InvalidArgument, match="decode_context_parallel_size=2"):
        make(config, groups(1))

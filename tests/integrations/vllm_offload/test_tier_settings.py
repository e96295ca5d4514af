"""What a tier may be told, and what its keys depend on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import Locality
from vllm.v1.kv_offload.config import OffloadingCacheConfig, OffloadingGroupConfig, OffloadingModelConfig
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.integrations.vllm_offload.identity import identity_of
from tests.integrations.vllm_offload.parts import MODULE, Tiered, config, keys_of, right

Start = Callable[..., Tiered]
TIER = "vLLM SecondaryTierManager"
PLAIN = config()


@pytest.mark.surface(TIER, "loading by type and module_path")
def test_vllm_finds_the_class_by_its_path() -> None:
    from nanokv.integrations.vllm_offload import NanoKVTier

    assert SecondaryTierFactory.get_tier_class({"type": "NanoKVTier", "module_path": MODULE}) is NanoKVTier


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nmae": "x"}, "there is no setting 'nmae'; the settings are name, .*, threads, spread"),
        ({"size": "much"}, "size must be a size"),
        ({"size": 4096}, "does not hold one block of 8192 bytes"),
        ({"max_object": 4096}, "max_object=4096 is less than a block has"),
        ({"threads": 0}, "threads must be 1 to 64"),
        ({"spread": 1}, "spread must be true or false"),
        ({"model": None}, "model must be a str"),
        ({"locality": "NEAR"}, "locality must be LOCAL or REMOTE"),
        ({"node": "a"}, "node is about a cluster"),
        ({"spread": True, "enable_kv_events": True}, "enable_kv_events is about this process' segment"),
    ],
)
def test_a_wrong_setting_is_named_when_the_engine_starts(start: Start, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        start(**settings)


def test_a_world_of_other_settings_is_refused(start: Start) -> None:
    start()
    with pytest.raises(HeapUnavailable, match="page_bytes"):
        start(page_bytes=8192)


def test_more_engines_than_ranks_are_refused(start: Start) -> None:
    start(ranks=1)
    with pytest.raises(HeapUnavailable, match="give it more ranks"):
        start(ranks=1)


def test_blocks_larger_than_the_default_objects_fit(start: Start) -> None:
    tiered = start(workers=30, page_bytes=1024)  # rows of 37 pages of 4 KiB: more than 128 of 1 KiB
    tiered.compute(keys_of([1]))
    tiered.forget()
    assert all(right(tiered, keys_of([1]), tiered.load(keys_of([1]))))


def test_backpressure_is_vllms_own(start: Start) -> None:
    tiered = start(backpressure={"backpressure_cls": "EMABackpressureDetector", "policy_cls": "DropStorePolicy"})
    assert tiered.tier.bp_detector is not None
    tiered.compute(keys_of([1]))
    assert tiered.tier.bp_detector.stats


@pytest.mark.parametrize("locality", ["LOCAL", "REMOTE"])
def test_locality_may_be_given(start: Start, locality: str) -> None:
    assert start(locality=locality).tier.locality is Locality(locality)


OTHERS = {
    "model": {"model": OffloadingModelConfig("another", "bfloat16")},
    "dtype": {"model": OffloadingModelConfig("a-model", "float8")},
    "hash blocks": {"cache": OffloadingCacheConfig(32, 1)},
    "tokens per block": {"groups": (OffloadingGroupConfig(32, ("layers.0", "layers.1"), 0),)},
    "layers": {"groups": (OffloadingGroupConfig(16, ("layers.0",), 0),)},
    "groups": {"groups": (*PLAIN.groups, OffloadingGroupConfig(16, ("layers.2",), 1))},
    "layout": {"kv_cache_layout": "BLHNC"},
    "canonical": {"canonical_layout": True},
    "replicated": {"replicated_layout": True},
    "tensor parallelism": {"parallel": replace(PLAIN.parallel, tp_size=2, world_size=2)},
    "pipelines": {"parallel": replace(PLAIN.parallel, pp_size=2, world_size=2)},
    "contexts": {"parallel": replace(PLAIN.parallel, dcp_size=2)},
}


@pytest.mark.surface(TIER, "keys: what must not be shared")
@pytest.mark.parametrize("what", OTHERS)
def test_engines_whose_bytes_differ_share_nothing(start: Start, what: str) -> None:
    first, second = start(chunks=4), start(chunks=4, change=OTHERS[what])
    first.compute(keys_of([1]))
    assert first.tier.joined.cache.options.identity != second.tier.joined.cache.options.identity
    assert right(second, keys_of([1]), second.load(keys_of([1]))) == [False]
    second.compute(keys_of([1]))
    first.forget()
    assert right(first, keys_of([1]), first.load(keys_of([1]))) == [True]


@pytest.mark.parametrize("setting", ["revision", "model", "namespace"])
def test_weights_and_tenants_can_be_told_apart(start: Start, setting: str) -> None:
    first, second, same = start(**{setting: "a"}), start(**{setting: "b"}), start(**{setting: "a"})
    first.compute(keys_of([1]))
    assert right(second, keys_of([1]), second.load(keys_of([1]))) == [False]
    assert right(same, keys_of([1]), same.load(keys_of([1]))) == [True]


def test_an_engine_and_a_replica_of_it_are_one(start: Start) -> None:
    parallel = replace(PLAIN.parallel, data_parallel_index=1, data_parallel_size=2, data_parallel_rank_local=1)
    first, second = start(), start(change={"parallel": parallel, "engine_id": f"{PLAIN.engine_id}_dp1"})
    first.compute(keys_of([1]))
    assert right(second, keys_of([1]), second.load(keys_of([1]))) == [True]


def test_degrees_of_parallelism_do_not_matter_where_vllm_says_so() -> None:
    def identity(**parallel: Any) -> Any:
        made = replace(PLAIN, parallel=replace(PLAIN.parallel, **parallel))
        return identity_of(made, kind="row", nbytes=1, whole=True)

    portable = {"is_parallelism_agnostic": True}
    assert identity(**portable, tp_size=2, world_size=2) == identity(**portable, tp_size=4, world_size=4)
    assert identity(tp_size=2, world_size=2) != identity(tp_size=4, world_size=4)
    assert identity(**portable) != identity()

"""Who shares pages and who does not: ranks, models, pools, namespaces; and what `clear` removes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanokv.integrations.joining import join, parse

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.runtime_context import get_context

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, all_of, emptied, keys_of, same

Start = Callable[..., Any]
APART: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tp_rank": 0, "tp_size": 2}, {"tp_rank": 1, "tp_size": 2}),
    ({"tp_rank": 0, "tp_size": 1}, {"tp_rank": 0, "tp_size": 2}),
    ({"pp_rank": 0, "pp_size": 2}, {"pp_rank": 1, "pp_size": 2}),
    ({"attn_cp_rank": 0, "attn_cp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2}),
    ({"model_name": "a/model"}, {"model_name": "a/model-2"}),
    ({"settings": {"namespace": "a"}}, {"settings": {"namespace": "b"}}),
]


@pytest.mark.surface(INTERFACE, "exists")
@pytest.mark.parametrize(("one", "two"), APART)
def test_what_differs_does_not_share(start: Start, one: dict[str, Any], two: dict[str, Any]) -> None:
    mine, theirs = start(**one), start(**two)
    assert mine.set("a", torch.full((4,), 1)) and not theirs.exists("a") and theirs.get("a") is None
    assert theirs.set("a", torch.full((4,), 2))
    assert int(mine.get("a")[0]) == 1 and int(theirs.get("a")[0]) == 2


@pytest.mark.surface(INTERFACE, "exists")
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda: parts.mha("page_first"), lambda: parts.mha("layer_first")),
        (lambda: parts.mha(dtype=torch.bfloat16), lambda: parts.mha(dtype=torch.float16)),
        (lambda: parts.mha(heads=2), lambda: parts.mha(heads=1)),
        (lambda: parts.asymmetric("page_first"), lambda: parts.asymmetric("page_first_direct")),
    ],
)
def test_pools_of_another_layout_do_not_share(start: Start, one: Callable[[], Any], two: Callable[[], Any]) -> None:
    first, second = one(), two()
    mine, theirs = start(first), start(second)
    keys, indices = all_of(first)
    assert all(mine.batch_set_v1(keys, indices)) and mine.batch_exists(keys) == len(keys)
    assert theirs.batch_exists(keys) == 0
    assert theirs.batch_get_v1(keys, indices) == [False] * len(keys)


def test_the_dtype_of_the_cache_counts_where_a_pool_only_has_bytes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All FP8 formats are uint8 in SGLang's pools; only its configuration tells which one it is."""
    told = SimpleNamespace(kv_cache_dtype="fp8_e4m3", quantization=None, revision=None)
    context = get_context()
    monkeypatch.setattr(type(context), "is_config_namespace_published", lambda self, name: name == "model")
    monkeypatch.setattr(type(context), "config_bag", lambda self, name: told)
    e4m3 = start()
    assert e4m3.set("a", torch.zeros(4)) and start().exists("a")
    told.kv_cache_dtype = "fp8_e5m2"
    assert not start().exists("a")
    told.kv_cache_dtype, told.revision = "fp8_e4m3", "another"
    assert not start().exists("a")


@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_ranks_share_latents(start: Start) -> None:
    """Only one of them writes; the others find what it has written."""
    pool = parts.mla()
    writer = start(pool, is_mla_model=True, tp_rank=0, tp_size=2)
    reader = start(pool, is_mla_model=True, tp_rank=1, tp_size=2)
    keys, indices = all_of(pool)
    assert writer.storage_config.is_storage_writer and not reader.storage_config.is_storage_writer
    assert all(writer.batch_set_v1(keys, indices))
    stored = emptied(pool)
    for backend in (writer, reader):
        backend.cache.flush()
        assert backend.cache.segment_count() > 0  # they lie in the segments of both
    assert reader.batch_exists(keys) == len(keys)
    assert all(reader.batch_get_v1(keys, indices)) and same(pool, stored)
    stage = start(parts.mla(), is_mla_model=True, tp_rank=0, tp_size=2, pp_rank=1, pp_size=2)
    assert stage.batch_exists(keys) == 0


@pytest.mark.surface(INTERFACE, "batch_get_v2")
@pytest.mark.parametrize(("name", "pool"), [(PoolName.MAMBA, parts.mamba), (PoolName.DRAFT, parts.mha)])
def test_states_and_drafts_are_of_one_rank_also_beside_latents(start: Start, name: Any, pool: Any) -> None:
    backends = []
    for rank in range(2):
        backend = start(parts.mla(), is_mla_model=True, tp_rank=rank, tp_size=2)
        backend.register_mem_host_pool_v2(pool(), name)
        backends.append(backend)
    side = backends[0].registered_pools[name]
    move = [PoolTransfer(name=name, keys=keys_of(2), host_indices=torch.arange(2 * side.page_size))]
    assert backends[0].batch_set_v2(move) == {name: [True, True]}
    assert backends[0].batch_get_v2(move) == {name: [True, True]}
    assert backends[1].batch_get_v2(move) == {name: [False, False]}


@pytest.mark.surface(INTERFACE, "batch_get_v2")
def test_other_pools_of_a_replicated_model_are_shared(start: Start) -> None:
    backends = []
    for rank in range(2):
        backend = start(parts.mla(), is_mla_model=True, tp_rank=rank, tp_size=2)
        backend.register_mem_host_pool_v2(parts.mla(), PoolName.DRAFT)
        backends.append(backend)
    move = [PoolTransfer(name=PoolName.DRAFT, keys=keys_of(2), host_indices=torch.arange(2 * parts.PAGE))]
    assert backends[0].batch_set_v2(move) == {PoolName.DRAFT: [True, True]} == backends[1].batch_get_v2(move)


@pytest.mark.surface(INTERFACE, "clear", differs="in a cluster only the pages on this host")
def test_clear_removes_what_is_ours_and_nothing_else(start: Start) -> None:
    pool, side = parts.mha(), parts.mamba()
    mine = start(pool, tp_rank=0, tp_size=2)
    again = start(parts.mha(), tp_rank=0, tp_size=2)  # another engine of the same model and rank
    theirs = start(parts.mha(), tp_rank=1, tp_size=2)
    other = start(parts.mha(), tp_rank=0, tp_size=2, model_name="another")
    mine.register_mem_host_pool_v2(side, PoolName.MAMBA)
    keys, indices = all_of(pool)
    for backend in (mine, theirs, other):
        assert all(backend.batch_set_v1(keys, indices))
    assert again.batch_set_v1(["more"], torch.arange(parts.PAGE)) == [True]
    move = [PoolTransfer(name=PoolName.MAMBA, keys=keys[:2], host_indices=torch.arange(2))]
    assert mine.batch_set_v2(move) == {PoolName.MAMBA: [True, True]}
    with join(parse(parts.extra()["nanokv"])) as foreign:
        foreign.cache.put("of another program", torch.zeros(3))
        mine.clear()
        assert foreign.cache.exists("of another program")
    assert mine.batch_exists(keys) == 0 and not mine.exists("more")
    assert mine.batch_get_v2(move) == {PoolName.MAMBA: [False, False]}
    assert theirs.batch_exists(keys) == other.batch_exists(keys) == len(keys)
    assert all(mine.batch_set_v1(keys, indices))

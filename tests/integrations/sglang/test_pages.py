"""Pages of SGLang's host pools come back bit by bit: each pool, each layout, by SGLang's own controller functions."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.managers.cache_controller import HiCacheController

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, MHA_LAYOUTS, MLA_LAYOUTS, all_of, emptied, is_empty, same

Start = Callable[..., Any]
POOLS = [(parts.mha, layout) for layout in MHA_LAYOUTS] + [(parts.mla, layout) for layout in MLA_LAYOUTS]
V1 = (HiCacheController._page_set_zero_copy, HiCacheController._page_get_zero_copy)
GENERIC = (HiCacheController._generic_page_set, HiCacheController._generic_page_get)
OPERATION = SimpleNamespace(request_id="request", is_terminated=lambda: False)


def controller(backend: Any, pool: Any) -> Any:
    """As much of a controller as its functions for pages use."""
    return SimpleNamespace(storage_backend=backend, storage_host_pool=pool, page_size=parts.PAGE)


@pytest.mark.surface(INTERFACE, "register_mem_pool_host")
@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.surface(INTERFACE, "batch_exists")
@pytest.mark.parametrize(
    ("kind", "layout"), [*POOLS, (parts.asymmetric, "page_first"), (parts.asymmetric, "page_first_direct")]
)
def test_pages_of_all_layouts_are_moved_in_place(start: Start, kind: Any, layout: str) -> None:
    pool = kind(layout)
    backend = start(pool, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys, indices) == [True] * len(keys)
    assert backend.batch_exists(keys) == len(keys)
    stored = emptied(pool)
    assert backend.batch_get_v1(keys, indices) == [True] * len(keys)
    assert same(pool, stored)


@pytest.mark.surface(INTERFACE, "batch_set")
@pytest.mark.surface(INTERFACE, "batch_get")
@pytest.mark.parametrize(("written", "read"), [(V1, GENERIC), (GENERIC, V1)], ids=["v1-generic", "generic-v1"])
@pytest.mark.parametrize(("kind", "layout"), POOLS)
def test_both_kinds_of_calls_find_the_same_pages(start: Start, kind: Any, layout: str, written: Any, read: Any) -> None:
    pool = kind(layout)
    control = controller(start(pool, is_mla_model=kind is parts.mla), pool)
    keys, indices = all_of(pool)
    assert written[0](control, keys, indices)
    stored = emptied(pool)
    assert read[1](control, OPERATION, keys, indices) == len(keys)
    assert same(pool, stored)


@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.parametrize(("kind", "layout"), [*POOLS[:2], POOLS[4]])
def test_pages_go_to_any_place_of_the_pool(start: Start, kind: Any, layout: str) -> None:
    pool = kind(layout)
    backend = start(pool, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pool)
    by_page = indices.view(-1, parts.PAGE)
    assert all(backend.batch_set_v1(keys, by_page.flip(0).reshape(-1)))
    flat = [pool.get_data_page(int(page[0])).clone() for page in by_page.flip(0)]
    emptied(pool)
    some = [4, 1, 6]
    assert backend.batch_get_v1([keys[i] for i in some], by_page[:3].reshape(-1)) == [True] * 3
    for place, i in enumerate(some):
        assert torch.equal(pool.get_data_page(place * parts.PAGE).view(torch.uint8), flat[i].view(torch.uint8))
    assert not any(pool.get_data_page(int(page[0])).any() for page in by_page[3:])


@pytest.mark.surface(INTERFACE, "batch_exists")
@pytest.mark.parametrize("calls", [V1, GENERIC], ids=["v1", "generic"])
def test_a_prefetch_ends_at_the_first_page_that_is_missing(start: Start, calls: Any) -> None:
    pool = parts.mha()
    backend = start(pool)
    control = controller(backend, pool)
    keys, indices = all_of(pool)
    assert calls[0](control, keys[:2] + keys[3:], torch.cat([indices[: 2 * parts.PAGE], indices[3 * parts.PAGE :]]))
    assert backend.batch_exists(keys) == 2
    emptied(pool)
    assert calls[1](control, OPERATION, keys, indices) == 2
    assert backend.exists(keys[3]) and not backend.exists(keys[2])


@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_an_object_of_another_size_is_a_miss(start: Start, layout: str) -> None:
    pool = parts.mha(layout)
    backend = start(pool)
    assert backend.set("a", torch.full((8192,), 127, dtype=torch.uint8))
    emptied(pool)
    indices = torch.arange(2 * parts.PAGE)
    assert backend.batch_get_v1(["a", "b"], indices) == [False, False]
    assert is_empty(pool)
    target = torch.zeros(8192, dtype=torch.uint8)
    assert backend.get("a", target[:4096]) is None
    assert backend.batch_get(["a", "b"], [target[:4096], target[4096:]]) == [None, None]
    assert not target.any()


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_an_object_of_another_size_is_replaced_by_the_page(start: Start, layout: str) -> None:
    pool = parts.mha(layout)
    backend = start(pool)
    keys, indices = all_of(pool)
    assert backend.set(keys[1], torch.zeros(100))
    assert backend.batch_set_v1(keys, indices) == [True] * len(keys)
    stored = emptied(pool)
    assert all(backend.batch_get_v1(keys, indices)) and same(pool, stored)


@pytest.mark.surface(INTERFACE, "batch_set_v1")
def test_a_page_that_is_there_is_stored_once(start: Start) -> None:
    pool = parts.mha()
    backend = start(pool)
    keys, indices = all_of(pool)
    assert all(backend.batch_set_v1(keys, indices))
    backend.cache.flush()
    used = backend.cache.segment_count()
    emptied(pool)
    assert all(backend.batch_set_v1(keys, indices))  # what has a key keeps it: the pages are of the same tokens
    backend.cache.flush()
    assert backend.cache.segment_count() == used == len(keys)
    assert all(backend.batch_get_v1(keys, indices)) and not is_empty(pool)


@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_indices_that_are_not_those_of_the_pages_are_refused(start: Start) -> None:
    pool = parts.mha()
    backend = start(pool)
    keys, indices = all_of(pool)
    for wrong in (indices[:-1], indices[: parts.PAGE], torch.arange(0), None):
        assert backend.batch_set_v1(keys, wrong) == [False] * len(keys)
        assert backend.batch_get_v1(keys, wrong) == [False] * len(keys)
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1([], torch.arange(0)) == [] == backend.batch_get_v1([], torch.arange(0))


@pytest.mark.surface(INTERFACE, "register_mem_pool_host, a page larger than objects", refused="InvalidArgument")
def test_a_page_that_no_object_holds_is_refused(start: Start) -> None:
    pool = parts.mha()
    backend = start(settings={"max_object": "8KiB"})
    with pytest.raises(ValueError, match="raise max_object"):
        backend.register_mem_pool_host(pool)


@pytest.mark.surface(INTERFACE, "batch_set_v1")
def test_half_a_page_is_a_miss(start: Start) -> None:
    """With heads cut into two objects a page can be there in part, as when one of them was evicted."""
    pool = parts.mha("page_head")
    backend = start(pool, tp_lcm_size=2, should_split_heads=True)
    keys, indices = all_of(pool)
    assert all(backend.batch_set_v1(keys, indices))
    scope = backend.pools.get("kv").scopes[1]
    assert backend.cache.remove_many([f"{scope}/{keys[2]}"]) == [True]
    assert backend.batch_exists(keys) == 2
    assert backend.batch_get_v1(keys, indices) == [True, True, False, *[True] * (len(keys) - 3)]
    assert backend.batch_set_v1(keys, indices) == [True] * len(keys)
    assert backend.batch_exists(keys) == len(keys)


@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_ranks_of_another_degree_of_parallelism_find_their_heads(start: Start) -> None:
    whole = parts.mha("page_head", heads=4)
    one = start(whole, tp_lcm_size=2, should_split_heads=True)
    keys, indices = all_of(whole)
    assert all(one.batch_set_v1(keys, indices))
    for rank in range(2):
        half = parts.mha("page_head", heads=2)
        emptied(half)
        backend = start(half, tp_rank=rank, tp_size=2, tp_lcm_size=2)
        assert backend.batch_exists(keys) == len(keys)
        assert all(backend.batch_get_v1(keys, indices))
        assert same(half, [whole.kv_buffer[:, :, 2 * rank : 2 * rank + 2].contiguous()])

"""Managers that cannot be, and wrong arguments."""

from typing import Any

import pytest

from nanokv.blocks import BlockManager, ImmutableBlock, LayoutConfig
from nanokv.errors import InvalidArgument
from tests.blocks.conftest import (
    LAYOUT,
    NewPool,
    block_of,
    registered,
)

KVBM = "KVBM block manager"


# --- wrong calls ---
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"segment": 1}, "segment"),
        ({"total_blocks": 9}, "total_blocks"),
        ({"total_blocks": 0}, "total_blocks"),
        ({"eviction": "random"}, "eviction"),
        ({"duplication": "maybe"}, "duplication"),
        ({"patience": "long"}, "patience"),
    ],
)
def test_a_manager_refuses_wrong_options(new_pool: NewPool, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        new_pool(8, **options)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_blocks": 2}, "num_blocks"),
        ({"alignment": 8192}, "alignment"),
        ({"inner_dim": 1 << 20}, "at most"),
        ({"inner_dim": 300}, "room for two blocks"),
    ],
)
def test_a_manager_refuses_a_layout_that_does_not_fit(new_pool: NewPool, change: dict[str, int], why: str) -> None:
    pool = new_pool(8)
    layout = LayoutConfig(**{**vars(LAYOUT), **change})
    with pytest.raises(InvalidArgument, match=why):
        BlockManager(pool.cache, layout)


@pytest.mark.parametrize(("world", "why"), [({"evict": True}, "evict=False"), ({"alloc": "host"}, "device")])
def test_a_manager_refuses_a_world_that_does_not_suit(new_pool: NewPool, world: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        new_pool(8, world=world)


@pytest.mark.parametrize("count", [-1, 1.5, None, "3"])
def test_allocation_refuses_a_wrong_count(new_pool: NewPool, count: Any) -> None:
    with pytest.raises(InvalidArgument):
        new_pool(2).allocate_blocks(count)


def test_a_handle_says_what_it_is(new_pool: NewPool) -> None:
    block = registered(new_pool(2), block_of(0))
    assert repr(block) == f"<ImmutableBlock {block.block_id}, Registered>"
    block.drop()
    assert repr(block).endswith("ended by drop>") and isinstance(block, ImmutableBlock)

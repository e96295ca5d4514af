"""Layouts: strides against the formula and against torch's own, views that share memory, wrong arguments."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.dlpack import from_dlpack

from nanokv.blocks import (
    Block,
    BlockList,
    FullyContiguous,
    LayerSeparate,
    LayoutConfig,
    MemoryDescriptor,
    align_up,
)
from nanokv.errors import InvalidArgument
from tests.blocks.conftest import NewPool, block_of, registered, taken

KVBM = "KVBM block manager"
SMALL = LayoutConfig(num_layers=3, outer_dim=2, page_size=4, inner_dim=5, dtype=torch.float32, num_blocks=7)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float64]
CONFIGS = st.builds(
    LayoutConfig,
    num_layers=st.integers(1, 5),
    outer_dim=st.integers(1, 2),
    page_size=st.integers(1, 9),
    inner_dim=st.integers(1, 13),
    dtype=st.sampled_from(DTYPES),
    alignment=st.sampled_from([1, 2, 8, 64, 256, 4096]),
    num_blocks=st.integers(1, 6),
)
#: a layout's class and how it is made
KINDS = ("FullyContiguous", "outer contiguous", "block contiguous")


def memory(config: LayoutConfig, kind: str) -> tuple[Any, list[torch.Tensor]]:
    """A layout over memory of exactly the size that is required, and that memory."""
    where = MemoryDescriptor(4096, 1 << 40)
    if kind == "FullyContiguous":
        layout: Any = FullyContiguous(config, [where])
    else:
        outer = kind == "outer contiguous"
        layout = LayerSeparate(config, [where] * config.num_layers, outer_contiguous=outer)
    tensors = [torch.zeros(layout.required_allocation_size, dtype=torch.uint8) for _ in layout.regions]
    regions = [MemoryDescriptor.of(each) for each in tensors]
    if kind == "FullyContiguous":
        return FullyContiguous(config, regions), tensors
    return LayerSeparate(config, regions, outer_contiguous=layout.outer_contiguous), tensors


@pytest.mark.surface(KVBM, "FullyContiguous")
@given(CONFIGS)
def test_fully_contiguous_has_the_strides_of_the_formula(config: LayoutConfig) -> None:
    layout, _ = memory(config, "FullyContiguous")
    page = config.page_size * config.inner_dim * config.dtype.itemsize
    layer = page * config.outer_dim
    stride = -(-config.num_layers * layer // config.alignment) * config.alignment
    assert layout.block_stride_in_bytes == stride == align_up(config.num_layers * layer, config.alignment)
    start = layout.regions[0].address + layout.base_offsets[0]
    assert start % config.alignment == 0 and layout.base_offsets[0] < config.alignment
    for block in range(config.num_blocks):
        for index in range(config.num_layers * config.outer_dim):
            at, outer = divmod(index, config.outer_dim)
            found = layout.memory_region(block, at, outer)
            assert found.address == start + block * stride + at * layer + outer * page and found.size == page
            assert found.address == layout.regions[0].address + found.offset


@pytest.mark.surface(KVBM, "LayerSeparate")
@pytest.mark.parametrize("outer_contiguous", [True, False])
@given(config=CONFIGS)
def test_layer_separate_has_the_strides_of_a_tensor(outer_contiguous: bool, config: LayoutConfig) -> None:
    kind = "outer contiguous" if outer_contiguous else "block contiguous"
    layout, _ = memory(config, kind)
    page = config.page_size * config.inner_dim * config.dtype.itemsize
    block = align_up(page if outer_contiguous else page * config.outer_dim, config.alignment)
    strides = (block, config.num_blocks * block) if outer_contiguous else (block, page)
    for at in range(config.num_layers):
        start = layout.regions[at].address + layout.base_offsets[at]
        for number in range(config.num_blocks):
            for outer in range(config.outer_dim):
                found = layout.memory_region(number, at, outer)
                assert (found.storage, found.size) == (at, page)
                assert found.address == start + number * strides[0] + outer * strides[1]


@pytest.mark.parametrize("kind", KINDS)
@given(config=CONFIGS)
def test_pages_lie_in_their_regions_and_never_meet(kind: str, config: LayoutConfig) -> None:
    layout, tensors = memory(config, kind)
    marks = [torch.zeros_like(each, dtype=torch.int32) for each in tensors]
    for block in range(config.num_blocks):
        for at in range(config.num_layers):
            for outer in range(config.outer_dim):
                storage, offset, _, size = layout.memory_region(block, at, outer)
                assert offset >= 0 and offset + size <= len(tensors[storage])
                marks[storage][offset : offset + size] += 1
    assert all(int(each.max()) == 1 for each in marks)
    pages = config.num_blocks * config.num_layers * config.outer_dim
    assert sum(int(each.sum()) for each in marks) == pages * config.memory_region_size


@pytest.mark.surface(KVBM, "BlockList")
@pytest.mark.parametrize("kind", KINDS)
@given(config=CONFIGS)
def test_views_are_the_memory_that_the_layout_names(kind: str, config: LayoutConfig) -> None:
    layout, tensors = memory(config, kind)
    blocks = BlockList(layout, tensors)
    assert len(blocks) == len(blocks.to_list()) == config.num_blocks
    for number, block in enumerate(blocks):
        assert len(block) == len(block.to_list()) == len(list(block)) == config.num_layers
        for at, layer in enumerate(block):
            view = layer.tensor
            assert view.shape == (1, 1, config.outer_dim, config.page_size, config.inner_dim)
            assert view.dtype is config.dtype
            for outer in range(config.outer_dim):
                assert view[0, 0, outer].data_ptr() == layout.memory_region(number, at, outer).address
                assert view[0, 0, outer].is_contiguous()
        if kind == "FullyContiguous":
            assert block.tensor.shape == config.block_shape and block.tensor.is_contiguous()
            assert block.tensor.data_ptr() == layout.memory_region(number, 0, 0).address


def test_layer_separate_is_the_paged_cache_of_an_engine() -> None:
    cache = [torch.randn(2, 7, 4, 5) for _ in range(3)]  # per layer: K and V, blocks, tokens, elements
    blocks = BlockList.over(LayerSeparate, SMALL, cache)
    for number, block in enumerate(blocks):
        for at, layer in enumerate(block):
            assert torch.equal(layer.tensor[0, 0], cache[at][:, number])
    blocks[2][1].tensor.fill_(9.0)
    assert (cache[1][:, 2] == 9).all() and not (cache[1][:, 3] == 9).any()
    with pytest.raises(InvalidArgument, match="one by one"):
        from_dlpack(blocks[2])


@pytest.mark.surface(KVBM, "Block.__dlpack__")
@pytest.mark.surface(KVBM, "Layer.__dlpack__")
@pytest.mark.parametrize("fresh", [True, False])
def test_a_block_of_a_pool_is_shared_by_dlpack(new_pool: NewPool, fresh: bool) -> None:
    pool = new_pool(4)
    block = taken(pool, 1)[0] if fresh else registered(pool, block_of(0))
    whole = from_dlpack(block)
    assert whole.data_ptr() == block.tensor.data_ptr() and whole.shape == pool.layout.block_shape
    whole.copy_(torch.arange(whole.numel()).reshape(whole.shape))
    assert len(block) == 2 and torch.equal(block.tensor, whole)
    for at, layer in enumerate(block):
        assert layer.__dlpack_device__() == block.__dlpack_device__() == (1, 0)
        assert torch.equal(from_dlpack(layer), whole[:, at : at + 1])
        assert np.array_equal(np.from_dlpack(layer), whole[:, at : at + 1].numpy())
    assert [each.tensor.data_ptr() for each in block[0:2]] == [each.tensor.data_ptr() for each in block]
    with pytest.raises(IndexError):
        _ = block[2]


def test_a_pool_names_the_memory_of_its_blocks(new_pool: NewPool) -> None:
    pool = new_pool(4)
    block = registered(pool, block_of(0), 3.0)
    found = pool.layout_of(block).memory_region(0, 1, 1)
    assert found.address == block[1].tensor[0, 0, 1].data_ptr() and found.size == pool.layout.memory_region_size
    first = pool.geometry.offsets["heap_base"] + pool.cache.remote_ptr(0, 0)
    assert (found.address - found.offset - first) % pool.geometry.page_bytes == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_layers", 0),
        ("num_layers", True),
        ("outer_dim", 3),
        ("page_size", 0),
        ("inner_dim", 1.5),
        ("alignment", 3),
        ("alignment", 0),
        ("num_blocks", 0),
        ("dtype", "float17"),
        ("dtype", "Tensor"),
        ("dtype", None),
    ],
)
def test_a_config_refuses_what_cannot_be(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        LayoutConfig(**{**vars(SMALL), name: value})


def test_a_config_takes_kvbms_names_of_dtypes() -> None:
    for name, dtype in {"fp16": torch.float16, "bf16": torch.bfloat16, "float32": torch.float32}.items():
        assert LayoutConfig(1, 1, 1, dtype=name).dtype is dtype  # type: ignore[arg-type]


def test_a_layout_refuses_memory_that_does_not_suit() -> None:
    need = FullyContiguous(SMALL, [MemoryDescriptor(0, 1 << 30)]).layout_data_bytes
    FullyContiguous(SMALL, [MemoryDescriptor(64, need)])
    wrong: list[Any] = [
        [MemoryDescriptor(64, need - 1)],
        [MemoryDescriptor(-1, need)],
        [MemoryDescriptor((1 << 64) - 1, need)],
        [MemoryDescriptor(64, need, "RAM")],
        [MemoryDescriptor(64, need, "VRAM", -1)],
        [],
        [MemoryDescriptor(64, need)] * 2,
    ]
    for regions in wrong:
        with pytest.raises(InvalidArgument):
            FullyContiguous(SMALL, regions)
    aligned = LayoutConfig(**{**vars(SMALL), "alignment": 64})
    with pytest.raises(InvalidArgument, match="align the first block"):
        FullyContiguous(
            aligned, [MemoryDescriptor(65, FullyContiguous(aligned, [MemoryDescriptor(0, 1 << 30)]).layout_data_bytes)]
        )


@pytest.mark.parametrize("index", [(7, 0, 0), (0, 3, 0), (0, 0, 2), (-1, 0, 0), (0, 0, 1.0)])
def test_a_page_outside_of_the_layout_is_refused(index: Any) -> None:
    with pytest.raises(InvalidArgument):
        FullyContiguous(SMALL, [MemoryDescriptor(0, 1 << 30)]).memory_region(*index)


def test_a_block_list_refuses_other_memory() -> None:
    tensor = torch.zeros(7 * 3 * 2 * 4 * 5)
    layout = FullyContiguous(SMALL, [MemoryDescriptor.of(tensor)])
    assert isinstance(BlockList(layout, [tensor])[6], Block)
    with pytest.raises(InvalidArgument):
        BlockList(layout, [tensor.clone()])
    with pytest.raises(InvalidArgument, match="contiguous"):
        BlockList(layout, [tensor.view(2, -1).T])
    odd = torch.zeros(4 * tensor.numel() + 1, dtype=torch.uint8)[1:]
    with pytest.raises(InvalidArgument, match="multiples of 4"):
        BlockList.over(FullyContiguous, SMALL, [odd])

"""Layouts as bytes, and the exchange of blocks between workers of different tensor parallelism, byte for byte."""

import json
import struct
from itertools import product
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from nanokv.blocks import (
    BlockList,
    Copy,
    FullyContiguous,
    LayerSeparate,
    Layout,
    LayoutConfig,
    LayoutRefused,
    MemoryDescriptor,
    Shard,
    apply,
    deserialize,
    gather_scatter,
    serialize,
)
from nanokv.errors import InvalidArgument
from tests.blocks.conftest import NewPool, taken
from tests.blocks.test_layouts import CONFIGS, KINDS, memory

KVBM = "KVBM block manager"
HEADER = struct.Struct("<8sIIQ")


# --- as bytes ---
@pytest.mark.surface(KVBM, "serialize")
@pytest.mark.surface(KVBM, "deserialize")
@pytest.mark.parametrize("kind", KINDS)
@given(config=CONFIGS, block_set=st.integers(0, (1 << 64) - 1), worker=st.integers(0, (1 << 64) - 1))
def test_a_layout_comes_back(kind: str, config: LayoutConfig, block_set: int, worker: int) -> None:
    layout, _ = memory(config, kind)
    found = deserialize(serialize(layout, block_set_id=block_set, worker_id=worker))
    assert (found.block_set_id, found.worker_id) == (block_set, worker)
    assert type(found.layout) is type(layout) and vars(found.layout) == vars(layout)
    last = (config.num_blocks - 1, config.num_layers - 1, config.outer_dim - 1)
    assert found.layout.memory_region(*last) == layout.memory_region(*last)


def test_a_message_names_all_that_a_peer_needs(new_pool: NewPool) -> None:
    pool = new_pool(4)
    block = taken(pool, 1)[0]
    message = serialize(pool.layout_of(block), block_set_id=3, worker_id=8)
    content = json.loads(message[HEADER.size :])
    assert content["config"] == {
        "num_layers": 2,
        "outer_dim": 2,
        "page_size": 4,
        "inner_dim": 8,
        "dtype": "float32",
        "alignment": 1,
        "num_blocks": 1,
    }
    size = 2 * 2 * 4 * 8 * 4
    here = {"address": block.tensor.data_ptr(), "size": size, "memory_type": "DRAM", "device_id": 0}
    assert content["regions"] == [here] and content["base_offsets"] == [0] and content["block_set_id"] == 3
    assert content["strides"]["block_stride_in_bytes"] == size


def sample() -> bytes:
    return serialize(memory(LayoutConfig(2, 4, 8, 2, torch.bfloat16, 64, 3), "block contiguous")[0])


@given(st.data())
def test_a_damaged_message_is_refused(data: st.DataObject) -> None:
    message = bytearray(sample())
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LayoutRefused):
        deserialize(bytes(message))


def test_a_cut_or_foreign_message_is_refused() -> None:
    message = sample()
    for wrong in (b"", message[:-1], message + b"x", message[:20], b"\0" * 100, b"{}", "text", None):
        with pytest.raises(LayoutRefused):
            deserialize(wrong)  # type: ignore[arg-type]
    with pytest.raises(LayoutRefused, match="version 2"):
        deserialize(message[:8] + struct.pack("<I", 2) + message[12:])


def signed(content: Any) -> bytes:
    """A message that is whole, whatever is in it."""
    body = json.dumps(content).encode()
    return HEADER.pack(b"NKVBlock", 1, len(body), xxhash.xxh3_64_intdigest(body)) + body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kind",), "Ring"),
        (("config", "num_layers"), 3),
        (("config", "num_blocks"), 1 << 40),
        (("config", "page_size"), 4.0),
        (("config", "dtype"), "float16x"),
        (("config", "dtype"), ["float16"]),
        (("config", "heads"), 4),
        (("config",), []),
        (("outer_contiguous",), True),
        (("outer_contiguous",), None),
        (("base_offsets",), [0, 32]),
        (("strides", "block_stride_in_bytes"), 64),
        (("strides", "layout_data_bytes"), 1),
        (("regions", 0, "size"), 10),
        (("regions", 0, "address"), -64),
        (("regions", 1, "device_id"), "0"),
        (("regions", 1, "memory_type"), "RAM"),
        (("regions",), []),
        (("regions",), [1, 2]),
        (("block_set_id",), -1),
        (("worker_id",), None),
        (("more",), 1),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(path: tuple[Any, ...], value: Any) -> None:
    content = json.loads(sample()[HEADER.size :])
    assert deserialize(signed(content)).block_set_id == 0
    inner = content
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(LayoutRefused):
        deserialize(signed(content))


@pytest.mark.parametrize("content", [None, 7, [], "x", {}, {"kind": "FullyContiguous"}])
def test_other_json_is_refused(content: Any) -> None:
    with pytest.raises(LayoutRefused):
        deserialize(signed(content))


@pytest.mark.parametrize("wrong", [-1, 1 << 64, "1", None])
def test_ids_are_u64(wrong: Any) -> None:
    layout, _ = memory(LayoutConfig(1, 1, 1), "FullyContiguous")
    with pytest.raises(InvalidArgument):
        serialize(layout, block_set_id=wrong)
    with pytest.raises(InvalidArgument):
        serialize(layout, worker_id=wrong)


# --- tensor parallelism ---
LAYERS, OUTER, TOKENS, HEADS, HEAD, BLOCKS = 3, 2, 4, 16, 6, 5
WHOLE = (BLOCKS, LAYERS, OUTER, TOKENS, HEADS * HEAD)


class Workers:
    """The workers of a model, each with its memory."""

    def __init__(self, size: int, kind: str, alignment: int, dtype: torch.dtype = torch.bfloat16) -> None:
        config = LayoutConfig(LAYERS, TOKENS, HEADS * HEAD // size, OUTER, dtype, alignment, BLOCKS)
        made = [memory(config, kind) for _ in range(size)]
        self.shards = [Shard(layout, rank, size) for rank, (layout, _) in enumerate(made)]
        self.tensors = [tensors for _, tensors in made]
        self.lists = [BlockList(layout, tensors) for layout, tensors in made]

    def parts(self, of: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per worker and layer of each block: the elements in place, and those of the whole model that belong there."""
        heads = of.chunk(len(self.lists), dim=-1)
        return [
            (blocks[block][layer].tensor[0, 0], part[block, layer])
            for blocks, part in zip(self.lists, heads, strict=True)
            for block, layer in product(range(BLOCKS), range(LAYERS))
        ]


def exchanged(source: Workers, target: Workers, pairs: list[tuple[int, int]]) -> int:
    """Every target worker fetches its part of each block, by layouts that came as bytes; the number of copies."""
    done = 0
    for theirs, mine in product(range(len(source.shards)), range(len(target.shards))):
        sent = serialize(source.shards[theirs].layout, block_set_id=theirs)
        far = Shard(deserialize(sent).layout, theirs, len(source.shards))
        for source_block, target_block in pairs:
            copies = gather_scatter(far, source_block, target.shards[mine], target_block)
            apply(copies, source.tensors[theirs], target.tensors[mine])
            done += len(copies)
    return done


@pytest.mark.surface(KVBM, "exchange of blocks between TP sizes")
@pytest.mark.parametrize("kinds", [*product(KINDS, KINDS)])
@pytest.mark.parametrize(("ours", "theirs"), [(4, 8), (8, 4), (4, 4), (2, 16), (1, 8)])
def test_blocks_of_one_tp_size_become_those_of_another_and_back(ours: int, theirs: int, kinds: tuple[str, str]) -> None:
    source, target = Workers(ours, kinds[0], 64), Workers(theirs, kinds[1], 1)
    whole = torch.randn(WHOLE).bfloat16()
    for there, content in source.parts(whole):
        there.copy_(content)
    order = [3, 0, 4, 1, 2]  # source block i becomes target block order[i]
    exchanged(source, target, list(enumerate(order)))
    moved = torch.empty_like(whole)
    moved[order] = whole
    for there, content in target.parts(moved):
        assert torch.equal(there, content)
    again = Workers(ours, kinds[0], 64)
    exchanged(target, again, [(to, at) for at, to in enumerate(order)])
    for tensor, before in zip(again.tensors, source.tensors, strict=True):
        assert all(map(torch.equal, tensor, before))  # byte for byte, the gaps too


def test_equal_workers_copy_a_block_at_once() -> None:
    source, target = Workers(4, "FullyContiguous", 1), Workers(4, "FullyContiguous", 1)
    nbytes = LAYERS * OUTER * TOKENS * HEADS * HEAD // 4 * 2
    assert gather_scatter(source.shards[2], 1, target.shards[2], 3) == [Copy(nbytes, 3 * nbytes, nbytes)]
    assert gather_scatter(source.shards[2], 1, target.shards[1], 3) == []


def test_copies_into_two_regions_are_never_merged() -> None:
    config = LayoutConfig(2, 1, 16, 1, torch.float16, 64)  # pages of 32 bytes, half of what the blocks are aligned to
    source = FullyContiguous(config, [MemoryDescriptor(0, 1 << 20)])
    target = LayerSeparate(config, [MemoryDescriptor(64, 1 << 20), MemoryDescriptor(32, 1 << 20)])
    assert gather_scatter(Shard(source), 0, Shard(target), 0) == [Copy(0, 0, 32, 0, 0), Copy(32, 32, 32, 0, 1)]


@pytest.mark.parametrize(("ours", "theirs"), [(4, 8), (8, 4)])
def test_the_lists_of_all_workers_cover_each_target_byte_once(ours: int, theirs: int) -> None:
    source, target = Workers(ours, "FullyContiguous", 1), Workers(theirs, "block contiguous", 1)
    for shard, tensors in zip(target.shards, target.tensors, strict=True):
        marks = [torch.zeros_like(each) for each in tensors]
        for other in source.shards:
            for copy in gather_scatter(other, 0, shard, 2):
                marks[copy.target_region][copy.target_offset : copy.target_offset + copy.nbytes] += 1
        for layer, mark in enumerate(marks):
            first = shard.layout.memory_region(2, layer, 0)
            size = OUTER * first.size
            assert (mark[first.offset : first.offset + size] == 1).all() and int(mark.sum()) == size


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_layers": 2}, "num_layers"),
        ({"outer_dim": 1}, "outer_dim"),
        ({"page_size": 5}, "page_size"),
        ({"dtype": torch.float16}, "dtype"),
        ({"inner_dim": 3}, "inner_dim"),
    ],
)
def test_blocks_of_other_shapes_are_refused(change: dict[str, Any], why: str) -> None:
    source = Workers(4, "FullyContiguous", 1).shards[0]
    config = LayoutConfig(**{**vars(source.layout.config), **change})
    target = Shard(FullyContiguous(config, [MemoryDescriptor(0, 1 << 30)]), 0, 4)
    with pytest.raises(InvalidArgument, match=why):
        gather_scatter(source, 0, target, 0)


def test_wrong_shards_blocks_and_copies_are_refused() -> None:
    workers = Workers(2, "FullyContiguous", 1)
    layout: Layout = workers.shards[0].layout
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(InvalidArgument):
            Shard(layout, rank, size)
    with pytest.raises(InvalidArgument):
        gather_scatter(workers.shards[0], BLOCKS, workers.shards[0], 0)
    data = torch.zeros(16, dtype=torch.uint8)
    for copy in (Copy(8, 0, 9), Copy(0, 8, 9), Copy(-1, 0, 1), Copy(0, 0, 1, 1), Copy(0, 0, 1, 0, 1)):
        with pytest.raises(InvalidArgument, match="leaves the memory"):
            apply([Copy(0, 8, 1), copy], [data + 1], [data])
    assert not data.any()  # none was made
    with pytest.raises(InvalidArgument):
        LayerSeparate(layout.config, [MemoryDescriptor(0, 1 << 30)] * 3, outer_contiguous=1)  # type: ignore[arg-type]

"""The geometry of a segment: regions follow each other for any valid arguments; others are refused clearly."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.cache.engine import plan_geometry
from nanokv.config import Options
from nanokv.device.segment.geometry import (
    MIN_PAGE_BYTES,
    PAYLOAD_ALIGN,
    Geometry,
    default_classes,
    nearest_first,
    producer_word,
)
from nanokv.device.segment.layout import (
    HEAP_CTL,
    LAYOUT,
    MAX_HEADERS,
    MAX_RANKS,
    OBJ_DESC,
    OBJ_HEADER,
    RANK_LAYOUTS,
    SHARDS,
    SIZE_CLASSES,
    WORD,
    unpack,
)
from nanokv.device.segment.record import LINE
from nanokv.device.segment.world_table import WORLD

REGIONS = ("activity", "links", "hdr", "desc", "dir", "turn", "ann", "pin", "layouts", "heap")


@st.composite
def classes(draw: st.DrawFn) -> tuple[int, ...]:
    """Valid size classes."""
    least = draw(st.integers(1, 4))
    factors = draw(st.sets(st.integers(2, 300), max_size=SIZE_CLASSES - 1))
    return (least, *(least * factor for factor in sorted(factors)))


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `Geometry.plan` that it must accept."""
    sizes = draw(st.none() | classes())
    page = draw(st.integers(1, 64)) * MIN_PAGE_BYTES
    pages = draw(st.integers(max(sizes or (1,)), max(sizes or (1,)) + 2000))
    return {
        "heap_bytes": pages * page + draw(st.integers(0, page - 1)),
        "page_bytes": page,
        "world_size": draw(st.integers(1, MAX_RANKS)),
        "size_classes": sizes,
        "max_objects": draw(st.none() | st.integers(1, 5000)),
        "ring_slots": draw(st.none() | st.integers(1, 5000)),
        "pin_slots": draw(st.none() | st.integers(1, 5000)),
        "shards": draw(st.none() | st.sampled_from([1, 2, 4, 64])),
    }


@given(wishes())
def test_regions_are_ordered_aligned_and_disjoint(wish: dict[str, Any]) -> None:
    geometry = Geometry.plan(**wish)
    at = geometry.offsets
    needed = {
        "activity": LINE * geometry.world_size,
        "links": 8 * (geometry.n_pages + geometry.hdr_count),
        "hdr": OBJ_HEADER.size * geometry.hdr_count,
        "desc": OBJ_DESC.size * geometry.hdr_count,
        "dir": 64 * geometry.dir_buckets,
        "turn": 8 * geometry.dir_buckets,
        "ann": 8 * geometry.ann_capacity,
        "pin": 8 * geometry.pin_slots,
        "layouts": LAYOUT.size * RANK_LAYOUTS * geometry.world_size,
        "heap": geometry.n_pages * geometry.page_bytes,
    }
    assert at["activity_base"] >= HEAP_CTL.size
    for one, two in pairwise(REGIONS):
        assert at[f"{one}_base"] % LINE == 0
        assert at[f"{one}_base"] + needed[one] <= at[f"{two}_base"]
    assert at["heap_base"] % PAYLOAD_ALIGN == 0 == at["segment_bytes"] % PAYLOAD_ALIGN
    assert at["heap_base"] + needed["heap"] == at["heap_limit"] <= at["segment_bytes"] == geometry.segment_bytes


@given(wishes())
def test_sizes_are_those_that_were_wished_for(wish: dict[str, Any]) -> None:
    geometry = Geometry.plan(**wish)
    pages, least = wish["heap_bytes"] // wish["page_bytes"], (wish["size_classes"] or (1,))[0]
    assert geometry.n_pages == pages // least * least
    assert geometry.hdr_count == wish["max_objects"] or wish["max_objects"] is None
    for size, wished in ((geometry.ann_capacity, "ring_slots"), (geometry.pin_slots, "pin_slots")):
        assert size & (size - 1) == 0
        assert wish[wished] is None or wish[wished] <= size < 2 * wish[wished]
    assert geometry.dir_buckets & (geometry.dir_buckets - 1) == 0 and geometry.dir_buckets >= 2
    entries = geometry.dir_buckets * 8
    assert entries >= 2 * geometry.hdr_count * 15 // 16, "about half load, even if every key has its home here"
    sizes = [n for n in geometry.class_pages if n]
    assert sizes == list(wish["size_classes"] or default_classes(geometry.n_pages))
    assert geometry.max_object_bytes == sizes[-1] * geometry.page_bytes <= wish["heap_bytes"]


@given(wishes(), st.data())
def test_a_control_block_tells_its_geometry(wish: dict[str, Any], data: st.DataObject) -> None:
    geometry = Geometry.plan(**wish)
    rank = data.draw(st.integers(0, geometry.world_size - 1))
    block = geometry.control_block(rank, 0xFFFFFFFFFFFFFFFF, "host", may_evict=False, water=(10, 20))
    assert geometry.mismatch(block) is None
    assert Geometry.stored_in(block) == geometry
    name = data.draw(st.sampled_from(["magic", "version", "n_pages", "hdr_base", "heap_limit"]))
    block[name] += np.ones_like(block[name])
    assert name.split("_")[0] in str(geometry.mismatch(block))
    with pytest.raises(ValueError):
        Geometry.stored_in(block)


@given(wishes(), st.data())
def test_the_world_table(wish: dict[str, Any], data: st.DataObject) -> None:
    geometry = Geometry.plan(**wish)
    rank = data.draw(st.integers(0, geometry.world_size - 1))
    bases = [4096 * i for i in range(geometry.world_size)]
    table = geometry.world_table(rank, 3, bases)
    row = table[: WORLD.size // 8].view(WORLD.dtype)[0]
    behind = table[WORLD.size // 8 :].tolist()
    assert behind[: geometry.world_size] == bases
    assert behind[geometry.world_size :] == [
        (other - rank) % geometry.world_size for other in range(geometry.world_size)
    ]
    assert (row["rank"], row["producer"]) == (rank, producer_word(rank, 3))
    for name in WORLD.offsets:
        wanted = geometry.offsets.get(name, getattr(geometry, name, None))
        assert wanted is None or np.array_equal(row[name], wanted), name


@given(st.integers(0, MAX_RANKS - 1), st.integers(0, 1 << 40))
def test_a_producer_word_has_32_bits(rank: int, incarnation: int) -> None:
    word = producer_word(rank, incarnation)
    assert 0 <= word < 1 << 32
    assert unpack("PRODUCER", "rank", word) == rank
    assert unpack("PRODUCER", "incarnation", word) == incarnation % (1 << 22)


GOOD: dict[str, Any] = {"heap_bytes": 1 << 20, "page_bytes": 4096, "world_size": 2}


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"heap_bytes": 0}, "heap_bytes must be a positive integer, not 0"),
        ({"heap_bytes": -1}, "heap_bytes .* not -1"),
        ({"heap_bytes": 1.5}, "heap_bytes .* not 1.5"),
        ({"heap_bytes": True}, "heap_bytes .* not True"),
        ({"heap_bytes": 4095}, "heap_bytes=4095 holds no page of page_bytes=4096"),
        ({"page_bytes": 0}, "page_bytes .* not 0"),
        ({"page_bytes": 100}, "page_bytes must be a multiple of 64, not 100"),
        ({"world_size": 0}, "world_size .* not 0"),
        ({"world_size": MAX_RANKS + 1}, f"world_size is at most {MAX_RANKS}"),
        ({"max_objects": 0}, "max_objects must be 1 to .* not 0"),
        ({"max_objects": MAX_HEADERS + 1}, "max_objects"),
        ({"heap_bytes": 64 * MAX_HEADERS, "page_bytes": 64}, "larger pages make fewer objects"),
        ({"size_classes": ()}, "size_classes must be 1 to 24"),
        ({"size_classes": tuple(range(1, 26))}, "size_classes must be 1 to 24"),
        ({"size_classes": (0, 1)}, "size_classes must ascend"),
        ({"size_classes": (2, 2)}, "size_classes must ascend"),
        ({"size_classes": (1, 1)}, "size_classes must ascend"),
        ({"size_classes": (4, 2)}, "size_classes must ascend"),
        ({"size_classes": (2, 3)}, "the smallest of size_classes must divide all others"),
        ({"size_classes": (1, 512)}, "largest size class has 512 pages, the heap has 256"),
        ({"ring_slots": 0}, "ring_slots"),
        ({"shards": 0}, "shards"),
        ({"shards": 3}, "shards"),
        ({"shards": 128}, "shards"),
        ({"pin_slots": -1}, "pin_slots"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Geometry.plan(**(GOOD | wrong))


@pytest.mark.parametrize("sizes", [(2, 3), (4, 2), (0, 4), (1, 0, 4), (1, 512), ()])
def test_a_block_whose_size_classes_cannot_be_is_refused(sizes: tuple[int, ...]) -> None:
    block = Geometry.plan(**GOOD).control_block(0, 1, "device", may_evict=True, water=(85, 95))
    block["class_pages"] = sizes + (0,) * (SIZE_CLASSES - len(sizes))
    with pytest.raises(ValueError, match=r"size.class"):
        Geometry.stored_in(block)


def test_default_classes_are_a_fifth_apart() -> None:
    """No size of up to 128 pages is rounded up by more than a fifth of its extent, nor by more than a page up to 16."""
    geometry = Geometry.plan(1 << 20, 4096, 1)
    wanted = np.arange(1, 129)
    held = geometry.extent_pages(wanted)
    assert geometry.n_classes == SIZE_CLASSES and geometry.class_pages[-1] == 128
    assert (held >= wanted).all() and ((held - wanted) * 5 < held).all() and (held - wanted)[:16].max() == 1
    assert default_classes(30) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28)


def test_no_page_is_left_that_no_extent_can_have() -> None:
    """With classes of 3 and 6 pages a heap of 20 pages has 18."""
    assert Geometry.plan(20 * 4096, 4096, 1, size_classes=(3, 6)).n_pages == 18


def test_a_foreign_block_is_refused() -> None:
    with pytest.raises(ValueError, match="not initialised"):
        Geometry.stored_in(np.zeros(1, HEAP_CTL.dtype))


@pytest.mark.parametrize(
    "options, shards",
    [
        ({}, 4),
        ({"shards": 8}, 8),
        ({"heap_options": {"device": "cpu"}}, 4),
        ({"heap_options": {"device": "cuda:0"}}, 64),
        ({"heap_options": {"device": ("cuda:0", "cuda:1")}}, 64),
        ({"heap_options": {"device": ["cuda:0"]}, "shards": 2}, 2),
        ({"heap_options": {"device": None}}, 4),
        ({"heap": "torch_symm"}, 64),
        ({"heap": "iris"}, 64),
    ],
)
def test_a_heap_on_a_gpu_has_many_free_lists(options: dict[str, Any], shards: int) -> None:
    assert plan_geometry(2048 * 64, 64, 2, Options(**options)).shards == shards


def test_a_small_heap_has_fewer_free_lists() -> None:
    found = [Geometry.plan(pages * 64, 64, 1, shards=None).shards for pages in (1, 16, 32, 100, 1023, 1024, 1 << 20)]
    assert found == [1, 1, 2, 8, 64, 64, 64]
    found = [plan_geometry(pages * 64, 64, 1, Options()).shards for pages in (1, 255, 256, 1 << 20)]
    assert found == [1, 1, 4, 4]


def test_few_lists_lie_apart() -> None:
    """On pairs of cache lines of their own, and so do the links of their nodes; in a small heap they stand in a row."""
    few = Geometry.plan(256 * 64, 64, 1, shards=4)
    assert few.shard_step * WORD == LINE
    assert [place for place in range(SHARDS) if few.is_shard(place)] == [0, 16, 32, 48]
    many, small = Geometry.plan(1024 * 64, 64, 1, shards=64), Geometry.plan(255 * 64, 64, 1, shards=4)
    assert [place for place in range(SHARDS) if many.is_shard(place)] == [*range(64)]
    assert [place for place in range(SHARDS) if small.is_shard(place)] == [0, 1, 2, 3]
    assert [place for place in range(SHARDS) if Geometry.plan(1024 * 64, 64, 1).is_shard(place)] == [0]


def test_the_nearest_rank_comes_first() -> None:
    assert nearest_first(1, 4) == [1, 2, 3, 0]
    assert nearest_first(1, 4, [0, 9, 5, 5]) == [1, 0, 2, 3]
    assert nearest_first(3, 4, [2, 1, 2, 0]) == [3, 1, 0, 2]
    geometry = Geometry.plan(64 * 64, 64, 4)
    table = geometry.world_table(1, 1, [0] * 4, costs=[0, 9, 5, 5])
    assert table[-4:].tolist() == [1, 0, 2, 3]

"""Slices of objects: every pair of layouts against plain torch, and sources that are missing, torn or wrong."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nanokv
from nanokv import Identity, KVLayout, NanoKVCache
from nanokv.check.machine.rank_process import RankCommands
from nanokv.config import Alloc
from nanokv.errors import InvalidArgument, KeyNotFound, NanoKVError, ReuseViolation, SegmentCorrupt
from nanokv.transfer import reshard
from nanokv.transfer.paged import PagedKV
from nanokv.transfer.reshard import plan, refused
from tests.api.test_identity import world_of
from tests.support.faults import Calls
from tests.support.rank_processes import new_folder, starter

KV_HEADS, DIM, LAYERS, TOKENS = 4, 8, 4, 16
ORDERS = ["L2NHD", "2LNHD", "2NLHD", "LN2HD", "L2HND", "NH2LD", "H2NLD"]
WHOLE = KVLayout(layers=LAYERS, kv_heads=KV_HEADS, head_size=DIM, block_size=4, dtype="bfloat16")
ME = Identity("m")


def model(kv_heads: int = KV_HEADS, halves: int = 2, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """All K and V of some tokens: [layers, halves, tokens, heads, dim]."""
    return torch.randn(LAYERS, halves, TOKENS, kv_heads, DIM, generator=torch.Generator().manual_seed(3)).to(dtype)


def of_layout(whole: torch.Tensor, layout: KVLayout, block: int) -> torch.Tensor:
    """The object of a block, by plain torch: [layers, halves, tokens, heads, dim], permuted to the layout's order."""
    layers = slice(layout.first_layer, layout.first_layer + layout.layers)
    tokens = slice(block * layout.block_size, (block + 1) * layout.block_size)
    part = whole[layers, :, tokens, layout.heads.start : layout.heads.stop]
    letters = "L2NHD"
    kept = [letter for letter in letters if letter in layout.order]
    part = part.reshape([size for size, letter in zip(part.shape, letters, strict=True) if letter in kept])
    return part.permute([kept.index(letter) for letter in layout.order]).contiguous()


def put_all(caches: list[NanoKVCache], whole: torch.Tensor) -> list[str]:
    """Each cache puts the blocks of its layout. Returns the keys."""
    for cache in caches:
        layout = cache.options.identity.layout if cache.options.identity else None
        assert layout is not None
        keys = [f"b{block}" for block in range(TOKENS // layout.block_size)]
        for block, key in enumerate(keys):
            cache.put(key, of_layout(whole, layout, block))
    return keys


def engine(layout: KVLayout, blocks: int, kind: str = "block first") -> tuple[list[torch.Tensor], int | None]:
    """The layers of an engine's cache, filled with -1, and the dimension of K and V."""
    tokens, heads, dtype = layout.block_size, len(layout.heads), getattr(torch, layout.dtype)
    shapes = {
        "block first": ((blocks, 2, tokens, heads, DIM), 1),
        "half first": ((2, blocks, tokens, heads, DIM), 0),
        "heads first": ((blocks, 2, heads, tokens, DIM), 1),
        "latents": ((blocks, tokens, heads, DIM), None),
    }
    shape, kv_dim = shapes[kind]
    layers = [torch.full(shape, -1.0, dtype=dtype) for _ in range(layout.layers)]
    return [layer.transpose(2, 3) for layer in layers] if kind == "heads first" else layers, kv_dim


def in_block(layers: list[torch.Tensor], kv_dim: int | None, block: int) -> torch.Tensor:
    """What a block of the engine's cache holds: [layers, halves, tokens, heads, dim]."""
    if kv_dim is None:
        return torch.stack([layer[block].unsqueeze(0) for layer in layers])
    return torch.stack([layer.select(1 - kv_dim, block) for layer in layers])


def wanted_in(whole: torch.Tensor, layout: KVLayout, block: int) -> torch.Tensor:
    """What a block of a reader of `layout` must hold."""
    canonical = "L2NHD" if layout.halves == 2 else "LNHD"
    part = of_layout(whole, replace(layout, order=canonical), block)
    return part if layout.halves == 2 else part.unsqueeze(1)


def writers(source: KVLayout) -> list[tuple[str, Identity | None]]:
    return [("", ME.with_layout(replace(source, tp_rank=rank))) for rank in range(source.tp_size)]


def check(source: KVLayout, mine: KVLayout, kind: str, kv_heads: int = KV_HEADS, **options: Any) -> None:
    """Write with one layout, read with another, compare every block with plain torch."""
    halves = source.halves
    whole = model(kv_heads, halves, getattr(torch, source.dtype))
    whose = (*writers(source), ("", ME.with_layout(mine)))
    *writing, reader = world_of(*whose, heap_bytes=1 << 20, **options)
    count = TOKENS // mine.block_size
    try:
        keys = put_all(writing, whole)
        layers, kv_dim = engine(mine, count + 2, kind)
        blocks = (
            [(block * 5 + 1) % (count + 2) for block in range(count)] if (count + 2) % 5 else [*range(1, count + 1)]
        )
        errors = reader.paged_kv(layers, kv_dim=kv_dim).get(keys, blocks, source=source)
        assert errors == [None] * len(keys)
        for number, block in enumerate(blocks):
            assert torch.equal(in_block(layers, kv_dim, block), wanted_in(whole, mine, number))
        for block in {*range(count + 2)} - {*blocks}:
            assert (in_block(layers, kv_dim, block) == -1).all(), "another block was written"
    finally:
        for cache in (*writing, reader):
            cache.close()


@pytest.mark.parametrize("degrees", [(4, 2), (2, 4), (1, 4), (4, 1), (1, 1), (2, 2), (8, 2), (2, 8)])
@pytest.mark.parametrize("alloc", ["device", "host"])
def test_other_degrees_of_tensor_parallelism(degrees: tuple[int, int], alloc: str) -> None:
    theirs, own = degrees
    for rank in range(own):
        mine = replace(WHOLE, tp_size=own, tp_rank=rank)
        check(replace(WHOLE, tp_size=theirs), mine, "block first", alloc=alloc)


@given(
    source_tp=st.sampled_from([1, 2, 3, 4, 6, 8]),
    my_tp=st.sampled_from([1, 2, 3, 4, 6, 8]),
    my_rank=st.integers(0, 11),
    kv_heads=st.sampled_from([1, 2, 4, 6]),
    order=st.sampled_from(ORDERS),
    source_block=st.sampled_from([2, 4, 8, 16]),
    my_block=st.sampled_from([2, 4, 8, 16]),
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    kind=st.sampled_from(["block first", "half first", "heads first"]),
    stage=st.sampled_from([(0, 4), (1, 2), (2, 2)]),
    alloc=st.sampled_from(["device", "host"]),
)
def test_any_two_layouts(
    source_tp: int,
    my_tp: int,
    my_rank: int,
    kv_heads: int,
    order: str,
    source_block: int,
    my_block: int,
    dtype: str,
    kind: str,
    stage: tuple[int, int],
    alloc: str,
) -> None:
    for tp in (source_tp, my_tp):
        assume(kv_heads % tp == 0 or tp % kv_heads == 0)
    base = replace(WHOLE, kv_heads=kv_heads, dtype=dtype)
    source = replace(base, tp_size=source_tp, order=order, block_size=source_block)
    first, count = stage
    mine = replace(base, tp_size=my_tp, tp_rank=my_rank % my_tp, block_size=my_block, first_layer=first, layers=count)
    check(source, mine, kind, kv_heads, alloc=alloc)


@pytest.mark.parametrize("order", ["LNHD", "NLHD", "LND"])
def test_latents(order: str) -> None:
    heads = 1 if "H" not in order else KV_HEADS
    source = replace(WHOLE, kv_heads=heads, order=order)
    check(source, replace(source, block_size=8, order="LNHD"), "latents", heads)


# --- parts of objects that hold more ----------------------------------------------------------
@pytest.mark.parametrize("alloc", ["device", "host"])
def test_some_layers_of_objects_that_hold_more(alloc: str) -> None:
    whole = model()
    one, other = world_of(("", None), ("n", None), alloc=alloc)
    with one, other:
        layers, kv_dim = engine(WHOLE, 4)
        for block in range(4):
            for number, layer in enumerate(layers):
                layer[block] = of_layout(whole, WHOLE, block)[number]
        keys = [f"b{block}" for block in range(4)]
        assert one.paged_kv(layers, kv_dim=kv_dim).put(keys, [0, 1, 2, 3]) == [None] * 4
        back, kv_dim = engine(WHOLE, 5, "half first")
        paged = one.paged_kv(back, kv_dim=kv_dim)
        for number in (2, 0, 3, 1):
            chosen = range(number, number + 1)
            assert paged.get(keys, [4, 3, 2, 1], layers=chosen, held=range(LAYERS)) == [None] * 4
            for block, key in zip([4, 3, 2, 1], range(4), strict=True):
                assert torch.equal(back[number][:, block], whole[number][:, key * 4 : key * 4 + 4])
        assert all(not (layer[:, 0] != -1).any() for layer in back)
        partly = one.paged_kv(layers, kv_dim=1)
        assert partly.put(["part"], [2], layers=range(1, 4)) == [None]
        (wrong,) = paged.get(["part"], [0], layers=range(1, 2), held=range(LAYERS))
        assert isinstance(wrong, InvalidArgument) and (back[1][:, 0] == -1).all()
        assert paged.get_async(["part"], [0], layers=range(2, 3), held=range(1, 4)).wait() == [None]
        assert torch.equal(back[2][:, 0], layers[2][2])
        (missing,) = paged.get(["none"], [0], layers=range(1), held=range(2))
        assert isinstance(missing, KeyNotFound)
        for bad, why in (
            (range(1, 3), "layers range"),
            (range(0, 9), "held must be"),
            (range(0, 4, 2), "held must be"),
        ):
            with pytest.raises(InvalidArgument, match=why):
                paged.get(["b0"], [0], layers=range(1), held=bad)
        with pytest.raises(ReuseViolation):
            paged.get([other.digest("b0")], [0], layers=range(1), held=range(2))


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_layers_of_a_writer_that_publishes_each_by_itself(alloc: str) -> None:
    """Two ranks put each layer under a key of its own; one rank, a stage of a pipeline, reads them layer by layer."""
    source, mine = replace(WHOLE, tp_size=2), replace(WHOLE, first_layer=1, layers=2, block_size=8)
    one, two, reader = world_of(*writers(source), ("", ME.with_layout(mine)), alloc=alloc)
    whole = model()
    try:
        for cache in (one, two):
            layout = cache.options.identity.layout if cache.options.identity else None
            assert layout is not None
            layers, kv_dim = engine(layout, 4)
            for block in range(4):
                for number, layer in enumerate(layers):
                    layer[block] = of_layout(whole, layout, block)[number]
            for number in range(LAYERS):
                keys = [f"layer {number} of b{block}" for block in range(4)]
                paged = cache.paged_kv(layers, kv_dim=kv_dim)
                assert paged.put(keys, range(4), layers=range(number, number + 1)) == [None] * 4
        back, kv_dim = engine(mine, 3)
        paged = reader.paged_kv(back, kv_dim=kv_dim)
        for number in range(2):
            assert (back[number] == -1).all()
            keys = [f"layer {number + 1} of b{block}" for block in range(4)]
            assert paged.get(keys, [2, 0], source=source, held=range(number, number + 1)) == [None] * 4
        for number, block in enumerate((2, 0)):
            assert torch.equal(in_block(back, kv_dim, block), wanted_in(whole, mine, number))
        errors = paged.get(keys, [2, 0], source=source, held=range(2))
        assert all(isinstance(error, InvalidArgument) for error in errors)  # they hold one layer
    finally:
        for cache in (one, two, reader):
            cache.close()


# --- what is refused --------------------------------------------------------------------------
def test_what_cannot_be_resharded_names_the_difference() -> None:
    (reader,) = world_of(("", ME.with_layout(WHOLE)))
    with reader:
        layers, kv_dim = engine(WHOLE, 4)
        paged = reader.paged_kv(layers, kv_dim=kv_dim)
        for change, why in (
            ({"dtype": "float16"}, "dtype is float16 in the writer's layout, and bfloat16"),
            ({"head_size": 16}, "head_size is 16"),
            ({"kv_heads": 8}, "kv_heads is 8"),
            ({"order": "LNHD"}, "halves is 1"),
            ({"form": "packed"}, "the writer's objects have the opaque form 'packed'"),
            ({"block_size": 6}, r"block sizes 6 \(the writer's\) and 4 do not divide"),
            ({"layers": 3}, r"layers range\(0, 4\) of the model are asked for, the objects hold range\(0, 3\)"),
            ({"first_layer": 1}, r"the objects hold range\(1, 5\)"),
            ({"block_size": 8}, "1 keys of 8 tokens and 1 blocks of 4 do not agree"),
        ):
            with pytest.raises(InvalidArgument, match=why):
                paged.get(["a"], [0], source=replace(WHOLE, **change))
        with pytest.raises(InvalidArgument, match="named twice"):
            paged.get(["a", "b"], [1, 1], source=WHOLE)
        with pytest.raises(InvalidArgument, match="source must be a KVLayout, not 'L2NHD'"):
            paged.get(["a"], [0], source="L2NHD")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"layers range\(1, 3\) of the model are asked for, the objects hold"):
            paged.get(["a"], [0], source=WHOLE, held=range(1), layers=range(1, 3))
        with pytest.raises(ReuseViolation):
            paged.get([reader.digest("a")], [0], source=replace(WHOLE, tp_size=2))
        assert paged.get([], [], source=WHOLE) == []
        assert all((layer == -1).all() for layer in layers)
    assert refused(replace(WHOLE, form="x"), WHOLE) == "this cache's objects have the opaque form 'x'"
    (plain,) = world_of(("", ME))
    with plain, pytest.raises(InvalidArgument, match="source needs a cache whose identity has a layout"):
        plain.paged_kv(layers, kv_dim=kv_dim).get(["a"], [0], source=WHOLE)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"order": "2LNHD"}, "order is L2NHD in these tensors' objects, and 2LNHD"),
        ({"dtype": "float16"}, "dtype is bfloat16"),
        ({"block_size": 8}, "block_size is 4"),
        ({"head_size": 4}, "head_size is 8"),
        ({"tp_size": 2}, "the tensors have 4 heads, a rank of this layout 2"),
    ],
)
def test_tensors_that_contradict_the_layout_are_refused(change: dict[str, Any], why: str) -> None:
    (cache,) = world_of(("", ME.with_layout(replace(WHOLE, **change))))
    with cache:
        layers, kv_dim = engine(WHOLE, 4)
        paged = cache.paged_kv(layers, kv_dim=kv_dim)
        for call in (paged.put, paged.get):
            with pytest.raises(InvalidArgument, match=why):
                call(["a"], [0])
        if "order" not in change:
            with pytest.raises(InvalidArgument, match=why):
                paged.get(["a"], [0], source=WHOLE)
    (opaque,) = world_of(("", ME.with_layout(replace(WHOLE, form="packed", **change))))
    with opaque:
        assert opaque.paged_kv(layers, kv_dim=kv_dim).put(["a"], [0]) == [None]


# --- sources that are not there, or not as they should be ------------------------------------
def read(reader: NanoKVCache, source: KVLayout, keys: list[str]) -> tuple[list[NanoKVError | None], list[torch.Tensor]]:
    mine = reader.options.identity.layout if reader.options.identity else None
    assert mine is not None
    layers, kv_dim = engine(mine, TOKENS // mine.block_size)
    return reader.paged_kv(layers, kv_dim=kv_dim).get(keys, range(len(layers[0])), source=source), layers


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("alloc", ["device", "host"])
def test_each_key_answers_for_all_of_its_sources(alloc: str, checksum: bool) -> None:
    source, mine = replace(WHOLE, tp_size=4), replace(WHOLE, tp_size=2)
    one, two, three, four, reader = world_of(
        *writers(source), ("", ME.with_layout(mine)), alloc=alloc, checksum=checksum
    )
    whole = model()
    try:
        keys = put_all([one, two, three, four], whole)
        one.remove("b0")
        two.remove("b1")
        three.remove("b2")  # of the other half of the heads: this reader does not need it
        errors, layers = read(reader, source, keys)
        assert [type(error) for error in errors] == [KeyNotFound, KeyNotFound, type(None), type(None)]
        for block in (2, 3):
            assert torch.equal(in_block(layers, 1, block), wanted_in(whole, mine, block))
        two.put("b1", torch.ones(3))
        one.open_for_write("b0", source.nbytes)
        errors, layers = read(reader, source, keys)
        assert isinstance(errors[0], NanoKVError) and "being written" in str(errors[0])
        assert isinstance(errors[1], InvalidArgument) and "another size, dtype or shape" in str(errors[1])
        assert errors[2:] == [None, None]
        if checksum:
            meta = one.get_location("b3")
            reader.engine.heap.segment(meta.owner_rank)[meta.payload_off + meta.bytes_total - 1] ^= 1
            errors, _ = read(reader, source, keys)
            assert isinstance(errors[3], SegmentCorrupt) and errors[2] is None
    finally:
        for cache in (one, two, three, four, reader):
            cache.close()


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_the_prefix_that_a_reader_of_another_layout_has(alloc: str) -> None:
    source, mine = replace(WHOLE, tp_size=4), replace(WHOLE, tp_size=2)
    *writing, reader = world_of(*writers(source), ("", ME.with_layout(mine)), alloc=alloc)
    layers, kv_dim = engine(mine, 4)
    try:
        paged = reader.paged_kv(layers, kv_dim=kv_dim)
        keys = put_all(writing, model())
        assert paged.prefix_length(keys, source=source) == len(keys)
        assert paged.prefix_length(keys) == 0  # of its own layout there is nothing
        assert paged.put(keys[:2], [0, 1]) == [None, None]
        assert paged.prefix_length(keys) == 2
        writing[2].remove(keys[0])  # of the other half of the heads
        assert paged.prefix_length(keys, source=source) == len(keys)
        writing[1].remove(keys[2])
        assert paged.prefix_length(keys, source=source) == 2
        assert paged.prefix_length([], source=source) == 0
        with pytest.raises(InvalidArgument, match="head_size"):
            paged.prefix_length(keys, source=replace(source, head_size=source.head_size * 2))
    finally:
        for cache in (*writing, reader):
            cache.close()


def test_an_object_that_is_replaced_while_it_is_read(calls: Calls) -> None:
    """The first copy of each object is torn: it is read again, and the new bytes come whole."""
    source, mine = replace(WHOLE, tp_size=2), WHOLE
    one, two, reader = world_of(*writers(source), ("", ME.with_layout(mine)))
    old, new = model(), -model()
    try:
        keys = put_all([one, two], old)

        def replace_all(payload: torch.Tensor, layout: KVLayout) -> None:
            for cache in (one, two):
                cache.remove_many(keys)
            put_all([one, two], new)

        seen = calls.before(reshard, "in_canonical_order", replace_all, at=(1,))
        errors, layers = read(reader, source, keys)
        assert errors == [None] * len(keys) and len(seen) == 2 * len(keys) + 1
        for block in range(len(keys)):
            assert torch.equal(in_block(layers, 1, block), wanted_in(new, mine, block))
    finally:
        for cache in (one, two, reader):
            cache.close()


# --- plans ------------------------------------------------------------------------------------
@settings(max_examples=300)
@given(
    kv_heads=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    theirs=st.sampled_from([1, 2, 3, 4, 6, 12, 24]),
    own=st.sampled_from([1, 2, 3, 4, 6, 12, 24]),
    sizes=st.sampled_from([(2, 8), (8, 2), (4, 4), (3, 12)]),
)
def test_a_plan_fills_every_element_once(kv_heads: int, theirs: int, own: int, sizes: tuple[int, int]) -> None:
    for tp in (theirs, own):
        assume(kv_heads % tp == 0 or tp % kv_heads == 0)
    base = replace(WHOLE, kv_heads=kv_heads)
    source = replace(base, tp_size=theirs, block_size=sizes[0])
    for rank in range(own):
        mine = replace(base, tp_size=own, tp_rank=rank, block_size=sizes[1])
        tokens = 24
        made = plan(mine, source, range(1, 3), tokens // sizes[0], range(tokens // sizes[1]))
        filled = torch.full((tokens, len(mine.heads), 2), -1)
        for key, number, box in made.pieces:
            held = made.sources[number]
            for token in range(box.tokens):
                for head in range(box.heads):
                    at = box.to_block * sizes[1] + box.to_token + token, box.to_head + head
                    assert (filled[at] == -1).all(), "filled twice"
                    filled[at] = torch.tensor([key * sizes[0] + box.token + token, held.heads[box.head + head]])
            assert (box.layer, box.layers, box.to_layer) == (1, 2, 1)
        want = [[[token, head] for head in mine.heads] for token in range(tokens)]
        assert filled.tolist() == want


def test_the_public_names_are_enough() -> None:
    """A reader finds the writer's layout in the segments, and reads by it."""
    source, mine = replace(WHOLE, tp_size=2, order="2NLHD"), replace(WHOLE, block_size=8)
    one, two, reader = world_of(*writers(source), ("", ME.with_layout(mine)))
    try:
        keys = put_all([one, two], model())
        found = {row.layout for row in reader.layouts() if row.is_mine}
        assert found == {source, replace(source, tp_rank=1)}
        errors, layers = read(reader, found.pop(), keys)
        assert errors == [None] * 4 and torch.equal(in_block(layers, 1, 1), wanted_in(model(), mine, 1))
        assert isinstance(reader.paged_kv(layers, kv_dim=1), PagedKV) and isinstance(one, nanokv.NanoKVCache)
    finally:
        for cache in (one, two, reader):
            cache.close()


def test_slices_stay_within_the_identity() -> None:
    """Another model, adapter, tenant or namespace gets nothing of the writer's objects, whatever source it names."""
    others = [replace(ME, model="x"), replace(ME, adapter="x"), replace(ME, tenant="x")]
    whose = [*[("", other.with_layout(WHOLE)) for other in others], ("n", ME.with_layout(WHOLE))]
    source = replace(WHOLE, tp_size=2)
    one, two, *readers = world_of(*writers(source), *whose, ("", ME.with_layout(WHOLE)))
    try:
        keys = put_all([one, two], model())
        for reader in readers[:-1]:
            assert not any(row.is_mine for row in reader.layouts())
            errors, layers = read(reader, source, keys)
            assert [type(error) for error in errors] == [KeyNotFound] * len(keys)
            assert all((layer == -1).all() for layer in layers)
            for digest in (one.digest(keys[0]), two.digest(keys[0])):
                with pytest.raises(ReuseViolation):
                    reader.paged_kv(layers, kv_dim=1).get([digest], [0], source=source)
        assert read(readers[-1], source, keys)[0] == [None] * len(keys), "the control"
    finally:
        for cache in (one, two, *readers):
            cache.close()


# --- processes --------------------------------------------------------------------------------
SOURCE = replace(WHOLE, tp_size=2, order="2NLHD", block_size=8)


def tp_rank(rank: int, alloc: Alloc, layout: KVLayout) -> NanoKVCache:
    """A rank of a prefill of two ranks and a decode of one, which is the master."""
    identity = ME.with_layout(layout)
    return NanoKVCache(1 << 20, 2, 256, name="tp", rank=rank, world_size=3, alloc=alloc, identity=identity)


class PrefillRank(RankCommands):
    """A rank of the prefill: it stores its parts of all blocks."""

    def __init__(self, rank: int, alloc: Alloc) -> None:
        self._rank, self._alloc = rank, alloc

    def attach(self) -> None:
        self._cache = tp_rank(self._rank, self._alloc, replace(SOURCE, tp_rank=self._rank))
        put_all([self._cache], model())


@pytest.mark.parametrize("alloc", ["device", pytest.param("host", marks=pytest.mark.exhaustive)])
def test_writers_in_other_processes_also_killed_ones(monkeypatch: pytest.MonkeyPatch, alloc: Alloc) -> None:
    """A prefill of two ranks, a decode of one. What the dead have stored is read as before, from the living world."""
    with new_folder(monkeypatch), starter(PrefillRank) as start:
        prefill = [start(rank, alloc) for rank in range(2)]
        with tp_rank(2, alloc, WHOLE) as decode:
            for process in prefill:
                process.arrive()
            source = next(row.layout for row in decode.layouts() if row.is_mine)
            assert replace(source, tp_rank=0) == SOURCE
            for killed in (False, True):
                errors, layers = read(decode, source, ["b0", "b1"])
                assert errors == [None, None]
                for block in range(4):
                    assert torch.equal(in_block(layers, 1, block), wanted_in(model(), WHOLE, block))
                for process in prefill if not killed else []:
                    process.kill()

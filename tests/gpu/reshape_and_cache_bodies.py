"""Tests of the kernel that writes an engine's paged cache and publishes full blocks, as plain functions of a device.

See `bodies`. On a CPU the kernels are interpreted, or run as PTX, and the caches are native: both work on the same
segments.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from triton.runtime.interpreter import InterpretedFunction

from nanokv.cache.cache import NanoKVCache
from nanokv.cache.virtual_world import local_world
from nanokv.device.kernels.reshape_and_cache import reshape_and_cache_kernel
from nanokv.device.machines.reshape_and_cache import Publish, reshape_and_cache, reshape_and_cache_flash
from nanokv.device.protocol.ticket import TICKET
from nanokv.device.segment.layout import WORD
from nanokv.errors import CacheClosed, DuplicateKey, InvalidArgument, KeyNotFound, NotReady, OutOfMemory, WriteLost
from nanokv.transfer.cache_writer import CacheWriter, FilledBlock
from tests.gpu.library_bodies import caches

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
FP8_NAMES = {E4M3: "fp8", E5M2: "fp8_e5m2"}
PADDING = -1
INTERPRETED = isinstance(reshape_and_cache_kernel, InterpretedFunction)  #: which rounds in its own ways


class Shape(NamedTuple):
    """The shape of an engine's cache."""

    blocks: int
    tokens: int  #: of a block
    heads: int
    dim: int


SMALL = Shape(6, 4, 2, 8)
Pair = tuple[torch.Tensor, torch.Tensor]


# --- the engine's layouts ---------------------------------------------------------------------
def nhd(shape: Shape, dtype: torch.dtype, device: torch.device) -> Pair:
    """vLLM's NHD: K and V of one tensor [blocks, 2, tokens, heads, dim]."""
    whole = torch.zeros(shape.blocks, 2, *shape[1:], dtype=dtype, device=device)
    return whole[:, 0], whole[:, 1]


def hnd(shape: Shape, dtype: torch.dtype, device: torch.device) -> Pair:
    """vLLM's HND: heads before tokens in memory."""
    blocks, tokens, heads, dim = shape
    whole = torch.zeros(2, blocks, heads, tokens, dim, dtype=dtype, device=device)
    return whole[0].transpose(1, 2), whole[1].transpose(1, 2)


def older(shape: Shape, dtype: torch.dtype, device: torch.device) -> Pair:
    """The layout of `reshape_and_cache`: K split by x, V transposed."""
    blocks, tokens, heads, dim = shape
    x = min(dim, 16 // dtype.itemsize)
    return (
        torch.zeros(blocks, heads, dim // x, tokens, x, dtype=dtype, device=device),
        torch.zeros(blocks, heads, dim, tokens, dtype=dtype, device=device),
    )


LAYOUTS = (nhd, hnd, older)


def plain(pair: Pair) -> torch.Tensor:
    """Any layout as [2, blocks, tokens, heads, dim], as bytes; a copy."""
    k, v = pair
    if k.dim() == 5:
        k = k.permute(0, 3, 1, 2, 4).flatten(3)
        v = v.permute(0, 3, 1, 2)
    return torch.stack([_bytes(k), _bytes(v)]).clone()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


# --- the reference ----------------------------------------------------------------------------
def converted(values: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> torch.Tensor:
    """Elements [tokens, heads, dim] as a cache of `dtype` holds them, in plain torch."""
    if scale is None or values.dtype == dtype:
        return values.to(dtype)
    most = torch.finfo(dtype).max
    return (values.float() / scale.view(1, -1, 1)).clamp(-most, most).to(dtype)


def written(before: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
    """`plain` of a cache after the tokens `k` and `v` of its dtype were written to it."""
    after = before.clone()
    _, blocks, tokens = after.shape[:3]
    for token, slot in enumerate(slots):
        if 0 <= slot < blocks * tokens:
            after[0, slot // tokens, slot % tokens] = _bytes(k[token])
            after[1, slot // tokens, slot % tokens] = _bytes(v[token])
    return after


def write(pair: Pair, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, name: str, scales: Pair) -> None:
    """The function for a layout."""
    function = reshape_and_cache if pair[0].dim() == 5 else reshape_and_cache_flash
    function(k, v, *pair, slots, name, *scales)


class Tokens:
    """Random K and V of some tokens, with a gap between tokens, and their slots."""

    def __init__(
        self, slots: Sequence[int], shape: Shape, device: torch.device, *, dtype: torch.dtype = BF16, seed: int = 1
    ) -> None:
        dice = torch.Generator().manual_seed(seed)
        row = shape.heads * shape.dim
        fused = (torch.randn(len(slots), 2 * row + 8, generator=dice) * 100).to(dtype).to(device)
        self.k = fused[:, :row].view(-1, shape.heads, shape.dim)
        self.v = fused[:, row : 2 * row].view(-1, shape.heads, shape.dim)
        self.numbers = list(slots)
        self.slots = torch.tensor(self.numbers, dtype=torch.int64, device=device)


def scales_of(heads: int, device: torch.device) -> Pair:
    """Powers of two, so that a division by them is exact however it is done."""
    numbers = [2.0**n for n in range(heads)]
    return torch.tensor(numbers, device=device), torch.tensor(numbers[::-1], device=device) / 4


def check_written(pair: Pair, of: Tokens, dtype: torch.dtype, scales: Pair | None) -> None:
    """One write into a cache that holds other tokens already, compared with torch."""
    for each in pair:
        each.view(torch.uint8).fill_(5)
    before = plain(pair)
    ones = torch.ones(1, device=of.k.device)
    k, v = (converted(x, dtype, scales[n] if scales else None) for n, x in enumerate((of.k, of.v)))
    write(pair, of.k, of.v, of.slots, FP8_NAMES.get(dtype, "auto"), scales or (ones, ones))
    assert torch.equal(plain(pair), written(before, k, v, of.numbers))


def tokens_are_written_into_any_layout(device: torch.device) -> None:
    """As torch writes them: slots in any order, padding, a slot beyond the cache; heads of odd sizes; float32."""
    slots = [5, 23, PADDING, 0, 24, 1, 17, PADDING]
    odd = Shape(6, 3, 3, 5)
    for layout in LAYOUTS:
        check_written(layout(SMALL, BF16, device), Tokens(slots, SMALL, device), BF16, None)
    wide = torch.float32
    check_written(nhd(odd, wide, device), Tokens([0, 17, 18, 4], odd, device, dtype=wide), wide, None)
    if not INTERPRETED:
        check_written(nhd(SMALL, BF16, device), Tokens(slots, SMALL, device, dtype=wide), BF16, None)


def quantizable(slots: list[int], dtype: torch.dtype, device: torch.device) -> Tokens:
    """Tokens to quantize by powers of two: what an fp8 type holds exactly, and if compiled what it must round."""
    of = Tokens(slots, SMALL, device, dtype=torch.float32)
    if INTERPRETED:
        of.k, of.v = of.k.clamp(-50, 50).to(dtype).float(), of.v.clamp(-50, 50).to(dtype).float()
    else:
        of.k[0, 0, :4] = torch.tensor([1e4, -1e9, 0.0, 2**-9])
    return of


def tokens_are_quantized(device: torch.device) -> None:
    """To both kinds of fp8, by one scale and by one per head, with values out of range; into a cache of bytes too."""
    slots = [5, 23, PADDING, 0]
    for dtype, heads, layout in ((E4M3, 1, nhd), (E4M3, 2, older), (E5M2, 2, hnd)):
        of, scales = quantizable(slots, dtype, device), scales_of(heads, device)
        check_written(layout(SMALL, dtype, device), of, dtype, scales)
    as_bytes, of, scales = nhd(SMALL, torch.uint8, device), quantizable(slots, E4M3, device), scales_of(1, device)
    write(as_bytes, of.k, of.v, of.slots, "fp8_e4m3", scales)
    k, v = converted(of.k, E4M3, scales[0]), converted(of.v, E4M3, scales[1])
    assert torch.equal(plain(as_bytes), written(plain(nhd(SMALL, torch.uint8, device)), k, v, slots))


# --- publishing -------------------------------------------------------------------------------
def full_slots(*blocks: int, tokens: int = SMALL.tokens) -> list[int]:
    """All slots of some blocks."""
    return [block * tokens + position for block in blocks for position in range(tokens)]


def writer(
    cache: NanoKVCache, layers: int, device: torch.device, layout: Callable[..., Pair] = nhd, **options: Any
) -> tuple[CacheWriter, list[Pair]]:
    """A writer of small layers of bfloat16."""
    pairs = [layout(SMALL, BF16, device) for _ in range(layers)]
    return cache.cache_writer(pairs, capacity=4, **options), pairs


def whole(pairs: list[Pair], block: int) -> torch.Tensor:
    """What the object of a block must hold: [layers, 2, tokens, heads, dim]."""
    return torch.stack([plain(pair)[:, block] for pair in pairs]).view(BF16)


def full_blocks_are_published_in_the_launch(device: torch.device) -> None:
    """With checksums and without; other tokens are only written; an engine of another layout reads the object."""
    for checksum, layout in ((False, nhd), (True, older)):
        with caches(device, checksum=checksum) as (here, there):
            made, pairs = writer(here, 1, device, layout)
            of = Tokens([*full_slots(3), PADDING, 21, *full_slots(1)[::-1], 9], SMALL, device)
            made.start([FilledBlock("a", 1, 4), FilledBlock("b", 3, 4)], preferred_segment=there.rank)
            made.write(0, of.k, of.v, of.slots)
            assert there.exists("a") and there.exists("b")
            assert made.results() == [None, None]
            before = plain(layout(SMALL, BF16, device))
            assert torch.equal(plain(pairs[0]), written(before, of.k, of.v, of.numbers))
            assert there.get_location("a").owner_rank == there.rank
            for key, block in (("a", 1), ("b", 3)):
                assert torch.equal(there.get(key), whole(pairs, block))
            mine = torch.zeros(2, SMALL.blocks, SMALL.heads, SMALL.tokens, SMALL.dim, dtype=BF16, device=device)
            kv = there.paged_kv([mine.transpose(2, 3)], kv_dim=0)
            assert kv.get(["b"], [5]) == [None]
            assert torch.equal(mine[:, 5].transpose(1, 2), whole(pairs, 3)[0])
            made.close()


def a_block_goes_over_all_layers(device: torch.device) -> None:
    """Nobody finds the object before the last layer; a block that was filled by halves is read from the cache."""
    with caches(device, checksum=True) as (here, there):
        made, pairs = writer(here, 3, device)
        first, second = Tokens(full_slots(2)[:3], SMALL, device), Tokens([11, *full_slots(4)], SMALL, device, seed=2)
        for layer in range(3):
            made.write(layer, first.k + layer, first.v - layer, first.slots)
        made.start([FilledBlock("whole", 4, 4), FilledBlock("half", 2, 1)], preferred_segment=there.rank, hold=60.0)
        for layer in range(3):
            _refused(NotReady if layer else KeyNotFound, lambda: there.get("half"))
            made.write(layer, second.k + layer, second.v - layer, second.slots)
        assert made.results() == [None, None]
        assert torch.equal(there.get("half"), whole(pairs, 2))
        assert torch.equal(there.get("whole"), whole(pairs, 4))
        assert torch.equal(there.get("half")[2, 0, :3], first.k + 2)
        made.close()


def a_block_of_earlier_tokens_only(device: torch.device) -> None:
    """A block that is full already is published without a token; and one token at a time, as decode does."""
    with caches(device) as (here, there):
        made, pairs = writer(here, 2, device)
        for position, slot in enumerate(full_slots(5)):
            of = Tokens([slot], SMALL, device, seed=position)
            made.start([FilledBlock("decoded", 5, 1)] if position == 3 else [], preferred_segment=there.rank)
            for layer in range(2):
                made.write(layer, of.k, of.v, of.slots)
            assert made.results() == ([None] if position == 3 else [])
        assert torch.equal(there.get("decoded"), whole(pairs, 5))
        none = Tokens([], SMALL, device)
        made.start([FilledBlock("again", 5, 0)], preferred_segment=there.rank)
        for layer in range(2):
            made.write(layer, none.k, none.v, none.slots)
        assert made.results() == [None]
        assert torch.equal(there.get("again"), whole(pairs, 5))
        made.close()


def the_cache_is_written_whatever_becomes_of_an_object(device: torch.device) -> None:
    """A duplicate, and a segment with room for one: each block has its answer, and the engine's cache all tokens."""
    with caches(device, pages=1) as (here, there):
        made, pairs = writer(here, 2, device)
        there.put("known", torch.zeros(8, device=device), preferred_segment=here.rank)
        of = Tokens(full_slots(0, 1, 2), SMALL, device)
        blocks = [FilledBlock(key, block, 4) for block, key in enumerate(("one", "known", "two"))]
        made.start(blocks, preferred_segment=there.rank)
        for layer in range(2):
            made.write(layer, of.k, of.v, of.slots)
        one, known, two = made.results()
        assert isinstance(known, DuplicateKey)
        assert {type(one), type(two)} == {type(None), OutOfMemory}
        stored, block = ("one", 0) if one is None else ("two", 2)
        assert torch.equal(there.get(stored), whole(pairs, block))
        for pair in pairs:
            assert torch.equal(plain(pair), written(plain(nhd(SMALL, BF16, device)), of.k, of.v, of.numbers))
        made.close()


def a_step_that_ends_half_way_leaves_nothing(device: torch.device) -> None:
    """Given up by the next start, by results, and by the first layer of the next step; the keys can be put again."""
    with caches(device) as (here, there):
        made, pairs = writer(here, 3, device)
        of = Tokens(full_slots(2), SMALL, device)

        def half(key: str) -> None:
            made.start([FilledBlock(key, 2, 4)], preferred_segment=there.rank)
            made.write(0, of.k, of.v, of.slots)
            made.write(1, of.k, of.v, of.slots)

        half("results")
        (answer,) = made.results()
        assert isinstance(answer, WriteLost)
        half("start")
        half("layer 0")
        made.write(0, of.k, of.v, of.slots)
        for key in ("results", "start", "layer 0"):
            assert there.get(key, None) is None
        made.write(1, of.k, of.v, of.slots)
        made.write(2, of.k, of.v, of.slots)
        (answer,) = made.results()
        assert isinstance(answer, WriteLost), "the step was abandoned, and its launches publish nothing"
        _refused(KeyNotFound, lambda: there.get("layer 0"))
        half("start")
        made.write(2, of.k, of.v, of.slots)
        assert made.results() == [None]
        assert torch.equal(there.get("start"), whole(pairs, 2))
        half("close")
        made.close()


def launches_publish_once(device: torch.device) -> None:
    """Launches without a new table, as of a replayed graph, write the cache and publish nothing."""
    first = TICKET.offsets["answer"] // WORD
    with caches(device) as (here, there):
        made, pairs = writer(here, 2, device)
        of, other = Tokens(full_slots(2), SMALL, device), Tokens(full_slots(2), SMALL, device, seed=2)
        replay = _captured(made, other, device)
        made.start([FilledBlock("a", 2, 4)], preferred_segment=there.rank)
        for layer in range(2):
            made.write(layer, of.k, of.v, of.slots)
        assert made.results() == [None]
        there.remove("a")
        replay()
        assert not there.exists("a")
        assert torch.equal(whole(pairs, 2)[0, 0], other.k)
        assert not made._full.batch.tickets[:, :first].any()
        made.start([FilledBlock("b", 2, 4)], preferred_segment=there.rank)
        replay()
        assert made.results() == [None]
        assert torch.equal(there.get("b"), whole(pairs, 2))
        made.close()


def a_step_without_its_first_layer_publishes_nothing(device: torch.device) -> None:
    """A later launch does not begin an object in the middle."""
    with caches(device) as (here, there):
        made, pairs = writer(here, 2, device)
        of, one = Tokens(full_slots(2), SMALL, device), torch.ones(1, device=device)
        made.start([FilledBlock("a", 2, 4)], preferred_segment=there.rank)
        publish = Publish(made._full, 1, 2)
        reshape_and_cache_flash(of.k, of.v, *pairs[1], of.slots, "auto", one, one, publish=publish)
        assert torch.equal(whole(pairs, 2)[1, 0], of.k)
        (answer,) = made.results()
        assert isinstance(answer, WriteLost) and not there.exists("a")


def _captured(made: CacheWriter, of: Tokens, device: torch.device) -> Callable[[], None]:
    """A function that replays the writes of both layers from a graph; on a CPU it repeats them."""

    def both() -> None:
        for layer in range(2):
            made.write(layer, of.k, of.v, of.slots)

    made.start([], preferred_segment=0)
    both()  # compiled before it is captured
    if device.type == "cpu":
        return both
    torch.cuda.synchronize(device)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize(device)

    return replay


def a_wrong_count_of_fresh_tokens_publishes_nothing(device: torch.device) -> None:
    """More than the launches bring, and fewer; the objects are given up, and the next step is sound."""
    with caches(device) as (here, there):
        made, pairs = writer(here, 2, device)
        of = Tokens(full_slots(1)[1:] + full_slots(2), SMALL, device)
        for blocks in ([FilledBlock("many", 1, 4), FilledBlock("few", 2, 3)], [FilledBlock("right", 1, 3)]):
            made.start(blocks, preferred_segment=there.rank)
            for layer in range(2):
                made.write(layer, of.k, of.v, of.slots)
            answers = made.results()
            assert [type(each) for each in answers] == [WriteLost] * 2 or answers == [None]
        assert not there.exists("many") and not there.exists("few")
        assert torch.equal(there.get("right"), whole(pairs, 1))
        made.close()


def writers_are_checked(device: torch.device) -> None:
    """What the kernel cannot do is refused before a launch."""
    of, (k, v) = Tokens([0, 1], SMALL, device), nhd(SMALL, BF16, device)
    one, slots = torch.ones(1, device=device), of.slots
    for wrong, why in (
        ((of.k, of.v[:, :1], k, v, slots, "auto", one, one), "value must be"),
        ((of.k.transpose(1, 2), of.v.transpose(1, 2), k, v, slots, "auto", one, one), "contiguous"),
        ((of.k, of.v, k[..., :4], v, slots, "auto", one, one), "key_cache must be"),
        ((of.k, of.v, k, v, slots.int(), "auto", one, one), "slot_mapping must be int64"),
        ((of.k[:1], of.v[:1], k, v, slots, "auto", one, one), "2 slots for 1 tokens"),
        ((of.k, of.v, k, v, slots, "fp8", one, one), "cannot hold"),
        ((of.k, of.v, k, v, slots, "int4", one, one), "kv_cache_dtype must be"),
        ((of.k, of.v, k.view(torch.uint8), v, slots, "auto", one, one), "key_cache must be"),
        ((of.k, of.v, k.to(E4M3), v.to(E4M3), slots, "fp8", one.repeat(3), one), "scales must be"),
    ):
        _refused(InvalidArgument, partial(reshape_and_cache_flash, *wrong), why)
    with caches(device) as (here, there):
        made, _ = writer(here, 2, device)
        for blocks, why in (
            ([FilledBlock("a", 6, 4)], "block 6"),
            ([FilledBlock("a", 1, 5)], "5 fresh"),
            ([FilledBlock("a", 1, 4), FilledBlock("b", 1, 4)], "named twice"),
            ([FilledBlock(str(n), n, 4) for n in range(5)], "room for 4"),
        ):
            _refused(InvalidArgument, partial(made.start, blocks, preferred_segment=there.rank), why)
        _refused(InvalidArgument, lambda: made.start([("a", 1, 4)]), "must be FilledBlock")  # type: ignore[list-item]
        _refused(InvalidArgument, lambda: made.write(1, of.k, of.v, of.slots), "not the next one")
        _refused(InvalidArgument, lambda: here.cache_writer([]), "layers must be")
        quantized = nhd(SMALL, E4M3, device)
        _refused(InvalidArgument, lambda: here.cache_writer([quantized]), "cannot hold")
        needs = here.cache_writer([quantized], kv_cache_dtype="fp8")
        _refused(InvalidArgument, lambda: needs.write(0, of.k, of.v, of.slots), "needs k_scale")


def a_writer_of_a_closed_cache_launches_nothing(device: torch.device) -> None:
    """Its tables lead to memory that is gone."""
    here, there = local_world(2, 16 * 4096, page_bytes=4096, device=device, alloc="device")
    made, pairs = writer(here, 1, device)
    of = Tokens([0], SMALL, device)
    here.close()
    for call in (partial(made.write, 0, of.k, of.v, of.slots), partial(made.start, []), made.results):
        _refused(CacheClosed, call)
    made.close()
    assert not plain(pairs[0]).any()
    there.close()


def _refused(error: type[Exception], call: Callable[[], Any], why: str = "") -> None:
    try:
        call()
    except error as raised:
        assert why in str(raised), raised
    else:
        raise AssertionError(f"{error.__name__} {why}: was not raised")


BODIES: tuple[Callable[[torch.device], None], ...] = (
    tokens_are_written_into_any_layout,
    tokens_are_quantized,
    full_blocks_are_published_in_the_launch,
    a_block_goes_over_all_layers,
    a_block_of_earlier_tokens_only,
    the_cache_is_written_whatever_becomes_of_an_object,
    a_step_that_ends_half_way_leaves_nothing,
    launches_publish_once,
    a_step_without_its_first_layer_publishes_nothing,
    a_wrong_count_of_fresh_tokens_publishes_nothing,
    writers_are_checked,
    a_writer_of_a_closed_cache_launches_nothing,
)

"""Generation with a PrefixCache: the tokens of plain `generate`, from KV that other ranks have computed."""

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nanokv
from nanokv.errors import CacheClosed, InvalidArgument, PeerLost, SegmentCorrupt
from tests.support.faults import Calls
from tests.support.forks import check_refused
from tests.support.rank_processes import Start, new_folder, starter
from tests.support.worlds import MakeWorld

pytest.importorskip("transformers", reason="needs the extra nanokv[transformers]")

import transformers

from nanokv.integrations.transformers import PrefixCache, PromptKV
from nanokv.integrations.transformers.prefix_cache import KeyChain, weights_digest
from nanokv.integrations.transformers.prompt_kv import unexpected_mask, unexpected_positions
from tests.support.tiny_models import CONFIGS, HEAP, PAGE, VOCABULARY, WINDOW, GeneratingRank, prompt, tiny

BLOCK = 16
NEW = 20  #: tokens to generate: past the end of a block

World = list[nanokv.NanoKVCache]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums in one order, and no threads beside those of other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def world(new_world: MakeWorld) -> World:
    return new_world(heap="local", alloc="device", heap_bytes=HEAP, page_bytes=PAGE)


def answer(model: Any, ids: torch.Tensor, kv: Any = None, count: int = NEW, **options: Any) -> torch.Tensor:
    """Greedy tokens, the prompt included; with `kv` None those of plain `generate`."""
    given = {"max_new_tokens": count, "do_sample": False, "attention_mask": torch.ones_like(ids)} | options
    if kv is not None:
        given["past_key_values"] = kv
    return model.generate(ids, **given)


def ask(prefixes: PrefixCache, ids: torch.Tensor, count: int = NEW, **options: Any) -> tuple[torch.Tensor, PromptKV]:
    """`answer` with what is stored; and the KV."""
    kv = prefixes.load(ids)
    return answer(prefixes.model, ids, kv, count, **options), kv


def computed(model: Any, ids: torch.Tensor, kv: Any = None) -> Any:
    """The KV of tokens, by one call of the model; of those after `kv`, if it is given."""
    kv = transformers.DynamicCache() if kv is None else kv
    with torch.no_grad():
        model(input_ids=ids[:, kv.get_seq_length() :], past_key_values=kv, use_cache=True)
    return kv


def assert_same_kv(mine: Any, other: Any, tokens: int) -> None:
    """Equal in every bit, for the first tokens of all layers."""
    assert len(mine.layers) == len(other.layers)
    for left, right in zip(mine.layers, other.layers, strict=True):
        for name in ("keys", "values"):
            assert torch.equal(getattr(left, name)[:, :, :tokens], getattr(right, name)[:, :, :tokens])


# --- the same tokens, from the same bytes -----------------------------------------------------
OFTEN = ("llama", "gemma3")  #: the two that differ most; CI has them all
EVERY_KIND = [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.exhaustive) for kind in CONFIGS]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_tokens_are_those_of_plain_generate(kind: str, world: World) -> None:
    model = tiny(kind)
    first, second = (PrefixCache(model, cache) for cache in world)
    cases = [  # the prompt, and how many of its tokens are there
        (first, prompt(70), 0),
        (second, prompt(70), 64),  # all whole blocks
        (second, prompt(64), 63),  # exactly whole blocks: but never the last token
        (first, torch.cat((prompt(40), prompt(41, seed=1)), 1), 32),  # parts in the middle of a block
        (second, prompt(15), 0),
        (second, prompt(16), 15),
        (first, prompt(17), 16),
        (first, prompt(1), 0),
    ]
    for prefixes, ids, reused in cases:
        out, kv = ask(prefixes, ids)
        assert torch.equal(out, answer(model, ids)), (kind, ids.shape)
        assert kv.tokens_reused == reused
        assert torch.equal(kv.tokens, out[:, :-1])
    grown = answer(model, prompt(70))
    _, kv = ask(second, torch.cat((grown, prompt(9, seed=2)), 1))
    assert kv.tokens_reused == 80  # the answer's blocks were stored too
    assert first.stats.blocks_refused == first.stats.reads_failed == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_loaded_kv_is_the_computed_kv_in_every_bit(kind: str, dtype: torch.dtype, world: World) -> None:
    """And so are the tokens that follow, compared with a DynamicCache that holds the same part of the prompt."""
    model, ids = tiny(kind, dtype), prompt(75)
    _, there = ask(PrefixCache(model, world[0]), ids)
    kv = PrefixCache(model, world[1]).load(ids)
    assert kv.tokens_reused == 64 and kv.layers[0].keys.dtype == dtype
    assert_same_kv(kv, computed(model, ids), 64)
    assert_same_kv(kv, there, 64)
    plain = transformers.DynamicCache()
    for number, layer in enumerate(computed(model, ids).layers):
        plain.update(layer.keys[:, :, :64], layer.values[:, :, :64], number)
    assert torch.equal(answer(model, ids, kv), answer(model, ids, plain))


@pytest.mark.parametrize("block_tokens", [1, 7, 32, 100])
def test_blocks_of_other_sizes(block_tokens: int, world: World) -> None:
    model, ids = tiny("mistral-window"), prompt(70)
    for cache, reused in zip(world, (0, min(70 // block_tokens * block_tokens, 69)), strict=True):
        out, kv = ask(PrefixCache(model, cache, block_tokens=block_tokens), ids)
        assert torch.equal(out, answer(model, ids))
        assert kv.tokens_reused == reused


def test_every_heap_and_allocator(make_world: MakeWorld) -> None:
    model, ids = tiny("llama"), prompt(50)
    world = make_world(heap_bytes=HEAP, page_bytes=PAGE)
    for cache, reused in zip(world, (0, 48), strict=True):
        out, kv = ask(PrefixCache(model, cache), ids)
        assert torch.equal(out, answer(model, ids)) and kv.tokens_reused == reused


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_growing_conversation(kind: str, world: World) -> None:
    """A new PromptKV per turn on changing ranks, and one for all turns."""
    model, text = tiny(kind), prompt(30)
    prefixes = [PrefixCache(model, cache, tenant="new") for cache in world]
    one = PrefixCache(model, world[0], tenant="one").load(text)
    held = 0
    for turn in range(5):
        expected = answer(model, text)
        out, kv = ask(prefixes[turn % 2], text)
        assert torch.equal(out, expected) and kv.tokens_reused == held // BLOCK * BLOCK
        assert torch.equal(answer(model, text, one), expected)
        held = out.shape[1] - 1
        text = torch.cat((out, prompt(7, seed=turn)), 1)
    assert world[0].prefix_length(PrefixCache(model, world[0], tenant="one").keys(text[0].tolist())) == held // BLOCK


@given(texts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 40)), min_size=2, max_size=6))
def test_any_prompts_while_blocks_are_evicted(texts: list[tuple[int, int, int]]) -> None:
    """Prompts of a beginning and an end, in a heap for seven blocks."""
    model = tiny("mistral-window")
    with nanokv.local_world(1, 7 * PAGE, page_bytes=PAGE)[0] as cache:
        prefixes = PrefixCache(model, cache, model_id="m")
        for seed, head, tail in texts:
            ids = torch.cat((prompt(head, seed), prompt(tail, seed=9)), 1)
            out, kv = ask(prefixes, ids, 5)
            assert torch.equal(out, answer(model, ids, count=5))
            assert kv.tokens_reused <= ids.shape[1] - 1


# --- several processes ------------------------------------------------------------------------
@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, shm_name: str) -> Iterator[Start]:
    with new_folder(monkeypatch), starter(partial(GeneratingRank, name=shm_name, model="qwen3")) as begin:
        yield begin


def test_two_processes(start: Start) -> None:
    """Prefill in one, decode in the other; then the decoder's blocks are evicted, and the prefiller closes."""
    model = tiny("qwen3")
    prefill, decode = start(0), start(1)
    assert [rank.arrive() for rank in (prefill, decode)] == [0, 1]
    for seed, reused in ((0, 48), (1, 48)):
        ids = prompt(60, seed)
        expected = answer(model, ids)[0, 60:].tolist()
        tokens, before, keys = prefill.ask("generate", ids[0].tolist(), 1, preferred_segment=1, hold=60.0)
        assert (tokens, before) == (expected[:1], 0)
        tokens, found, loaded = decode.ask("generate", ids[0].tolist(), NEW)
        assert (tokens, found) == (expected, reused)
        theirs, mine = (torch.frombuffer(bytearray(raw), dtype=torch.float32).view(2, -1, 16) for raw in (keys, loaded))
        assert torch.equal(theirs[:, :48], mine[:, :48])
    decode.ask("evict_all")
    prefill.ask("leave")
    assert decode.ask("generate", prompt(60)[0].tolist(), NEW)[0] == answer(model, prompt(60))[0, 60:].tolist()
    decode.ask("leave")


# --- blocks that vanish, or have other bytes --------------------------------------------------
@pytest.mark.parametrize("lost", [0, 2, 3])
def test_a_block_that_is_evicted_before_it_is_read_shortens_the_prefix(lost: int, world: World, calls: Calls) -> None:
    model, ids = tiny("llama"), prompt(70)
    ask(PrefixCache(model, world[0]), ids)
    prefixes = PrefixCache(model, world[1])
    calls.after(world[1], "prefix_length", lambda keys: world[1].remove(keys[lost]))
    out, kv = ask(prefixes, ids)
    assert torch.equal(out, answer(model, ids))
    assert kv.tokens_reused == lost * BLOCK and prefixes.stats.reads_failed == 1
    calls.go_on()
    assert prefixes.load(ids).tokens_reused == 64  # what was lost was stored again


def test_all_blocks_evicted_before_they_are_read(world: World, calls: Calls) -> None:
    model, ids = tiny("llama"), prompt(70)
    prefixes = PrefixCache(model, world[0])
    ask(prefixes, ids)

    def evict(_: list[bytes]) -> None:
        for cache in world:
            cache.flush()
            cache.evict_until_below(0.0)

    calls.after(world[0], "prefix_length", evict)
    out, kv = ask(prefixes, ids)
    assert torch.equal(out, answer(model, ids)) and kv.tokens_reused == 0


def flip(cache: nanokv.NanoKVCache, key: bytes) -> None:
    """Change a stored object's bytes in place, as nobody may."""
    with cache.pin(key) as stored:
        stored.mul_(-3)


def test_altered_bytes_change_the_tokens() -> None:
    """The control: tokens come from the stored bytes."""
    model, ids = tiny("llama"), prompt(70)
    with nanokv.local_world(1, HEAP, page_bytes=PAGE)[0] as cache:
        prefixes = PrefixCache(model, cache)
        ask(prefixes, ids)
        flip(cache, prefixes.keys(ids[0].tolist())[1])
        out, kv = ask(prefixes, ids)
    assert kv.tokens_reused == 64
    assert not torch.equal(out, answer(model, ids))


def test_with_checksums_altered_bytes_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    model, ids = tiny("llama"), prompt(70)
    with nanokv.local_world(1, HEAP, page_bytes=PAGE, checksum=True)[0] as cache:
        prefixes = PrefixCache(model, cache)
        ask(prefixes, ids)
        altered = prefixes.keys(ids[0].tolist())[1]
        flip(cache, altered)
        with pytest.raises(SegmentCorrupt):
            cache.get(altered)
        out, kv = ask(prefixes, ids)
    assert torch.equal(out, answer(model, ids)) and kv.tokens_reused == BLOCK
    assert prefixes.stats.reads_failed == 1 and "its checksum is wrong" in caplog.text


@pytest.mark.parametrize("object_", [torch.zeros(3), torch.zeros(2, 2, 2, 16, 16, dtype=torch.bfloat16)])
def test_an_object_that_is_no_block_shortens_the_prefix(object_: torch.Tensor, world: World) -> None:
    model, ids = tiny("llama"), prompt(70)
    prefixes = PrefixCache(model, world[0])
    world[0].put(prefixes.keys(ids[0].tolist())[2], object_)
    for reused in (0, 32):
        out, kv = ask(prefixes, ids)
        assert torch.equal(out, answer(model, ids)) and kv.tokens_reused == reused
    assert (prefixes.stats.blocks_stored, prefixes.stats.blocks_known) == (4, 1 + 3)


# --- puts that fail ---------------------------------------------------------------------------
def test_a_full_heap_does_not_disturb(caplog: pytest.LogCaptureFixture) -> None:
    model, ids = tiny("llama"), prompt(100)
    with nanokv.local_world(1, 3 * PAGE, page_bytes=PAGE, evict=False)[0] as cache:
        prefixes = PrefixCache(model, cache)
        for reused in (0, 48):
            out, kv = ask(prefixes, ids, 5)
            assert torch.equal(out, answer(model, ids, count=5)) and kv.tokens_reused == reused
    assert (prefixes.stats.blocks_stored, prefixes.stats.blocks_refused) == (3, 3 + 3)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_blocks_that_are_larger_than_any_object_are_refused_and_counted() -> None:
    model, ids = tiny("llama"), prompt(40)
    with nanokv.local_world(1, 1 << 16, page_bytes=4096, size_classes=[1])[0] as cache:
        prefixes = PrefixCache(model, cache)
        out, _ = ask(prefixes, ids, 3)
    assert torch.equal(out, answer(model, ids, count=3)) and prefixes.stats.blocks_refused == 2


def test_what_another_rank_stores_meanwhile_is_counted_as_known(world: World) -> None:
    model, ids = tiny("llama"), prompt(40)
    first, second = (PrefixCache(model, cache) for cache in world)
    kvs = [prefixes.load(ids) for prefixes in (first, second)]
    outs = [answer(model, ids, kv, 3) for kv in kvs]
    assert torch.equal(*outs)
    assert (first.stats.blocks_stored, second.stats.blocks_stored, second.stats.blocks_known) == (2, 0, 2)


def test_a_preferred_rank_that_has_ended_does_not_disturb(world: World) -> None:
    model, ids = tiny("llama"), prompt(40)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids, preferred_segment=1)
    world[1].close()
    assert torch.equal(answer(model, ids, kv), answer(model, ids))
    assert prefixes.stats.blocks_refused == 3


def test_a_master_that_has_ended_does_not_disturb() -> None:
    """In v1 nothing can be found or put then."""
    model, ids = tiny("llama"), prompt(40)
    master, other = nanokv.local_world(2, HEAP, page_bytes=PAGE, alloc="host", rpc_timeout=1.0)
    prefixes = PrefixCache(model, other)
    ask(prefixes, ids, 1)
    master.close()
    with other:
        with pytest.raises(PeerLost):
            other.prefix_length(prefixes.keys(ids[0].tolist()))
        out, kv = ask(prefixes, ids)
    assert torch.equal(out, answer(model, ids)) and kv.tokens_reused == 0
    assert (prefixes.stats.reads_failed, prefixes.stats.blocks_refused) == (1, 3)


def test_a_cache_that_was_closed(world: World) -> None:
    model, ids = tiny("llama"), prompt(40)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids)
    world[0].close()
    assert torch.equal(answer(model, ids, kv), answer(model, ids))
    with pytest.raises(CacheClosed):
        prefixes.load(ids)


def test_a_child_of_a_fork_is_refused(world: World) -> None:
    """It would see misses."""
    model, ids = tiny("llama"), prompt(40)
    prefixes = PrefixCache(model, world[0])
    ask(prefixes, ids)
    check_refused({"load": lambda: prefixes.load(ids)})


def test_another_default_device_changes_nothing(world: World) -> None:
    model, ids = tiny("llama"), prompt(40)
    with torch.device("meta"):
        kv = PrefixCache(model, world[0]).load(ids)
        kv.batch_repeat_interleave(1)
    assert kv.tokens_held == 0


# --- where blocks go, and when ----------------------------------------------------------------
def test_blocks_go_to_the_preferred_segment_under_a_lease() -> None:
    model, ids = tiny("llama"), prompt(64)
    prefill, decode = nanokv.local_world(2, 8 * PAGE, page_bytes=PAGE)
    with prefill, decode:
        prefixes = PrefixCache(model, prefill)
        answer(model, ids, prefixes.load(ids, preferred_segment=1, hold=60), 1)
        keys = prefixes.keys(ids[0].tolist())
        assert [prefill.get_location(key).owner_rank for key in keys] == [1] * 4
        for number in range(20):  # more than there is room for
            prefill.put(str(number), torch.zeros(PAGE // 4), preferred_segment=1)
        _, kv = ask(PrefixCache(model, decode), ids)
        assert kv.tokens_reused == 63


def test_without_eager_blocks_are_stored_when_asked(world: World) -> None:
    model, ids = tiny("llama"), prompt(40)
    prefixes = PrefixCache(model, world[0], eager=False)
    _, kv = ask(prefixes, ids)
    keys = prefixes.keys(kv.tokens[0].tolist())
    assert world[0].exists_many(keys) == [False] * 3
    assert (kv.store(), kv.store()) == (3, 0)
    assert world[0].exists_many(keys) == [True] * 3


def test_eager_blocks_are_there_when_the_call_that_filled_them_ends(world: World) -> None:
    model, ids = tiny("llama"), prompt(65)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids)
    keys = prefixes.keys(ids[0].tolist())
    for stop in (15, 16, 40, 65):
        with torch.no_grad():
            model(ids[:, kv.tokens_held : stop], past_key_values=kv)
        assert world[0].prefix_length(keys) == stop // BLOCK


# --- batches, beams, drafts -------------------------------------------------------------------
def test_a_batch_of_equal_lengths(world: World) -> None:
    """Every row gets as many tokens as the row with the shortest stored prefix."""
    model = tiny("mistral-window")
    prefixes = PrefixCache(model, world[0])
    ask(prefixes, prompt(50), 1)
    ask(prefixes, prompt(20, seed=1), 1)
    rows = torch.cat((prompt(50), prompt(50, seed=1), prompt(50)))
    out, kv = ask(prefixes, rows)
    assert torch.equal(out, answer(model, rows)) and kv.tokens_reused == 3 * 16
    out, kv = ask(PrefixCache(model, world[1]), rows)
    assert torch.equal(out, answer(model, rows)) and kv.tokens_reused == 3 * 48
    again, kv = ask(prefixes, prompt(50, seed=1))  # what a batch stored serves a row
    assert torch.equal(again, out[1:2]) and kv.tokens_reused == 48


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3"])
def test_a_batch_with_pads_at_the_left(kind: str, world: World) -> None:
    """Blocks are counted from each row's first token: they are those of the same prompt without pads."""
    model = tiny(kind)
    prefixes = PrefixCache(model, world[0])
    lengths = (50, 37, 3)
    ids, mask = torch.zeros(3, 50, dtype=torch.long), torch.zeros(3, 50, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, 50 - length :], mask[row, 50 - length :] = prompt(length, seed=row), 1
    expected = answer(model, ids, attention_mask=mask)
    for held, reused in ((0, 0), (45, 45 + 32 + 0)):  # up to the end of the second row's second block
        kv = prefixes.load(ids, mask)
        assert (kv.tokens_held, kv.tokens_reused) == (held, reused)
        assert torch.equal(answer(model, ids, kv, attention_mask=mask), expected)
    for row, length in enumerate(lengths):
        out, kv = ask(prefixes, prompt(length, seed=row))
        assert kv.tokens_reused == length // BLOCK * BLOCK
        assert torch.equal(out[0, length:], expected[row, 50:])


def test_pads_of_finished_rows_are_not_stored(world: World) -> None:
    model = tiny("llama")
    ids = torch.cat((prompt(30), prompt(30, seed=1)))
    end = int(answer(model, ids)[0, 32])  # the first row ends with its third token
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = end, 0
    prefixes = PrefixCache(model, world[0])
    out, _ = ask(prefixes, ids, 80)
    assert torch.equal(out, answer(model, ids, count=80)) and out[0, 40:].eq(0).all()
    assert prefixes.stats.blocks_stored == 2 + (30 + 79) // BLOCK


@pytest.mark.parametrize("options", [{"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_beams(kind: str, options: dict[str, Any], world: World) -> None:
    model = tiny(kind)
    ids = torch.cat((prompt(50), prompt(50, seed=1)))
    expected = answer(model, ids, **options)
    for cache, reused in zip(world, (0, 96), strict=True):
        prefixes = PrefixCache(model, cache)
        kv = prefixes.load(ids)
        assert kv.tokens_reused == reused
        assert torch.equal(answer(model, ids, kv, **options), expected)
        assert reused or prefixes.stats.blocks_known == 0  # what beams share is put once
        for row in kv.tokens:  # each beam's blocks are those of its own tokens
            (got,) = cache.get_many(prefixes.keys(row.tolist())[-1:])
            plain = computed(model, row[None])
            assert got is not None
            for number, layer in enumerate(plain.layers):
                torch.testing.assert_close(got[number, 0], layer.keys[0, :, 48:64], rtol=1e-4, atol=1e-4)
        with pytest.raises(InvalidArgument, match="after beam search"):
            answer(model, torch.cat((ids, ids), 1), kv, **options)


def test_several_samples_of_a_prompt(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    options = {"do_sample": True, "num_return_sequences": 3}
    torch.manual_seed(5)
    expected = answer(model, ids, **options)
    assert len({tuple(row.tolist()) for row in expected}) == 3
    for cache in world:
        torch.manual_seed(5)
        assert torch.equal(ask(PrefixCache(model, cache), ids, **options)[0], expected)


@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_drafts_that_are_taken_back(kind: str, world: World) -> None:
    """Prompt look-up decoding crops the KV of drafts that were wrong; blocks of such drafts are right all the same."""
    model, ids = tiny(kind), prompt(25).repeat(1, 2)
    expected = answer(model, ids)
    for cache in world:
        kv = PrefixCache(model, cache).load(ids)
        if kv.tokens_reused:
            with pytest.raises(InvalidArgument, match=r"48 tokens that are held, once more.*assisted decoding"):
                answer(model, ids, kv, prompt_lookup_num_tokens=6)
            kv.reset()
        out = answer(model, ids, kv, prompt_lookup_num_tokens=6)
        assert torch.equal(out, expected)
        assert kv.tokens_held == kv.get_seq_length() and torch.equal(kv.tokens, out[:, : kv.tokens_held])
    out, kv = ask(PrefixCache(model, world[0]), out)
    assert kv.tokens_reused == 64 and torch.equal(out, answer(model, out[:, :70]))


@pytest.mark.parametrize("size", [1, 7, BLOCK, 200])
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_prompt_in_pieces(kind: str, size: int, world: World) -> None:
    model, ids = tiny(kind), prompt(50)
    pieces = {"prefill_chunk_size": size}
    prefixes = [PrefixCache(model, cache) for cache in world]
    for each, reused in zip(prefixes, (0, 48), strict=True):
        out, kv = ask(each, ids, **pieces)
        assert torch.equal(out, answer(model, ids, **pieces)) and kv.tokens_reused == reused
        longer = torch.cat((out, prompt(9, seed=2)), 1)
        assert torch.equal(answer(model, longer, kv, **pieces), answer(model, longer, **pieces))
    for length in (49, 48):  # all are held but one; whole blocks
        out, kv = ask(prefixes[1], prompt(length), **pieces)
        assert torch.equal(out, answer(model, prompt(length), **pieces)) and kv.tokens_reused == min(length - 1, 48)


@pytest.mark.parametrize("size", [7, 200])
def test_a_batch_in_pieces(size: int, world: World) -> None:
    """With pads at the left, with beams, and with several samples."""
    model, pieces = tiny("mistral-window"), {"prefill_chunk_size": size}
    ids, mask = torch.zeros(2, 50, dtype=torch.long), torch.zeros(2, 50, dtype=torch.long)
    for row, length in enumerate((50, 37)):
        ids[row, 50 - length :], mask[row, 50 - length :] = prompt(length, seed=row), 1
    for cache, held in zip(world, (0, 45), strict=True):
        prefixes = PrefixCache(model, cache)
        kv = prefixes.load(ids, mask)
        assert kv.tokens_held == held
        expected = answer(model, ids, attention_mask=mask, **pieces)
        assert torch.equal(answer(model, ids, kv, attention_mask=mask, **pieces), expected)
        options: dict[str, Any]
        for options in ({"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3}):
            answers = []
            for one in (None, prefixes.load(ids[:1])):
                torch.manual_seed(5)
                answers.append(answer(model, ids[:1], one, **options, **pieces))
            assert torch.equal(*answers)


@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 1}, {"prefill_chunk_size": 20}])
def test_tokens_that_are_held_are_not_computed_once_more(options: dict[str, Any], world: World) -> None:
    """`generate` has nothing left to compute then, and would begin anew behind what is held."""
    model, ids = tiny("llama"), prompt(49)
    kv = PrefixCache(model, world[0]).load(ids)
    computed(model, ids, kv)
    with pytest.raises(InvalidArgument, match=r"tokens that are held, once more.* no token is left"):
        answer(model, ids, kv, **options)
    kv.crop(-1)
    assert torch.equal(answer(model, ids, kv, **options), answer(model, ids, **options))


def test_pieces_of_the_whole_prompt_are_refused_where_a_part_is_held(world: World) -> None:
    """Some versions of transformers call the model so."""
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    ask(prefixes, ids)
    kv = prefixes.load(ids)
    for start in (0, 1):
        with pytest.raises(InvalidArgument, match="with 10 tokens that are held" if not start else "from number 48"):
            model(ids[:, start : start + 10], past_key_values=kv, position_ids=torch.arange(start, start + 10)[None])
    assert torch.equal(answer(model, ids, kv), answer(model, ids))


def test_rows_that_are_selected_and_a_cache_that_is_cropped_copied_and_reset(world: World) -> None:
    model = tiny("mistral-window")
    prefixes = PrefixCache(model, world[0])
    ids = torch.cat((prompt(50), prompt(50, seed=1)))
    kv = prefixes.load(ids)
    computed(model, ids, kv)
    other = copy.deepcopy(kv)
    other.batch_select_indices(torch.tensor([1]))
    other.crop(-17)
    assert torch.equal(other.tokens, ids[1:, :33])
    assert torch.equal(answer(model, ids[1:], other), answer(model, ids[1:]))
    with pytest.raises(InvalidArgument, match="50 tokens that are held, once more"):
        answer(model, ids, kv)  # all is held: `generate` would compute it once more
    kv.crop(-1)
    assert torch.equal(answer(model, ids, kv), answer(model, ids))
    kv.crop(20 - kv.tokens_held)
    changed = torch.cat((ids[:, :20], ids[:, :30]), 1)  # another text after the first 20 tokens
    assert torch.equal(answer(model, changed, kv), answer(model, changed))
    kv.reset()
    assert kv.tokens_held == 0 and kv.store() == 0


# --- keys -------------------------------------------------------------------------------------
def test_keys_chain_over_all_tokens_before() -> None:
    chain = KeyChain(b"root", 4)
    keys = chain.keys(range(11))
    assert len(keys) == 2 and keys == chain.keys(range(8)) == chain.keys([*range(8), 99])
    assert not set(keys) & set(chain.keys([1, *range(1, 11)]))
    assert keys[0] == chain.keys([0, 1, 2, 3, 9, 9, 9, 9])[0] != chain.keys([3, 2, 1, 0])[0]
    assert not set(keys) & set(KeyChain(b"other", 4).keys(range(8)))


def change_a_weight(model: Any) -> Any:
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight[1, 1] += 0.01
    return model


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (lambda: tiny("llama"), {"tenant": "b"}),
        (lambda: tiny("llama"), {"adapter": "b"}),
        (lambda: tiny("llama"), {"model_id": "b"}),
        (lambda: tiny("llama"), {"block_tokens": 8}),
        (lambda: tiny("llama", seed=1), {}),
        (lambda: tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 5000.0}), {}),
        (lambda: tiny("llama", torch.bfloat16), {}),
        (lambda: change_a_weight(tiny("llama")), {}),
    ],
)
def test_nothing_is_shared_with_another_model_or_tenant(
    other: Callable[[], Any], options: dict[str, Any], world: World
) -> None:
    ids = prompt(50)
    ask(PrefixCache(tiny("llama"), world[0]), ids)
    assert PrefixCache(tiny("llama"), world[1]).load(ids).tokens_reused == 48
    model = other()
    out, kv = ask(PrefixCache(model, world[1], **options), ids)
    assert kv.tokens_reused == 0
    assert torch.equal(out, answer(model, ids))


def test_a_model_that_was_saved_and_loaded_shares(world: World, tmp_path: Path) -> None:
    model, ids = tiny("qwen3"), prompt(50)
    ask(PrefixCache(model, world[0]), ids)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert PrefixCache(loaded, world[1]).load(ids).tokens_reused == 48


def test_weights_that_cannot_be_read_need_a_name() -> None:
    for weight in (torch.ones(2, device="meta"), torch.ones(2).to_sparse(), "a format of its own"):
        with pytest.raises(InvalidArgument, match=r"^w cannot be read .*model_id=\.\.\.$"):
            weights_digest({"v": torch.ones(1), "w": weight})
    assert weights_digest({"v": torch.ones(2, 1)}) != weights_digest({"v": torch.ones(1, 2)})
    assert len({weights_digest({"v": torch.tensor(1, dtype=dtype)}) for dtype in (torch.bool, torch.bfloat16)}) == 2


def test_the_name_of_a_model_stands_for_its_weights(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    ask(PrefixCache(model, world[0], model_id="tiny@1"), ids)
    assert PrefixCache(tiny("llama"), world[1], model_id="tiny@1").load(ids).tokens_reused == 48


# --- refused ----------------------------------------------------------------------------------
def llama_with_rope(kind: str) -> Any:
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    return tiny("llama", rope_parameters=rope)


def model_of(kind: str, **config: Any) -> Any:
    made = getattr(transformers, kind)
    return made(made.config_class(vocab_size=VOCABULARY, **config)).eval()


T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
MLA = {
    **{"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1, "n_group": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 2, "num_experts_per_tok": 1},
    **{"kv_lora_rank": 16, "q_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8},
    **{"first_k_dense_replace": 1, "topk_group": 1},
}
MAMBA = {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: llama_with_rope("dynamic"), "RoPE of kind 'dynamic'"),
        (lambda: llama_with_rope("longrope"), "RoPE of kind 'longrope'"),
        (lambda: model_of("T5ForConditionalGeneration", **T5), "encoder-decoder"),
        (lambda: model_of("DeepseekV3ForCausalLM", **MLA), r"must have one shape .* \[1, 1, 1, 16\], \[1, 1, 1, 8\]"),
        (lambda: model_of("MambaForCausalLM", **MAMBA), "layer 0 of mamba is a LinearAttentionLayer"),
        (lambda: tiny("llama").model, "a PreTrainedModel that can generate is needed, not LlamaModel"),
        (lambda: torch.nn.Linear(2, 2), "not Linear"),
    ],
)
def test_models_that_are_refused(make: Callable[[], Any], message: str, world: World) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PrefixCache(make(), world[0])


def test_a_model_with_adapters_needs_their_names(world: World) -> None:
    model = tiny("llama")
    model._hf_peft_config_loaded = True  # what `load_adapter` of transformers sets
    with pytest.raises(InvalidArgument, match="adapter="):
        PrefixCache(model, world[0])
    PrefixCache(model, world[0], adapter="mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_tokens": 0}, "block_tokens must be"),
        ({"eager": 1}, "eager must be"),
        ({"tenant": 3}, "tenant must be a str"),
        ({"model_id": b"x"}, "model_id must be a str"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, world: World) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PrefixCache(tiny("llama"), world[0], **options)


def test_a_cache_is_needed() -> None:
    with pytest.raises(InvalidArgument, match="must be a NanoKVCache, not dict"):
        PrefixCache(tiny("llama"), {})  # type: ignore[arg-type]


RIGHT = torch.tensor([[1] * 40 + [0] * 10, [1] * 50])
HOLES = torch.tensor([[1] * 20 + [0] * 10 + [1] * 20, [1] * 50])


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (prompt(50)[0], {}, r"input_ids must be a tensor \[rows, tokens\]"),
        (prompt(50).float(), {}, "input_ids must be"),
        (prompt(50)[0].tolist(), {}, "input_ids must be"),
        (prompt(0), {}, "must have a row and a token"),
        (prompt(50).repeat(2, 1), {"attention_mask": RIGHT}, "padding_side='left'"),
        (prompt(50).repeat(2, 1), {"attention_mask": HOLES}, "padding_side='left'"),
        (prompt(50), {"attention_mask": torch.zeros(1, 50)}, "padding_side='left'"),
        (prompt(50), {"attention_mask": torch.ones(1, 49)}, "of the shape of input_ids"),
        (prompt(50), {"preferred_segment": 2}, "preferred_segment must be 0 to 1"),
        (prompt(50), {"hold": -1}, "hold must be positive"),
    ],
)
def test_wrong_prompts(ids: Any, options: dict[str, Any], message: str, world: World) -> None:
    prefixes = PrefixCache(tiny("llama"), world[0], model_id="m")
    with pytest.raises(InvalidArgument, match=message):
        prefixes.load(ids, **options)


def test_the_model_s_pad_token_marks_pads_as_in_generate(world: World) -> None:
    model = tiny("llama")
    model.generation_config.pad_token_id = 0
    prefixes = PrefixCache(model, world[0])
    ids = torch.cat((torch.zeros(1, 5, dtype=torch.long), prompt(45)), 1)
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(expected[:, 50:], answer(model, prompt(45))[:, 45:])  # it hides them by itself
    for reused in (0, 32):
        kv = prefixes.load(ids)
        assert torch.equal(model.generate(ids, past_key_values=kv, max_new_tokens=NEW, do_sample=False), expected)
        assert kv.tokens_reused == reused
    ids[0, 20] = 0
    with pytest.raises(InvalidArgument, match="padding_side='left'"):
        prefixes.load(ids)


def masked(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return mask


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model, ids: {"attention_mask": masked(ids)}, "attention mask or positions"),
        (
            lambda model, ids: {"attention_mask": masked(ids), "position_ids": torch.arange(50)[None]},
            "attention mask or positions",
        ),
        (lambda model, ids: {"position_ids": torch.arange(1, 51)[None]}, "attention mask or positions"),
        (lambda model, ids: {"token_type_ids": torch.zeros_like(ids)}, "depend on token_type_ids"),
        (lambda model, ids: {"inputs": prompt(50, seed=3)}, "from number 0 on are not those"),
        (lambda model, ids: {"inputs": torch.cat((ids, prompt(50, seed=4)))}, "from number 0 on are not those"),
    ],
)
@pytest.mark.parametrize("kind", ["gpt2"])  # it takes all of these
def test_calls_that_do_not_suit_the_prompt(
    kind: str, change: Callable[[Any, torch.Tensor], dict[str, Any]], message: str, world: World
) -> None:
    """A wrong call is refused before it generates from wrong KV, and stores nothing."""
    model, ids = tiny(kind), prompt(50)
    prefixes = PrefixCache(model, world[0])
    options = {"inputs": ids} | change(model, ids)
    given, kv = options.pop("inputs"), prefixes.load(ids)
    with pytest.raises(InvalidArgument, match=message):
        answer(model, given, kv, **options)
    assert prefixes.stats.blocks_stored == 0
    assert torch.equal(answer(model, ids, kv), answer(model, ids))  # the PromptKV is as it was


def test_embeddings_are_refused(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    kv = PrefixCache(model, world[0]).load(ids)
    with pytest.raises(InvalidArgument, match="no embeddings"):
        model.generate(
            inputs_embeds=model.get_input_embeddings()(ids),
            past_key_values=kv,
            max_new_tokens=3,
            attention_mask=torch.ones_like(ids),
        )


def test_a_static_cache_cannot_be_asked_for(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    with pytest.raises(ValueError, match="cache_implementation"):
        answer(model, ids, PrefixCache(model, world[0]).load(ids), cache_implementation="static")


def test_a_model_in_training_mode(world: World) -> None:
    model, ids = tiny("gpt2"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    model.train()
    with pytest.raises(InvalidArgument, match=r"model.eval\(\)"):
        answer(model, ids, prefixes.load(ids))


def test_another_model_cannot_use_it(world: World) -> None:
    model, other, ids = tiny("llama"), tiny("llama", seed=1), prompt(50)
    prefixes = PrefixCache(model, world[0])
    PrefixCache(other, world[0])
    with pytest.raises(InvalidArgument, match="another model"):
        answer(other, ids, prefixes.load(ids))
    stranger = tiny("llama", seed=2)  # its calls are not looked at, but what it fills is
    for _ in range(2):  # empty, and filled
        kv = prefixes.load(ids)
        with pytest.raises(InvalidArgument, match="another model than the one that fills it"):
            answer(stranger, ids, kv)
        stored = prefixes.stats.blocks_stored
        assert kv.store() == 0 and prefixes.stats.blocks_stored == stored
        assert torch.equal(answer(model, ids, kv), answer(model, ids)), "a refused call changed it"
    with pytest.raises(InvalidArgument, match="only a part of its model"), torch.no_grad():
        model.model(ids, past_key_values=prefixes.load(ids))


def load_others(model: Any) -> None:
    model.load_state_dict(tiny("llama", seed=1).state_dict())


def train_a_little(model: Any) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(0.01)


def take_other_data(model: Any) -> None:
    weight = model.model.layers[1].self_attn.k_proj.weight
    weight.data = weight.data * 2


class Adapted(torch.nn.Module):
    """A layer with adapters, as peft's are."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.active_adapters, self.disable_adapters = layer, ["one"], False
        self.merged_adapters: list[str] = []

    def forward(self, states: torch.Tensor) -> Any:
        return self.layer(states)


def add_adapters(model: Any) -> None:
    model.model.layers[0].mlp = Adapted(model.model.layers[0].mlp)


@pytest.mark.parametrize(
    "change",
    [
        load_others,
        train_a_little,
        take_other_data,
        lambda model: model.half(),
        lambda model: model.to("meta"),
        add_adapters,
    ],
)
def test_a_model_that_has_changed_is_refused(change: Callable[[Any], Any], world: World) -> None:
    """Its KV would get the keys of the model that it was."""
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids)
    change(model)
    with pytest.raises(InvalidArgument, match="has changed since its PrefixCache was made"):
        prefixes.load(ids)
    if model.device.type != "meta":
        with pytest.raises(InvalidArgument, match="has changed since its PrefixCache was made"):
            answer(model, ids, kv)
    assert prefixes.stats.blocks_stored == 0


def test_adapters_that_are_switched_are_a_change(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    add_adapters(model)
    with pytest.raises(InvalidArgument, match="name those that are active"):
        PrefixCache(model, world[0])
    prefixes = PrefixCache(model, world[0], adapter="one")
    assert torch.equal(ask(prefixes, ids)[0], answer(model, ids))
    for name, value in [("active_adapters", ["two"]), ("disable_adapters", True), ("merged_adapters", ["one"])]:
        layer = model.model.layers[0].mlp
        before = getattr(layer, name)
        setattr(layer, name, value)
        with pytest.raises(InvalidArgument, match="adapters"):
            prefixes.load(ids)
        setattr(layer, name, before)
    assert prefixes.load(ids).tokens_reused == 48


def test_what_changes_no_kv_is_no_change(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    model.requires_grad_(False)
    model.train().eval()
    model.generation_config.temperature = 0.5
    model.load_adapter_later = None
    assert torch.equal(ask(prefixes, ids)[0], answer(model, ids)) and prefixes.load(ids).tokens_reused == 48


def test_autocast_is_refused(world: World) -> None:
    """It computes KV in another precision, which no key names."""
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids)
    with torch.autocast("cpu", torch.bfloat16):
        for call in (lambda: answer(model, ids, kv), lambda: PrefixCache(model, world[1])):
            with pytest.raises(InvalidArgument, match="autocast"):
                call()
    assert torch.equal(answer(model, ids, kv), answer(model, ids))


def test_two_threads_cannot_use_one(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    kv = PrefixCache(model, world[0]).load(ids)
    inside, go_on, first = threading.Event(), threading.Event(), []

    def hold(*_: object) -> None:
        inside.set()
        assert go_on.wait(60)

    hook = model.model.layers[0].register_forward_pre_hook(hold)
    thread = threading.Thread(target=lambda: first.append(computed(model, ids, kv)))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(InvalidArgument, match="another thread is using this PromptKV"):
        computed(model, ids, kv)
    hook.remove()
    go_on.set()
    thread.join(60)
    assert_same_kv(first[0], computed(model, ids), 50)
    kv.crop(-1)
    assert torch.equal(answer(model, ids, kv), answer(model, ids))


def test_a_call_that_was_interrupted_is_found(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    kv = PrefixCache(model, world[0]).load(ids)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        answer(model, ids, kv)
    hook.remove()
    with pytest.raises(InvalidArgument, match=r"hold \[0, 50\] tokens, and 0 were seen"):
        answer(model, ids, kv)
    kv.reset()
    assert torch.equal(answer(model, ids, kv), answer(model, ids))


def test_copies_of_a_model_and_its_compiled_form(world: World) -> None:
    """A copy is another model: its weights may change. The compiled form is the same model."""
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    other = copy.deepcopy(model)
    with pytest.raises(InvalidArgument, match="another model"):
        answer(other, ids, prefixes.load(ids))
    compiled: Any = torch.compile(model, backend="eager")
    for reused in (0, 48):
        kv = prefixes.load(ids)
        assert torch.equal(answer(compiled, ids, kv), answer(model, ids)) and kv.tokens_reused == reused
    kv = prefixes.load(ids)
    with torch.no_grad():
        compiled(ids[:, kv.tokens_held :], past_key_values=kv)  # by itself, and not through `generate`
    kv.crop(-1)
    assert torch.equal(answer(model, ids, kv), answer(model, ids))


def test_prompts_of_other_rows_are_refused(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    kv = PrefixCache(model, world[0]).load(ids)
    for rows in (torch.cat((ids, prompt(50, seed=1))), prompt(50, seed=1)):
        with pytest.raises(InvalidArgument, match="not those of the prompt that was loaded"):
            answer(model, rows, kv)
    two = torch.cat((ids, ids))  # as for two samples of it
    assert torch.equal(answer(model, two, kv), answer(model, two))


def test_a_damaged_block_is_dropped_and_stored_anew(caplog: pytest.LogCaptureFixture) -> None:
    model, ids = tiny("llama"), prompt(70)
    with nanokv.local_world(1, HEAP, page_bytes=PAGE, checksum=True)[0] as cache:
        prefixes = PrefixCache(model, cache)
        ask(prefixes, ids)
        flip(cache, prefixes.keys(ids[0].tolist())[1])
        for reused in (BLOCK, 64):
            assert ask(prefixes, ids)[1].tokens_reused == reused
    assert (prefixes.stats.reads_failed, prefixes.stats.blocks_damaged) == (1, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_call_that_fails_leaves_nothing_to_store(world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids)
    hook = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        answer(model, ids, kv)
    hook.remove()
    for use in (kv.store, lambda: answer(model, ids, kv)):
        with pytest.raises(InvalidArgument, match=r"hold \[0, 50\] tokens, and 0 were seen"):
            use()
    assert prefixes.stats.blocks_stored == 0
    assert torch.equal(ask(prefixes, ids)[0], answer(model, ids))


def fail(*_: object) -> None:
    raise RuntimeError("in the middle")


def test_calls_by_hand(world: World) -> None:
    """A loop of one's own: a call by position, and one with wrong positions later on, of which nothing is stored."""
    model, ids = tiny("llama"), prompt(50)
    prefixes = PrefixCache(model, world[0])
    kv = prefixes.load(ids)
    with torch.no_grad():
        logits = model(ids, past_key_values=kv).logits
        expected = model(ids).logits
        assert torch.equal(logits, expected)
        with pytest.raises(InvalidArgument, match="everything else by name"):
            model(ids, None, past_key_values=kv)
        with pytest.raises(InvalidArgument, match="by name"):
            model(ids, None, None, kv)
        stored = prefixes.stats.blocks_stored
        with pytest.raises(InvalidArgument, match="attention mask or positions"):
            for _ in range(BLOCK):
                model(ids[:, :1], past_key_values=kv, position_ids=torch.tensor([[7]]))
    assert prefixes.stats.blocks_stored == stored == 3


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_with_gradients_and_in_inference_mode(mode: Callable[[], Any], world: World) -> None:
    model, ids = tiny("llama"), prompt(50)
    longer = answer(model, ids, count=1)
    for cache, reused in zip(world, (0, 48), strict=True):
        with mode():
            kv = PrefixCache(model, cache).load(ids)
            model(ids[:, kv.tokens_held :], past_key_values=kv)
        assert kv.tokens_reused == reused
        assert torch.equal(answer(model, longer, kv), answer(model, longer))


def test_without_a_cache_of_its_own_generate_is_refused(world: World) -> None:
    """`use_cache=False` computes the whole text at every step, which would be added to what is held."""
    model, ids = tiny("llama"), prompt(50)
    with pytest.raises(InvalidArgument, match=r"tokens that are held, once more.*use_cache=False"):
        answer(model, ids, PrefixCache(model, world[0]).load(ids), use_cache=False)


LEFT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("mask", "pads", "unexpected"),
    [
        (None, [0, 0], False),
        (None, [2, 0], True),
        (torch.ones(2, 5), [0, 0], False),
        (torch.ones(2, 5, dtype=torch.bool), [0, 0], False),
        (LEFT, [2, 0], False),
        (LEFT, [0, 0], True),
        (LEFT, [0, 2], True),
        (torch.ones(2, 5), [2, 0], True),
        (LEFT[:, 1:], [2, 0], True),
        (torch.ones(2, 1, 5, 5), [0, 0], True),
        ({"full_attention": None}, [0, 0], True),
    ],
)
def test_unexpected_masks(mask: Any, pads: list[int], unexpected: bool) -> None:
    assert bool(unexpected_mask(mask, pads, 5)) == unexpected


@pytest.mark.parametrize(
    ("positions", "pads", "unexpected"),
    [
        (None, [0, 0], False),
        (None, [2, 0], True),
        ([[3, 4]], [0, 0], False),
        ([[3, 4], [3, 4]], [0, 0], False),
        ([[4, 5]], [0, 0], True),
        ([[1, 2], [3, 4]], [2, 0], False),
        ([[3, 4], [3, 4]], [2, 0], True),
        ([[3, 4]], [2, 0], True),
        ([[9, 0], [3, 4]], [4, 0], False),
        ([[0, 1], [3, 4]], [4, 0], True),
        ([[3, 4, 5]], [0, 0], True),
        ([[[3, 4]], [[3, 4]]], [0, 0], True),
    ],
)
def test_unexpected_positions(positions: Any, pads: list[int], unexpected: bool) -> None:
    given = None if positions is None else torch.tensor(positions)
    assert bool(unexpected_positions(given, pads, 3, 2)) == unexpected


def test_the_window_that_keeps_shows_what_transformers_shows() -> None:
    from transformers.cache_utils import DynamicSlidingWindowLayer

    from nanokv.integrations.transformers.layers import KeptSlidingLayer

    kept, plain = KeptSlidingLayer(WINDOW), DynamicSlidingWindowLayer(WINDOW)
    for new in (5, 18, 1, 1, 40, 1, 3):
        keys, values = torch.randn(1, 2, new, 4), torch.randn(1, 2, new, 4)
        assert kept.get_mask_sizes(new) == plain.get_mask_sizes(new)
        for mine, theirs in zip(kept.update(keys, values), plain.update(keys, values), strict=True):
            assert torch.equal(mine, theirs)
        assert kept.get_seq_length() == plain.get_seq_length()


def test_nanokv_does_not_import_transformers() -> None:
    code = "import nanokv, sys, nanokv.cache.cache, nanokv.integrations; print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"

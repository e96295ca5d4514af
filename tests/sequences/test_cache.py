"""The cache: CortexStream's examples as they are written, views without a copy, growth, and what is refused."""

import io
from typing import Any

import pytest
import torch

from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound
from nanokv.sequences import KVCache
from tests.sequences.contents import BLOCK, DIM, HEADS, add, holds, small_cache, write

NAME = "CortexStream KV cache"


def of_the_specification(**options: Any) -> KVCache:
    """The 7B model of the examples: 16 GB, so without memory."""
    return KVCache(
        num_layers=32, num_heads=32, head_dim=64, block_size=16, max_total_tokens=32768, device="meta", **options
    )


@pytest.mark.surface(NAME, "KVCache.allocate_for")
@pytest.mark.surface(NAME, "KVCache.used_tokens")
@pytest.mark.surface(NAME, "KVCache.max_allowed")
@pytest.mark.surface(NAME, "KVCache.get_handle")
def test_a_prompt_of_512_tokens_takes_32_blocks() -> None:
    cache = of_the_specification()
    assert cache.allocate_for("req_001", 512)
    assert cache.get_handle("req_001").num_blocks == 32
    assert (cache.used_tokens("req_001"), cache.max_allowed("req_001")) == (512, 512)


@pytest.mark.surface(NAME, "KVCache.append_token", differs="a full sequence grows; grow=False refuses as specified")
@pytest.mark.surface(NAME, "KVCache.get_token_offset_in_block")
def test_after_one_token_513() -> None:
    """The specification refuses token 513 by its own rule, and then shows it in a second block: each is an option."""
    cache = of_the_specification()
    assert cache.allocate_for("req_001", 512)
    assert cache.get_token_offset_in_block("req_001") == 0
    assert cache.append_token("req_001")
    assert cache.used_tokens("req_001") == 513
    assert cache.get_token_offset_in_block("req_001") == 1
    assert cache.get_handle("req_001").num_blocks == 33  # and not 64
    assert cache.get_k_view("req_001", 0).shape == (32, 513, 64)

    by_the_rule = of_the_specification(grow=False)
    assert by_the_rule.allocate_for("req_001", 512)
    assert not by_the_rule.append_token("req_001")
    assert by_the_rule.used_tokens("req_001") == 512

    in_place = of_the_specification(grow=False)
    assert in_place.allocate_for("req_001", 512, max_tokens=520)
    assert [in_place.append_token("req_001") for _ in range(17)] == [True] * 16 + [False]  # 33 blocks: 528 tokens


def test_a_prompt_of_513_tokens_takes_33_blocks() -> None:
    cache = of_the_specification()
    assert cache.allocate_for("req_001", 513)
    assert cache.get_handle("req_001").num_blocks == 33


@pytest.mark.surface(NAME, "KVCache.dump_cache_stats", differs="the figures are those of the blocks in use")
@pytest.mark.surface(NAME, "KVCache.get_total_allocated", differs="counts all layers, and K and V")
@pytest.mark.surface(NAME, "KVCache.get_total_free", differs="counts all layers, and K and V")
@pytest.mark.surface(NAME, "KVCache.get_num_allocated_sequences")
@pytest.mark.surface(NAME, "KVCache.get_fragmentation")
def test_the_report_of_the_example() -> None:
    """The specification prints 2048 and 6144 MB for 60 of 2048 blocks, which is neither K nor K and V."""
    cache, stream = of_the_specification(), io.StringIO()
    for number, tokens in enumerate((512, 256, 128, 64), 1):
        assert cache.allocate_for(f"req_{number:03}", tokens)
    cache.dump_cache_stats(stream)
    assert stream.getvalue() == (
        "=== KVCache Statistics ===\n"
        "Configuration:\n"
        "  Layers: 32, Heads: 32, HeadDim: 64\n"
        "  BlockSize: 16, TotalBlocks: 2048\n"
        "\n"
        "Allocation State:\n"
        "  Allocated sequences: 4\n"
        "  Total allocated: 480.00 MB\n"
        "  Total free: 15904.00 MB\n"
        "  Fragmentation: 0.00\n"
        "\n"
        "Sequences:\n"
        "  req_001: 512/512 tokens, blocks [0, +32]\n"
        "  req_002: 256/256 tokens, blocks [32, +16]\n"
        "  req_003: 128/128 tokens, blocks [48, +8]\n"
        "  req_004: 64/64 tokens, blocks [56, +4]\n"
    )
    assert cache.get_num_allocated_sequences() == 4
    assert cache.get_total_allocated() == 60 * 2 * 32 * 32 * 16 * 64 * 4 == 480 << 20
    assert cache.get_total_allocated() + cache.get_total_free() == 16 << 30
    assert cache.get_fragmentation() == 0.0


@pytest.mark.surface(NAME, "KVCache.dump_block_map")
def test_the_block_map_of_the_example() -> None:
    cache, stream = of_the_specification(), io.StringIO()
    for number, tokens in enumerate((512, 256, 128, 64)):
        cache.allocate_for(str(number), tokens)
    cache.dump_block_map(stream)
    lines = stream.getvalue().splitlines()
    assert lines[1:5] == [
        "  Total blocks: 2048",
        "  Used: 60 Free: 1988",
        "  Fragmentation: 0.00",  # the specification says 0.05, but its free blocks are one run
        "  Block map (. = free, X = used):",
    ]
    assert lines[5] == "    " + "X" * 60 + "...." and set("".join(lines[6:])) == {" ", "."}


@pytest.mark.surface(NAME, "KVCache.free_for")
def test_freed_blocks_are_free_at_once() -> None:
    cache = small_cache(4)
    assert cache.allocate_for("a", 16) and cache.is_full()
    assert not cache.allocate_for("b", 1)
    cache.free_for("a")
    assert not cache.is_full() and cache.get_num_allocated_sequences() == 0
    assert cache.allocate_for("b", 16)


@pytest.mark.surface(NAME, "KVCache.is_full")
def test_full_means_that_no_block_is_free() -> None:
    cache = small_cache(4)
    assert cache.allocate_for("a", 9) and not cache.is_full()
    assert cache.allocate_for("b", 1) and cache.is_full()
    assert cache.append_token("b")  # its block has room


@pytest.mark.surface(NAME, "KVCache.allocate_for", refused="False without room; DuplicateKey for an id that is known")
def test_a_refused_sequence_does_not_exist() -> None:
    cache = small_cache(4)
    assert not cache.allocate_for("a", 17)
    with pytest.raises(KeyNotFound):
        cache.used_tokens("a")
    add(cache, "a", [1, 2, 3])
    with pytest.raises(DuplicateKey):
        cache.allocate_for("a", 1)
    assert holds(cache, "a", [1, 2, 3])
    assert cache.get_total_allocated() * 3 == cache.get_total_free()


def test_a_sequence_may_begin_without_tokens() -> None:
    cache = small_cache()
    add(cache, "a", [])
    assert (cache.used_tokens("a"), cache.max_allowed("a")) == (0, BLOCK)
    assert cache.get_k_view("a", 0).shape == (HEADS, 0, DIM)
    assert cache.append_token("a")
    write(cache, "a", [7])
    assert holds(cache, "a", [7])


@pytest.mark.surface(NAME, "KVCache.free_for", refused="KeyNotFound for an unknown id, where CortexStream does nothing")
@pytest.mark.surface(NAME, "KVCache.used_tokens", refused="KeyNotFound for an unknown id, where CortexStream says 0")
@pytest.mark.surface(
    NAME, "KVCache.get_token_offset_in_block", refused="KeyNotFound for an unknown id, where CortexStream says -1"
)
def test_an_unknown_sequence_is_an_error_in_every_call() -> None:
    cache = small_cache()
    add(cache, "a", [1])
    cache.free_for("a")
    calls: list[Any] = [
        *(cache.free_for, cache.append_token, cache.used_tokens, cache.max_allowed, cache.get_handle),
        *(cache.get_token_offset_in_block, cache.evict_to_host, cache.restore, cache.token_positions),
        *(lambda key: cache.get_k_view(key, 0), lambda key: cache.get_v_view(key, 0)),
        *(lambda key: cache.retain(key, 1), lambda key: cache.set_importance(key, [])),
        lambda key: cache.pin(key).__enter__(),
    ]
    for call in calls:
        with pytest.raises(KeyNotFound, match="no sequence 'a'"):
            call("a")
        with pytest.raises(InvalidArgument, match="request_id must be a str"):
            call(["a"])
    assert cache.get_total_allocated() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_layers": 0},
        {"num_heads": -1},
        {"head_dim": 1.5},
        {"block_size": 0},
        {"max_total_tokens": 0},
        {"max_total_tokens": True},
        {"dtype": "float32"},
        {"dtype": torch.qint8},
        {"layout": "block_major"},
    ],
)
def test_impossible_options_are_errors(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "head_dim": 1, "max_total_tokens": 1}
    KVCache(**options)
    with pytest.raises(InvalidArgument):
        KVCache(**{**options, **wrong})


def test_impossible_arguments_change_nothing() -> None:
    cache = small_cache()
    add(cache, "a", [1, 2])
    wrong: list[Any] = [
        lambda: cache.allocate_for("b", -1),
        lambda: cache.allocate_for("b", True),
        lambda: cache.allocate_for("b", 5, max_tokens=4),
        lambda: cache.allocate_for(5, 5),  # type: ignore[arg-type]
        lambda: cache.append_token("a", float("nan")),
        lambda: cache.append_token("a", float("inf")),
        lambda: cache.append_token("a", "high"),  # type: ignore[arg-type]
        lambda: cache.get_k_view("a", 2),
        lambda: cache.get_v_view("a", -1),
        lambda: cache.k_block(2, 0),
        lambda: cache.v_block(0, 16),
    ]
    for call in wrong:
        with pytest.raises(InvalidArgument):
            call()
    assert cache.get_num_allocated_sequences() == 1 and holds(cache, "a", [1, 2])


def test_the_tokens_are_rounded_up_to_blocks() -> None:
    cache = KVCache(1, 1, 1, block_size=16, max_total_tokens=17)
    assert cache.allocate_for("a", 32)

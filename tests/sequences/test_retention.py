"""Retention: the most important tokens stay, in their order, with their K and V."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanokv.errors import InvalidArgument
from nanokv.sequences.cache import places_to_keep
from tests.sequences.contents import add, holds, small_cache, write

NAME = "CortexStream KV cache"


@pytest.mark.surface(NAME, "KVCache.append_token", differs="importance: returns whether there was room, not nothing")
@pytest.mark.surface(NAME, "KVCache.retain")
@pytest.mark.surface(NAME, "KVCache.token_positions")
def test_unimportant_tokens_go_from_the_middle() -> None:
    cache = small_cache()
    add(cache, "a", [0, 1])
    for mark, importance in enumerate((0.5, 0.1, 0.9, 0.2, 0.8, 0.3, 0.0, 0.0), 2):
        assert cache.append_token("a", importance)
        write(cache, "a", [mark])
    kept = cache.retain("a", 6, protect_first=2, protect_last=1)
    assert kept == [0, 1, 2, 4, 6, 9]
    assert holds(cache, "a", kept) and cache.used_tokens("a") == 6
    assert cache.get_handle("a").num_blocks == 2  # of three
    assert cache.append_token("a", 0.7)
    write(cache, "a", [10])
    assert cache.token_positions("a") == [0, 1, 2, 4, 6, 9, 10]
    assert cache.retain("a", 5, protect_first=1, protect_last=1) == [0, 2, 3, 4, 6]
    assert cache.token_positions("a") == [0, 2, 4, 6, 10] and holds(cache, "a", [0, 2, 4, 6, 10])


@pytest.mark.surface(NAME, "KVCache.set_importance")
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_prompts_tokens_get_their_importance_at_once(as_tensor: bool) -> None:
    cache, scores = small_cache(), [0.0, 3.0, 1.0, 2.0]
    add(cache, "a", [10, 11, 12, 13])
    cache.set_importance("a", torch.tensor(scores) if as_tensor else scores)
    assert cache.retain("a", 0.5, protect_first=0, protect_last=0) == [1, 3]
    assert holds(cache, "a", [11, 13])


def test_without_importance_the_first_and_the_latest_stay() -> None:
    cache = small_cache()
    add(cache, "a", list(range(30)))
    assert cache.retain("a", 12) == [0, 1, 2, 3, *range(22, 30)]
    assert holds(cache, "a", [0, 1, 2, 3, *range(22, 30)])


def test_blocks_may_be_kept_for_tokens_to_come() -> None:
    cache = small_cache(2, grow=False)
    add(cache, "a", list(range(8)))
    assert not cache.append_token("a")
    assert cache.retain("a", 4, protect_first=1, protect_last=2, release=False) == [0, 5, 6, 7]
    assert cache.max_allowed("a") == 8 and cache.append_token("a")
    write(cache, "a", [8])
    assert holds(cache, "a", [0, 5, 6, 7, 8])


@pytest.mark.surface(NAME, "KVCache.retain", refused="InvalidArgument for less than what is protected")
def test_what_cannot_be_kept_changes_nothing() -> None:
    cache = small_cache()
    add(cache, "a", list(range(10)))
    wrong: list[Any] = [
        lambda: cache.retain("a", 7),  # 4 and 4 are protected
        lambda: cache.retain("a", 0),
        lambda: cache.retain("a", -3),
        lambda: cache.retain("a", 1.0),
        lambda: cache.retain("a", 1.5),
        lambda: cache.retain("a", float("nan")),
        lambda: cache.retain("a", True),
        lambda: cache.retain("a", "all"),  # type: ignore[arg-type]
        lambda: cache.retain("a", 8, protect_first=-1),
        lambda: cache.retain("a", 100, protect_last=-1),
        lambda: cache.set_importance("a", [1.0] * 9),
        lambda: cache.set_importance("a", [float("nan")] * 10),
        lambda: cache.set_importance("a", 1.0),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidArgument):
            call()
    assert holds(cache, "a", list(range(10)))
    for keep in (10, 11, 0.99):
        assert cache.retain("a", keep) == list(range(10))
    assert holds(cache, "a", list(range(10)))


@given(
    importance=st.lists(st.sampled_from([0.0, 0.5, 1.0, -1.0, 7.25]), max_size=30),
    keep=st.integers(1, 30),
    first=st.integers(0, 5),
    last=st.integers(0, 5),
)
def test_no_dropped_token_is_worth_more_than_a_kept_one(
    importance: list[float], keep: int, first: int, last: int
) -> None:
    tokens = len(importance)
    if first + last > keep and keep < tokens:
        with pytest.raises(InvalidArgument):
            places_to_keep(importance, keep, first, last)
        return
    kept = places_to_keep(importance, keep, first, last)
    assert kept == sorted(set(kept)) and len(kept) == min(keep, tokens)
    dropped = set(range(tokens)) - set(kept)
    if not dropped:
        return
    protected = set(range(first)) | set(range(tokens - last, tokens))
    assert protected.issubset(kept)
    worth = {place: (importance[place], place) for place in range(tokens)}
    free = [worth[place] for place in kept if place not in protected]
    assert not free or max(worth[place] for place in dropped) < min(free)

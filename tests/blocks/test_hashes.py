"""Hashes of blocks: Dynamo's definition, computed again from its words, and the way into a NanoKV key and back."""

from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import nanokv
from nanokv.blocks import SequenceHash, salt_hash_of, token_blocks
from nanokv.blocks.hashes import PRIVATE, Keys, checked_parent, sequence_of
from nanokv.errors import InvalidArgument, ReuseViolation

KVBM = "KVBM block manager"
U64 = st.integers(0, (1 << 64) - 1)
TOKENS = st.lists(st.integers(0, (1 << 32) - 1), max_size=20)
HASHES = st.builds(SequenceHash, U64, st.integers(0, PRIVATE - 1), st.integers(0, (1 << 12) - 1))


@pytest.mark.surface(KVBM, "token_blocks")
@given(TOKENS, st.integers(1, 7), U64)
def test_hashes_are_chained_as_dynamo_says(tokens: list[int], size: int, salt: int) -> None:
    blocks = token_blocks(tokens, size, salt)
    assert len(blocks) == len(tokens) // size
    before = None
    for at, block in enumerate(blocks):
        raw = b"".join(token.to_bytes(4, "little") for token in tokens[at * size : (at + 1) * size])
        local = xxhash.xxh3_64(raw, seed=salt).intdigest()
        value = local
        if before is not None:
            pair = before.value.to_bytes(8, "little") + local.to_bytes(8, "little")
            value = xxhash.xxh3_64(pair, seed=0).intdigest()
        assert block.block_hash == local and block.parent == before
        assert block.sequence_hash == SequenceHash(value, at, local & 0xFFF)
        before = block.sequence_hash


def test_a_hash_depends_on_the_salt_all_tokens_and_their_places() -> None:
    base = token_blocks(range(12), 4, 1)[2].sequence_hash
    others = [token_blocks(range(12), 4, 2)[2]]
    for at in range(12):
        changed = list(range(12))
        changed[at] = 99
        others.append(token_blocks(changed, 4, 1)[2])
    others.append(token_blocks([1, 0, *range(2, 12)], 4, 1)[2])
    assert len({base, *(block.sequence_hash for block in others)}) == len(others) + 1
    assert token_blocks([*range(12), 99], 4, 1)[2].sequence_hash == base


def test_known_values() -> None:
    first, second = token_blocks([1, 2, 3, 4, 5, 6, 7, 8], 4, 1337)
    assert first.block_hash == xxhash.xxh3_64_intdigest(b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0", 1337)
    assert second.sequence_hash.position == 1 and first.sequence_hash.value == first.block_hash
    assert salt_hash_of(b"") == 0x2D06800538D394C2  # XXH3-64 of nothing


@given(HASHES, st.integers(-(1 << 31), (1 << 31) - 1))
def test_a_key_states_the_hash(found: SequenceHash, tag: int) -> None:
    key = Keys(tag).of(found)
    assert sequence_of(key) == found and key.key_check >> 32 == tag


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_a_private_key_states_none(tag: int) -> None:
    keys = Keys(tag)
    first, second = keys.private(), keys.private()
    assert sequence_of(first) is None and first != second and first.key_check >> 32 == tag


def test_keys_are_of_the_caches_identity() -> None:
    mine, other = (
        nanokv.local_world(1, 1 << 16, page_bytes=4096, identity=nanokv.Identity(model))[0] for model in ("a", "b")
    )
    with mine, other:
        key = Keys(mine.digest("").key_check >> 32).of(SequenceHash(1, 2, 3))
        assert not mine.exists(key)
        with pytest.raises(ReuseViolation):
            other.exists(key)


@pytest.mark.parametrize("wrong", [-1, 1 << 32, "1", 1.0, None])
def test_wrong_tokens_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        token_blocks([1, wrong], 1, 0)
    with pytest.raises(InvalidArgument):
        token_blocks(wrong, 1, 0)


def test_wrong_sizes_salts_and_parents_are_refused() -> None:
    for arguments in (([1], 0, 0), ([1], 1, -1), ([1], 1, 1 << 64), ("12", 1, 0)):
        with pytest.raises(InvalidArgument):
            token_blocks(*arguments)
    with pytest.raises(InvalidArgument):
        salt_hash_of("salt")  # type: ignore[arg-type]
    checked_parent(SequenceHash(1, PRIVATE - 2, 0))
    with pytest.raises(InvalidArgument, match="position"):
        checked_parent(SequenceHash(1, PRIVATE - 1, 0))

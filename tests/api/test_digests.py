"""Many digests as one array: the same digests, checked once."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv import Digests, Identity, KeyDigest, local_world
from nanokv.errors import InvalidArgument, ReuseViolation
from nanokv.keys.hashing import Hasher
from nanokv.keys.identity import TAG_BITS

IDENTITY = Identity(model="m", tokenizer="t")
HASHERS = [Hasher(), Hasher("n"), Hasher(identity=IDENTITY), Hasher("n", IDENTITY)]
TEXTS = st.text(st.characters(), max_size=20)  # with lone surrogates


@given(
    st.sampled_from(HASHERS),
    st.one_of(st.lists(TEXTS), st.lists(st.binary(max_size=20)), st.lists(st.one_of(TEXTS, st.binary(max_size=20)))),
)
def test_each_digest_is_that_of_its_key(hasher: Hasher, keys: list[Any]) -> None:
    alone = [hasher(key) for key in keys]
    many = hasher.each(keys)
    assert list(many) == alone and len(many) == len(keys)
    assert all(type(digest) is KeyDigest for digest in many)
    assert list(hasher.each(alone)) == alone
    assert hasher.each(many) is many
    mixed = [digest if i % 2 else key for i, (key, digest) in enumerate(zip(keys, alone, strict=True))]
    assert list(hasher.each(mixed)) == alone


@pytest.mark.parametrize("mine", HASHERS)
@pytest.mark.parametrize("other", HASHERS)
def test_one_digest_of_another_identity_is_refused(mine: Hasher, other: Hasher) -> None:
    if mine is other:
        return
    mixed = [mine("a"), other("b"), mine("c")]
    for keys in (mixed, Digests(np.array(mixed))):
        with pytest.raises(ReuseViolation, match=str(mixed[1].key_hash)):
            mine.each(keys)


def test_a_key_of_another_type_is_refused() -> None:
    for wrong in (1, None, ("a", "b"), (1 << 64, 0)):
        with pytest.raises(InvalidArgument, match="a key is a str"):
            Hasher().each(["a", wrong])  # type: ignore[list-item]


def test_a_sequence() -> None:
    digests = Hasher().each([str(i) for i in range(10)])
    one = Hasher()("3")
    assert digests[3] == digests[-7] == one and type(digests[3]) is KeyDigest
    assert isinstance(digests[2:5], Digests) and list(digests[2:5]) == list(digests)[2:5]
    assert list(digests[::-2]) == list(digests)[::-2] and digests[::-2].words.flags.c_contiguous
    assert one in digests and digests.index(one) == 3 and digests[:0] == digests[5:5]
    assert digests == Digests(digests.words) != digests[1:] and digests != list(digests)
    assert repr(digests) == "<10 digests>"
    with pytest.raises(IndexError):
        digests[10]
    with pytest.raises(TypeError, match="unhashable"):
        hash(digests)
    for twin in (pickle.loads(pickle.dumps(digests)), copy.copy(digests), copy.deepcopy(digests)):
        assert twin == digests


def test_the_array_is_a_copy_that_cannot_change() -> None:
    words = np.arange(6).reshape(3, 2)
    digests = Digests(words)
    words[:] = 0
    assert list(digests) == [KeyDigest(0, 1), KeyDigest(2, 3), KeyDigest(4, 5)]
    for each in (digests, digests[1:]):
        with pytest.raises(ValueError, match="read-only"):
            each.words[0, 0] = 1


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 3), np.int64), np.zeros(4, np.int64), np.zeros((2, 2), np.uint64), np.zeros((2, 2)), [[1, 2]], None],
)
def test_another_array_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"int64 \[n, 2\]"):
        Digests(wrong)


def test_a_cache_makes_them_and_refuses_those_of_others() -> None:
    (cache,) = local_world(1, 1 << 20, identity=IDENTITY)
    with cache:
        digests = cache.digests(f"{i}" for i in range(3))
        assert list(digests) == [cache.digest(f"{i}") for i in range(3)]
        assert {digest.key_check >> TAG_BITS for digest in digests} == {digests[0].key_check >> TAG_BITS}
        for call in (cache.digests, cache.exists_many, cache.prefix_length, cache.remove_many, cache.get_many):
            with pytest.raises(ReuseViolation):
                call(Hasher().each(["a"]))
        with pytest.raises(InvalidArgument, match="keys must be a sequence"):
            cache.digests("text")

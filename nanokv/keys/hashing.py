"""Keys and their digests, the same in every process: 32 bits that name an identity, and 96 bits of XXH3-128.

At scale, 64 bits would collide once in a while and serve a wrong block, so both halves are stored and compared.
The tag of the identity (`nanokv.keys.identity`) stands in the upper half of `key_check`. The home rank, the bucket and
the free lists of a key come of words whose lower bits are a hash, so the objects of one identity spread as any others.
"""

import contextlib
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt
import xxhash

from nanokv.errors import InvalidArgument, ReuseViolation
from nanokv.keys.digests import Digests
from nanokv.keys.identity import TAG_BITS, Identity, digest_of
from nanokv.types import Key, KeyDigest

_HALVES = struct.Struct(f">{TAG_BITS // 8}xIq")  # XXH3's canonical form, high half first, without the bits of the tag
_halves, _xxh3_128 = _HALVES.unpack, xxhash.xxh3_128_digest
_new = tuple.__new__
_WORD = 1 << 63
_TAGS = 1 << TAG_BITS
Words = npt.NDArray[np.int64]


class Hasher:
    """Digests of keys within an identity and a namespace: two of them never share an object.

    Args:
        namespace: without NUL.
        identity: None: keys mean something within the namespace only.

    Attributes:
        tag: of identity and namespace; 0 without both. `signed_tag`: as a signed word of 32 bits has it.
        prefix: 16 bytes that are hashed before each key.
        upper: the tag as the upper half of a `key_check`.
    """

    def __init__(self, namespace: str = "", identity: Identity | None = None) -> None:
        self.prefix, self.tag = digest_of(identity, namespace)
        self.signed_tag = self.tag - (_TAGS if self.tag >= _TAGS // 2 else 0)  # as the upper half of a signed word
        self.upper = self.signed_tag << TAG_BITS
        #: what hashes a list of keys natively: int64 [n, 2], or None where one of them is unusual
        self.each_natively: Callable[[list[Key]], Words | None] | None = None
        self._whose = f"namespace {namespace!r} and {identity}"

    def __call__(self, key: Key) -> KeyDigest:
        """The digest of a key: a str (as UTF-8), bytes, or a digest itself.

        Raises:
            InvalidArgument: the key is of another type.
            ReuseViolation: it is a digest of another identity or namespace.
        """
        if type(key) is KeyDigest:  # the usual one of an engine
            if key[1] >> TAG_BITS == self.signed_tag:
                return key
            raise self._violated(key)
        if type(key) is str or isinstance(key, str):
            raw = key.encode("utf-8", "surrogatepass")
        elif isinstance(key, bytes):
            raw = key
        else:
            return self(_checked(key))
        check, low = _halves(_xxh3_128(self.prefix + raw))
        return _new(KeyDigest, (low, check | self.upper))  # `known_digest`, without its call

    def each(self, keys: Sequence[Key]) -> Digests:
        """The digest of each key; raises as for one. Keys of one kind take 0.1 to 0.3 us each."""
        if type(keys) is Digests:
            return self._mine(keys)
        if self.each_natively is not None and type(keys) is list:
            found = self.each_natively(keys)
            if found is not None:
                return Digests.own(found, self.signed_tag)
        kinds = set(map(type, keys))
        if kinds == {str}:
            return self._each_raw([cast(str, key).encode("utf-8", "surrogatepass") for key in keys])
        if kinds == {bytes}:
            return self._each_raw(cast(Sequence[bytes], keys))
        digests = cast(Sequence[KeyDigest], keys) if kinds == {KeyDigest} else [self(key) for key in keys]
        words = np.fromiter(chain.from_iterable(digests), np.int64, 2 * len(digests))
        return self._mine(Digests.own(words.reshape(-1, 2)))

    def _each_raw(self, raws: Sequence[bytes]) -> Digests:
        """Hash many keys at once as `__call__`, which has the format."""
        prefix = self.prefix
        halves = np.frombuffer(b"".join([_xxh3_128(prefix + raw) for raw in raws]), ">i8").reshape(-1, 2)
        words = np.empty((len(raws), 2), np.int64)
        words[:, 0] = halves[:, 1]
        words[:, 1] = halves[:, 0] & _TAGS - 1 | self.upper
        return Digests.own(words, self.signed_tag)

    def _mine(self, digests: Digests) -> Digests:
        """Raises ReuseViolation for the first one of another identity or namespace."""
        if digests.tag == self.signed_tag:
            return digests
        tags: npt.NDArray[np.int64] = digests.words[:, 1] >> TAG_BITS
        if (tags == self.signed_tag).all():
            digests.tag = self.signed_tag
            return digests
        raise self._violated(digests[int(np.argmax(tags != self.signed_tag))])

    def group(self, name: str) -> int:
        """The word of a group of this identity and namespace, LABEL.group: a signed word, never 0."""
        raw = self.prefix + b"\0group" + name.encode("utf-8", "surrogatepass")
        found = xxhash.xxh3_64_intdigest(raw) or 1
        return found - 2 * _WORD if found >= _WORD else found

    def _violated(self, digest: KeyDigest) -> ReuseViolation:
        theirs, mine = shown_tag(tag_of(digest)), shown_tag(self.tag)
        return ReuseViolation(f"the digest {tuple(digest)} is of {theirs}, this cache of {mine}: {self._whose}")


def tag_of(digest: KeyDigest) -> int:
    """The tag of the identity that a digest names: 32 bits; 0: no identity and no namespace."""
    return digest.key_check >> TAG_BITS & _TAGS - 1


def shown_tag(tag: int) -> str:
    """A tag for people."""
    return f"identity {tag:08x}" if tag else "no identity"


def _checked(key: object) -> KeyDigest:
    if isinstance(key, tuple) and len(key) == 2:
        with contextlib.suppress(InvalidArgument):
            return KeyDigest(*key)
    raise InvalidArgument(f"a key is a str, bytes or a KeyDigest of two signed 64-bit integers, not {key!r}")

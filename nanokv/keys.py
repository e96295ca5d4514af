"""Keys and their digests, the same in every process: 32 bits that name an identity, and 96 bits of XXH3-128.

At scale, 64 bits would collide once in a while and serve a wrong block, so both halves are stored and compared.
The tag of the identity (`nanokv.identity`) stands in the upper half of `key_check`. The home rank, the bucket and the
free lists of a key come of words whose lower bits are a hash, so the objects of one identity spread as any others.
"""

import contextlib
import struct
from collections.abc import Sequence

import xxhash

from nanokv.errors import InvalidArgument, ReuseViolation
from nanokv.identity import TAG_BITS, Identity, digest_of
from nanokv.types import Key, KeyDigest, known_digest

_HALVES = struct.Struct(f">{TAG_BITS // 8}xIq")  # XXH3's canonical form, high half first, without the bits of the tag
_halves, _xxh3_128 = _HALVES.unpack, xxhash.xxh3_128_digest
_WORD = 1 << 63
_TAGS = 1 << TAG_BITS


class Hasher:
    """Digests of keys within an identity and a namespace: two of them never share an object.

    Args:
        namespace: without NUL.
        identity: None: keys mean something within the namespace only.

    Attributes:
        tag: of identity and namespace; 0 without both.
    """

    def __init__(self, namespace: str = "", identity: Identity | None = None) -> None:
        self._prefix, self.tag = digest_of(identity, namespace)
        self._signed = self.tag - (_TAGS if self.tag >= _TAGS // 2 else 0)  # as the upper half of a signed word
        self._upper = self._signed << TAG_BITS
        self._whose = f"namespace {namespace!r} and {identity}"

    def __call__(self, key: Key) -> KeyDigest:
        """The digest of a key: a str (as UTF-8), bytes, or a digest itself.

        Raises:
            InvalidArgument: the key is of another type.
            ReuseViolation: it is a digest of another identity or namespace.
        """
        if type(key) is KeyDigest:  # the usual one of an engine
            if key[1] >> TAG_BITS == self._signed:
                return key
            raise self._violated(key)
        if isinstance(key, str):
            raw = key.encode("utf-8", "surrogatepass")
        elif isinstance(key, bytes):
            raw = key
        else:
            return self(_checked(key))
        check, low = _halves(_xxh3_128(self._prefix + raw))
        return known_digest(low, check | self._upper)

    def each(self, keys: Sequence[Key]) -> list[KeyDigest]:
        """The digest of each key; raises as for one."""
        mine = self._signed
        return [key if type(key) is KeyDigest and key[1] >> TAG_BITS == mine else self(key) for key in keys]

    def group(self, name: str) -> int:
        """The word of a group of this identity and namespace, LABEL.group: a signed word, never 0."""
        raw = self._prefix + b"\0group" + name.encode("utf-8", "surrogatepass")
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

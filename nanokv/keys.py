"""Keys and their digests: XXH3-128 of the namespace and the key, the same in every process.

At scale, 64 bits would collide once in a while and serve a wrong block, so both halves are stored and compared.
"""

import struct

import xxhash

from nanokv.arguments import whole_number
from nanokv.errors import InvalidArgument
from nanokv.types import Key, KeyDigest

_HALVES = struct.Struct(">qq")  # XXH3's canonical form: high half first
_WORD = 1 << 63


class Hasher:
    """Digests of keys within a namespace (a model, a layout, a tenant): two namespaces never share an object.

    Args:
        namespace: without NUL.
    """

    def __init__(self, namespace: str = "") -> None:
        self._prefix = namespace.encode("utf-8", "surrogatepass") + b"\0"

    def __call__(self, key: Key) -> KeyDigest:
        """The digest of a key: a str (as UTF-8), bytes, or a digest itself.

        Raises:
            InvalidArgument: the key is of another type.
        """
        if isinstance(key, str):
            raw = key.encode("utf-8", "surrogatepass")
        elif isinstance(key, bytes):
            raw = key
        else:
            return _checked(key)
        check, low = _HALVES.unpack(xxhash.xxh3_128_digest(self._prefix + raw))
        return KeyDigest(low, check)


def _checked(key: object) -> KeyDigest:
    if isinstance(key, tuple) and len(key) == 2:
        low, check = map(whole_number, key)
        if low is not None and check is not None and min(low, check) >= -_WORD and max(low, check) < _WORD:
            return KeyDigest(low, check)
    raise InvalidArgument(f"a key is a str, bytes or a KeyDigest of two signed 64-bit integers, not {key!r}")

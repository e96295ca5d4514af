"""Keys and their digests: XXH3-128 of the namespace and the key, the same in every process.

At scale, 64 bits would collide once in a while and serve a wrong block, so both halves are stored and compared.
"""

import struct

import xxhash

from nanokv.errors import InvalidArgument
from nanokv.types import Key, KeyDigest

_HALVES = struct.Struct(">qq")  # XXH3's canonical form: high half first
_WORD = 1 << 63


class Hasher:
    """Digests of keys within a namespace (a model, a layout, a tenant): two namespaces never share an object."""

    def __init__(self, namespace: str = "") -> None:
        if not isinstance(namespace, str) or "\0" in namespace:
            raise InvalidArgument(f"namespace must be a str without NUL, not {namespace!r}")
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
    if isinstance(key, tuple) and len(key) == 2 and all(type(half) is int and -_WORD <= half < _WORD for half in key):
        return KeyDigest(*key)
    raise InvalidArgument(f"a key is a str, bytes or a KeyDigest of two signed 64-bit integers, not {key!r}")

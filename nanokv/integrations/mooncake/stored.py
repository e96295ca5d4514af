"""How an object of the store lies in a segment: its value, the key, and eight bytes that tell the length of the key.

NanoKV keeps digests of keys. The store removes by regular expression and lists what it has, so the key itself is
needed, and lies behind the value: a reader, who knows the key, knows from the length of the object how long the value
is.
"""

import struct

_TAIL = struct.Struct("<II")
_MAGIC = 0x4B4D4B4E  # "NKMK"
TAIL = _TAIL.size  #: bytes behind the key


def tail_of(key: bytes) -> bytes:
    """What lies behind the value of a key's object."""
    return key + _TAIL.pack(len(key), _MAGIC)


def tail_bytes(key: bytes) -> int:
    """The length of `tail_of(key)`."""
    return len(key) + TAIL


def key_length(ending: bytes, nbytes: int) -> int | None:
    """The length of an object's key, which ends where its last `TAIL` bytes begin; None: it is no object of the store.

    Args:
        ending: those last bytes.
        nbytes: of the whole object.
    """
    length, magic = _TAIL.unpack(ending)
    return length if magic == _MAGIC and length <= nbytes - TAIL else None

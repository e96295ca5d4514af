"""The plain data of the API: keys, locations of objects, plans for kernels that write them, counts of files."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from nanokv.errors import InvalidArgument


class _Halves(NamedTuple):
    key_hash: int
    key_check: int


class KeyDigest(_Halves):
    """A key within an identity (`nanokv.keys.hashing`), as two signed 64-bit integers. Accepted wherever a key is.

    Whatever has this type has such integers, so that no call has to look.

    Args:
        key_hash: the lower half.
        key_check: the upper half. Its upper 32 bits are the tag of the identity.

    Raises:
        InvalidArgument: one of them is no integer of Python or numpy, or has more bits.
    """

    __slots__ = ()

    def __new__(cls, key_hash: int, key_check: int) -> Self:
        low, check = signed_word(key_hash), signed_word(key_check)
        if low is None or check is None:
            raise InvalidArgument(f"a KeyDigest has two signed 64-bit integers, not {key_hash!r} and {key_check!r}")
        return tuple.__new__(cls, (low, check))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]  # `_replace` calls it
        return cls(*iterable)


def known_digest(key_hash: int, key_check: int) -> KeyDigest:
    """A KeyDigest of two ints that are known to have at most 64 bits, in half the time."""
    return tuple.__new__(KeyDigest, (key_hash, key_check))


def signed_word(value: object) -> int | None:
    """An int of Python or numpy with at most 64 bits, as an int; None for anything else, and for a bool."""
    if isinstance(value, bool):
        return None
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return found if -(1 << 63) <= found < 1 << 63 else None


Key = str | bytes | KeyDigest


@dataclass(frozen=True, slots=True)
class ObjMeta:
    """Where an object lies. Offsets are bytes from the base of the owner's segment."""

    key_hash: int
    owner_rank: int
    header_off: int
    payload_off: int
    bytes_total: int
    page_bytes: int
    n_pages: int
    epoch: int
    key_check: int

    @property
    def digest(self) -> KeyDigest:
        """The digest of the object's key."""
        return KeyDigest(self.key_hash, self.key_check)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where a producer's kernel writes an object, and what it commits. Offsets are bytes from `dst_rank`'s base."""

    key_hash: int
    dst_rank: int
    header_off: int
    payload_base: int
    page_bytes: int
    n_pages: int
    bytes_total: int
    epoch: int
    key_check: int

    @property
    def digest(self) -> KeyDigest:
        """The digest of the object's key."""
        return KeyDigest(self.key_hash, self.key_check)


class Saved(NamedTuple):
    """What `NanoKVCache.save` has done."""

    objects: int  #: in the file
    bytes: int  #: of these objects
    left_out: int  #: objects that went away while they were read
    damaged: int  #: objects whose checksum or descriptor was wrong: they are not in the file


class Left(NamedTuple):
    """What a rank did with the objects in its segment when it left (`NanoKVCache.leave`)."""

    moved: int  #: objects that are now in the segments of other ranks
    dropped: int  #: objects that are gone
    bytes: int  #: of the objects that were moved


class Loaded(NamedTuple):
    """What `NanoKVCache.load` has done. The first, and the last three, add up to the objects of the file."""

    objects: int  #: that were put
    bytes: int  #: of these
    duplicates: int  #: objects whose keys have one already, or one that is being written
    no_room: int  #: objects for which something else had to be evicted
    too_large: int  #: objects that are larger than any object of this world

"""The plain data of the API: keys, locations of objects, and plans for kernels that write them."""

from dataclasses import dataclass
from typing import NamedTuple


class KeyDigest(NamedTuple):
    """A key within an identity (`nanokv.keys`), as two signed 64-bit integers. Accepted wherever a key is."""

    key_hash: int
    key_check: int  #: its upper 32 bits are the tag of the identity


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

"""The plain data of the API: keys, locations of objects, plans for kernels that write them, counts of files."""

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

"""What protocol functions pass on as one argument: named tuples of words, which a compiler keeps in registers."""

from typing import NamedTuple

import triton.language as tl


class Key(NamedTuple):
    """A key's digest, 128 bits."""

    hash: tl.tensor  #: low half: the buckets that may hold it
    check: tl.tensor  #: high half: its home, and the tag of its entry


class Descriptor(NamedTuple):
    """An object's dtype and shape."""

    kind: tl.tensor  #: dtype code and number of dimensions, as DESCRIPTOR's `format`; above them a checksum, if stored
    d0: tl.tensor
    d1: tl.tensor
    d2: tl.tensor
    d3: tl.tensor
    d4: tl.tensor
    d5: tl.tensor
    d6: tl.tensor


class Begun(NamedTuple):
    """An object that is WRITING, as its producer knows it."""

    slot: tl.tensor  #: of its header
    epoch: tl.tensor
    payload: tl.tensor  #: offset of its first byte in the owner's segment
    phase: tl.tensor  #: the grace phase in which the operation is counted


class Found(NamedTuple):
    """An object that was READY when it was looked up, as a reader knows it."""

    owner: tl.tensor  #: rank of the segment that holds it
    slot: tl.tensor  #: of its header
    epoch: tl.tensor
    payload: tl.tensor  #: offset of its first byte in the owner's segment
    nbytes: tl.tensor

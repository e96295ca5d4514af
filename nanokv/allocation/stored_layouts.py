"""The table of layouts of a segment, as a host reads and writes it: one row per identity that has put objects there."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import FORM_WORDS, LAYOUT, WORD
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import InvalidArgument, OutOfMemory, ReuseViolation
from nanokv.keys.hashing import shown_tag
from nanokv.keys.identity import TAG_BITS, Identity, digest_of
from nanokv.keys.kv_layout import KVLayout

_NUMBERS = ("layers", "first_layer", "kv_heads", "head_size", "block_size", "tp_rank", "tp_size")
_HASHED = LAYOUT.offsets["check"]
Rows = npt.NDArray[Any]  #: LAYOUT records


class StoredLayout(NamedTuple):
    """A row of a segment's table."""

    rank: int  #: whose segment it is
    tag: int  #: of the identity that has put objects into it
    layout: KVLayout
    is_mine: bool  #: that identity is this cache's, or differs from it only in the layout: its slices can be got


def row_of(identity: Identity, namespace: str = "") -> Rows:
    """The row of an identity with a layout: LAYOUT [1]."""
    layout = identity.layout
    assert layout is not None
    row = np.zeros(1, LAYOUT.dtype)
    row["identity"], row["identity_low"] = digest_of(identity, namespace).halves
    row["base"], row["base_low"] = digest_of(identity.with_layout(None), namespace).halves
    for name in _NUMBERS:
        row[name] = getattr(layout, name)
    row["dtype"] = DTYPE_NAMES.index(layout.dtype) + 1
    row["order"] = _words(layout.order.encode(), 1)[0]
    row["form"] = _words(layout.form.encode("utf-8", "surrogatepass"), FORM_WORDS)
    row["check"] = check_of(row)
    return row


def check_of(row: Rows) -> int:
    """The hash that the last word of a row must be; never 0."""
    return xxhash.xxh3_64_intdigest(row.tobytes()[:_HASHED]) or 1


def layout_in(row: Any) -> KVLayout | None:
    """The layout in a record; None if it is not finished, or wrong."""
    if not row["identity"] or row["check"] != check_of(row):
        return None
    try:
        return KVLayout(
            **{name: int(row[name]) for name in _NUMBERS},
            dtype=DTYPE_NAMES[int(row["dtype"]) - 1],
            order=row["order"].tobytes().rstrip(b"\0").decode(),
            form=row["form"].tobytes().rstrip(b"\0").decode("utf-8", "surrogatepass"),
        )
    except (InvalidArgument, IndexError, UnicodeDecodeError):
        return None  # of a later version, or written to deceive


def tag_in(row: Any) -> int:
    """The tag of the identity of a record."""
    return int(row["identity"]) >> TAG_BITS


def stored_in(rank: int, rows: Iterable[Any], identity: Identity | None, namespace: str) -> Iterator[StoredLayout]:
    """The finished rows of the table of `rank`, as a cache of this identity and namespace sees them."""
    base = digest_of(identity.with_layout(None), namespace).halves if identity is not None else None
    for row in rows:
        layout = layout_in(row)
        if layout is not None:
            yield StoredLayout(rank, tag_in(row), layout, (int(row["base"]), int(row["base_low"])) == base)


def writer(machine: Machine, identity: Identity | None, namespace: str) -> Callable[[int], None] | None:
    """A function of a rank that writes this cache's row into that segment at its first call; None without a layout.

    It raises OutOfMemory if the table is full, and ReuseViolation if another identity there has the same tag.
    """
    if identity is None or identity.layout is None:
        return None
    row, there = row_of(identity, namespace), set[int]()

    def write(rank: int) -> None:
        if rank in there:
            return
        write_row(machine, rank, row)
        there.add(rank)

    return write


def write_row(machine: Machine, rank: int, row: Rows) -> None:
    """Write a row (LAYOUT [1]) into a segment's table, unless it is there. Raises as the function of `writer`."""
    status = machine.write_layout(rank, row)
    if status == Status.FULL:
        raise OutOfMemory(
            f"the table of layouts in the segment of rank {rank} is full: no other identity can put objects there "
            "before its world is made anew"
        )
    if status != Status.OK:
        raise ReuseViolation(f"another identity has the same {shown_tag(tag_in(row[0]))} in segment {rank}")


def _words(text: bytes, count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(text.ljust(count * WORD, b"\0"), np.uint64)

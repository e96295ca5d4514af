"""What becomes of the objects in a segment, on its way from its owner's poller to the thread that tells other nodes.

A queue of LOCATIONs in private memory (OUTBOX record), with one writer and one reader.

Guarantees
- The reader takes rows in the order in which they were written, each once, and whole.
- The writer never waits. A row for which there is no room is counted in `lost`, and the reader is told so with the next
  rows that it takes, if not before.
- No wake-up is lost: a reader that sleeps is woken by the next row, or by the next one that is lost.

Why the orderings suffice: a row is written before `written` is released, and read after that was acquired; it is read
before `taken` is released, and written over after that was acquired. `lost` is counted before the next row is released.
The bell is Dekker's pattern: the writer releases `written`, exchanges `asleep`, which is a full fence, and wakes; the
reader exchanges `asleep`, and looks at `written` and `lost` once more before it sleeps.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.clock import nap
from nanokv.device.native.futex import clear_flag, set_flag, sleep_while_set, wake_all
from nanokv.device.protocol.header import check_word, epoch_of
from nanokv.device.segment.layout import (
    EVICTED,
    H_BYTES,
    H_KEY_CHECK,
    H_KEY_HASH,
    H_PAYLOAD,
    H_STATE,
    HEADER_BYTES,
    STORED,
    WORD_BYTES,
)
from nanokv.device.segment.location import (
    EVICTED_NODE,
    GONE_NODE,
    L_CHECK,
    L_CHECKED,
    L_EPOCH,
    L_HASH,
    L_NBYTES,
    L_NODE,
    L_PAYLOAD,
    L_RANK,
    L_SLOT,
    LOCATION_BYTES,
    O_ASLEEP,
    O_FUTEX,
    O_KNOWN,
    O_LOST,
    O_OVER,
    O_RANK,
    O_ROOM,
    O_ROWS,
    O_TAKEN,
    O_WRITTEN,
    STORED_NODE,
)

SLEEPLESS = tl.constexpr(1_000_000)  #: ns between two looks where nobody can sleep on a word


# --- the writer -------------------------------------------------------------------------------
@triton.jit
def write_event(row: tl.int64, rank: tl.int64, kind: tl.int64, slot: tl.int64, header: tl.int64) -> None:
    """Write the LOCATION of an object that came, or went, by its copied header. kind: STORED, REMOVED or EVICTED."""
    epoch = epoch_of(load64(header + H_STATE, "relaxed"))
    gone = select(kind == EVICTED, word(EVICTED_NODE), word(GONE_NODE))
    store64(row + L_HASH, load64(header + H_KEY_HASH, "relaxed"), "relaxed")
    store64(row + L_CHECK, check_word(load64(header + H_KEY_CHECK, "relaxed"), epoch), "relaxed")
    store64(row + L_NODE, select(kind == STORED, word(STORED_NODE), gone), "relaxed")
    store64(row + L_RANK, rank, "relaxed")
    store64(row + L_SLOT, slot, "relaxed")
    store64(row + L_EPOCH, epoch, "relaxed")
    store64(row + L_PAYLOAD, load64(header + H_PAYLOAD, "relaxed"), "relaxed")
    store64(row + L_NBYTES, load64(header + H_BYTES, "relaxed"), "relaxed")
    store64(row + L_CHECKED, word(0), "relaxed")


@triton.jit
def tell(outbox: tl.int64, kind: tl.int64, slot: tl.int64, header: tl.int64) -> None:
    """Write a row, or count that there is no room. `wake_reader` comes after the last one."""
    written, room = load64(outbox + O_WRITTEN, "relaxed"), load64(outbox + O_ROOM, "relaxed")
    if written - load64(outbox + O_TAKEN, "acquire") < room:
        row = load64(outbox + O_ROWS, "relaxed") + (written & (room - 1)) * LOCATION_BYTES
        write_event(row, load64(outbox + O_RANK, "relaxed"), kind, slot, header)
        store64(outbox + O_WRITTEN, written + 1, "release")
    else:
        store64(outbox + O_LOST, load64(outbox + O_LOST, "relaxed") + 1, "relaxed")


@triton.jit
def wake_reader(outbox: tl.int64) -> None:
    """Wake the reader if it sleeps."""
    asleep, number = clear_flag(outbox + O_ASLEEP), load64(outbox + O_FUTEX, "relaxed")
    if (asleep != 0) & (number != 0):
        wake_all(number, outbox + O_ASLEEP)


@triton.jit
def tell_each(outbox: tl.int64, kind: tl.int64, slots: tl.int64, headers: tl.int64, count: tl.int64) -> None:
    """`tell` of `count` objects: words at `slots`, and copied headers; and wake the reader."""
    i = word(0)
    while i < count:
        tell(outbox, kind, load64(slots + i * WORD_BYTES, "relaxed"), headers + i * HEADER_BYTES)
        i += 1
    wake_reader(outbox)


# --- the reader -------------------------------------------------------------------------------
@triton.jit
def has_nothing(outbox: tl.int64) -> Any:
    """Whether the reader has nothing to do."""
    none = load64(outbox + O_WRITTEN, "acquire") == load64(outbox + O_TAKEN, "relaxed")
    same = load64(outbox + O_LOST, "relaxed") == load64(outbox + O_KNOWN, "relaxed")
    return none & same & (load64(outbox + O_OVER, "relaxed") == 0)


@triton.jit
def await_told(outbox: tl.int64, ns: tl.int64) -> None:
    """Sleep until there is something to do, for `ns` at most, which is less than a second."""
    if has_nothing(outbox):
        set_flag(outbox + O_ASLEEP)
        if has_nothing(outbox):
            number = load64(outbox + O_FUTEX, "relaxed")
            if number != 0:
                sleep_while_set(number, outbox + O_ASLEEP, ns)
            else:
                nap(select(ns < SLEEPLESS, ns, word(SLEEPLESS)))
        clear_flag(outbox + O_ASLEEP)


@triton.jit
def take_told(outbox: tl.int64, to: tl.int64, most: tl.int64, rest: tl.int64, wait: tl.int64) -> Any:
    """Take rows, `most` at most, to an address.

    Args:
        rest: ns before the look. wait: ns to wait for a first row, at most; less than a second.

    Returns:
        How many, and how many were lost since the last call.
    """
    if rest > 0:
        nap(rest)
    await_told(outbox, wait)
    taken, room = load64(outbox + O_TAKEN, "relaxed"), load64(outbox + O_ROOM, "relaxed")
    count = load64(outbox + O_WRITTEN, "acquire") - taken
    count = select(count < most, count, most)
    rows = load64(outbox + O_ROWS, "relaxed")
    i = word(0)
    while i < count:
        row = rows + ((taken + i) & (room - 1)) * LOCATION_BYTES
        at = word(0)
        while at < LOCATION_BYTES:
            store64(to + i * LOCATION_BYTES + at, load64(row + at, "relaxed"), "relaxed")
            at += WORD_BYTES
        i += 1
    store64(outbox + O_TAKEN, taken + count, "release")
    lost = load64(outbox + O_LOST, "relaxed")
    more = lost - load64(outbox + O_KNOWN, "relaxed")
    store64(outbox + O_KNOWN, lost, "relaxed")
    return count, more

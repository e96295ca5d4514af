"""Pins: a reader that uses the bytes of an object in place holds the object there.

A pin is one more in the pins field of the STATE word, and one line in the segment's pin ledger that names the reader,
so that the pins of dead readers can be found.

The reader writes INTENT, adds the pin by CAS while the object is READY, and writes HELD; unpinning goes back the same
way. A reader that dies between two of these steps leaves an INTENT, and nobody knows whether its pin was counted. The
owner's host then counts anew (`recount`): it sets WATCHED in the STATE word, which each change of the pins clears,
counts the HELD lines, and writes their number by CAS if WATCHED still stands. Then the pins did not change meanwhile,
however often they might have come back to the same number.

Source: a reader table as LMDB's, one line per reader; WATCHED is a load-linked, store-conditional pair by hand.

Guarantees
- A pinned object is never removed, evicted or reclaimed (I8).
- A ledger line that is HELD stands for exactly one pin. The owner takes the pins of a dead reader away (I6).

Why the orderings suffice: the CAS of the STATE word orders everything. Pinning acquires the payload, unpinning releases
the reads, and both keep the steps in the ledger on their sides. A pin that `recount` finds counted was added after its
line was written, and the CAS that sets WATCHED acquires that: so the host sees the line, HELD or INTENT.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, select, store64, word
from nanokv.device.protocol.freelist import SPIN_LIMIT
from nanokv.device.protocol.header import epoch_of, phase_of
from nanokv.device.protocol.status import MISS, NO_PIN, OK
from nanokv.device.segment.layout import (
    H_STATE,
    ONE_PIN,
    PIN_BITS,
    PIN_COUNT,
    PIN_HEADER_MASK,
    PIN_HEADER_SHIFT,
    PIN_HELD,
    PIN_INTENT,
    PIN_PHASE_MASK,
    PIN_PRODUCER_SHIFT,
    READY,
    WATCHED,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, header_at, segment

SPREAD = tl.constexpr(0x9E3779B1)  # Knuth's multiplicative hash: neighbouring slots begin their search far apart


@triton.jit
def ledger_at(world: World, seg: tl.int64, line: tl.int64) -> Any:
    """The address of a line of the pin ledger."""
    return seg + world.pin_base + line * WORD_BYTES


@triton.jit
def ledger_word(world: World, phase: tl.int64, slot: tl.int64) -> Any:
    """(phase, slot, this rank and incarnation)."""
    return word(phase) | (slot << PIN_HEADER_SHIFT) | (world.producer << PIN_PRODUCER_SHIFT)


@triton.jit
def note(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """Write an INTENT into a free line of the ledger: the line, or -1 if the ledger is full."""
    count = world.pin_slots
    start = (slot + world.producer) * SPREAD
    line = word(-1)
    i = word(0)
    while (line < 0) & (i < count):
        at = (start + i) & (count - 1)
        if load64(ledger_at(world, seg, at), "relaxed") == 0:  # relaxed, as the CAS: `add_pin` releases the line
            if cas64(ledger_at(world, seg, at), 0, ledger_word(world, PIN_INTENT, slot), "relaxed") == 0:
                line = at
        i += 1
    return line


@triton.jit
def add_pin(header: tl.int64, epoch: tl.int64, change: tl.int64) -> Any:
    """Change the pins of a READY object by one. False if it is not READY in this epoch, or has no pin to take away."""
    old = load64(header + H_STATE, "relaxed")
    tries = word(0)
    done = old != old
    fits = old == old
    while fits & (not done):
        fits = (phase_of(old) == READY) & (epoch_of(old) == epoch) & (tries < SPIN_LIMIT)
        have = old & PIN_COUNT
        fits = fits & ((change > 0) | (have != 0)) & ((change < 0) | (have != PIN_COUNT))
        if fits:
            # release: the line in the ledger (scenario recount); acquire: the payload is read after it (kept)
            got = cas64(header + H_STATE, old, (old & ~WATCHED) + change, "acq_rel")
            done = got == old
            old = got
        tries += 1
    return done


@triton.jit
def pin(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Hold a READY object in place. Returns (status, line): OK, MISS (it went away) or NO_PIN."""
    seg = segment(world, owner)
    line = note(world, seg, slot)
    status = select(line < 0, word(NO_PIN), word(OK))
    if line >= 0:
        if add_pin(header_at(world, seg, slot), epoch, ONE_PIN):
            store64(ledger_at(world, seg, line), ledger_word(world, PIN_HELD, slot), "relaxed")
        else:
            store64(ledger_at(world, seg, line), word(0), "relaxed")
            status = word(MISS)
    return status, line


@triton.jit
def unpin(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, line: tl.int64) -> Any:
    """Give a pin back: OK, or MISS if this line of the ledger does not hold it."""
    seg = segment(world, owner)
    status = word(MISS)
    held = ledger_word(world, PIN_HELD, slot)
    if cas64(ledger_at(world, seg, line), held, ledger_word(world, PIN_INTENT, slot), "relaxed") == held:
        add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)
        store64(ledger_at(world, seg, line), word(0), "relaxed")
        status = word(OK)
    return status


@triton.jit
def count_lines(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """How many lines of the ledger name a header slot: (HELD, INTENT)."""
    held = word(0)
    moving = word(0)
    line = word(0)
    while line < world.pin_slots:
        said = load64(ledger_at(world, seg, line), "relaxed")
        if ((said >> PIN_HEADER_SHIFT) & PIN_HEADER_MASK) == slot:
            held += select((said & PIN_PHASE_MASK) == PIN_HELD, word(1), word(0))
            moving += select((said & PIN_PHASE_MASK) == PIN_INTENT, word(1), word(0))
        line += 1
    return held, moving


@triton.jit
def recount(world: World, owner: tl.int64, slot: tl.int64, dead: tl.int64) -> Any:
    """Lower the pins of an object to its HELD lines, so that `dead` INTENT lines of dead readers can be cleared.

    Returns 1, or 0 if living readers were just pinning or unpinning: try again later.
    """
    seg = segment(world, owner)
    header = header_at(world, seg, slot)
    seen = add64(header + H_STATE, 0, "relaxed")  # relaxed: a guess, which the CAS compares
    done = (phase_of(seen) != READY) | ((seen & PIN_COUNT) == 0)
    if not done:
        watched = seen | WATCHED
        # acquire: the lines of all pins that it counts (scenario recount)
        if cas64(header + H_STATE, seen, watched, "acquire") == seen:
            held, moving = count_lines(world, seg, slot)
            pins = select(held * ONE_PIN < (seen & PIN_COUNT), held * ONE_PIN, seen & PIN_COUNT)
            target = select(moving == dead, pins, seen & PIN_COUNT) | (seen & ~PIN_BITS)
            # release: the lines were counted before (kept)
            done = (cas64(header + H_STATE, watched, target, "release") == watched) & (moving == dead)
    return select(done, word(1), word(0))


@triton.jit
def drop_pin(world: World, owner: tl.int64, line: tl.int64, said: tl.int64, epoch: tl.int64) -> Any:
    """Take away the pin of a dead reader whose ledger line says HELD: 1, or 0 if the line has changed."""
    seg = segment(world, owner)
    mine = cas64(ledger_at(world, seg, line), said, (said & ~PIN_PHASE_MASK) | PIN_INTENT, "relaxed") == said
    if mine:
        slot = (said >> PIN_HEADER_SHIFT) & PIN_HEADER_MASK
        add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)
        store64(ledger_at(world, seg, line), word(0), "relaxed")
    return select(mine, word(1), word(0))


@triton.jit
def clear_intent(world: World, owner: tl.int64, line: tl.int64, said: tl.int64) -> None:
    """Free the ledger line of a reader that died with an INTENT; only after `recount` has settled its pin."""
    cas64(ledger_at(world, segment(world, owner), line), said, 0, "relaxed")

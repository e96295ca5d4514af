"""Checks of pins: the ledger against the pins in the STATE words."""

from collections.abc import Iterator

import numpy as np

from nanokv.device.segment.layout import PIN_HELD, PIN_INTENT, unpack
from nanokv.fsck.look import Look, Numbers, WorldLook, field
from nanokv.fsck.report import RECOVER, WAIT, Finding, find


def check_pins(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I8, I10: ledger lines are valid, and at rest the HELD lines of an object are exactly its pins."""
    phase, slot, producer = (field("PIN", name, look.pins) for name in ("phase", "header", "producer"))
    wild = (phase == 0) | (phase > PIN_HELD.value) | (slot >= look.geometry.hdr_count)
    wild |= unpack("PRODUCER", "rank", producer) >= look.geometry.producers
    wild &= look.pins != 0
    yield from find("I10", look.rank, "invalid lines of the pin ledger", "line", wild)
    if world.quiescent:
        held, intent = (np.flatnonzero(~wild & (phase == of.value)) for of in (PIN_HELD, PIN_INTENT))
        yield from _check_pin_counts(world, look, slot[held])
        yield from _check_pin_owners(world, look, held, intent, producer)


def _check_pin_counts(world: WorldLook, look: Look, slots: Numbers) -> Iterator[Finding]:
    lines = np.bincount(slots, minlength=look.geometry.hdr_count)
    pins = field("STATE", "pins", look.states)
    what = "objects have fewer pins than HELD ledger lines: they may be reused under a reader"
    yield from find("I8", look.rank, what, "slot", pins < lines)
    what = "objects have more pins than HELD ledger lines: nobody will unpin them"
    remedy = "they stay until the world is made anew; everything else goes on"
    yield from find("I8", look.rank, what, "slot", pins > lines, remedy, not world.somebody_ended)


def _check_pin_owners(
    world: WorldLook, look: Look, held: Numbers, intent: Numbers, producer: Numbers
) -> Iterator[Finding]:
    lines = np.concatenate([held, intent])
    ended = [bits for bits in np.unique(producer[lines]).tolist() if world.producer_ended(bits)]
    left = lines[np.isin(producer[lines], ended)]
    remedy = RECOVER if world.rank_ended(look.rank) else WAIT
    yield from find("I6", look.rank, f"{len(left)} pins of readers that have ended", "line", left, remedy, False)
    what = "lines of the pin ledger say INTENT at rest: their readers live, and will not come back to them"
    yield from find("I8", look.rank, what, "line", intent[~np.isin(producer[intent], ended)])

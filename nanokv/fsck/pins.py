"""Checks of pins: the ledger and the STATE words tell the same."""

from collections.abc import Iterator

import numpy as np

from nanokv.device.segment.layout import PIN_HELD, PIN_INTENT, unpack
from nanokv.fsck.look import Look, Numbers, World
from nanokv.fsck.report import RECOVER, REMAKE, WAIT, Finding, named


def check_pins(world: World) -> Iterator[Finding]:
    """I8, I10: ledger lines can be, and at rest the HELD lines of an object are exactly its pins."""
    for look in world.looks:
        phase, slot, producer = (
            unpack("PIN", name, look.pins).astype(np.int64) for name in ("phase", "header", "producer")
        )
        wild = (look.pins != 0) & ((phase == 0) | (phase > PIN_HELD.value) | (slot >= look.geometry.hdr_count))
        wild |= (look.pins != 0) & (unpack("PRODUCER", "rank", producer) >= look.geometry.world_size)
        if wild.any():
            what = "lines of the pin ledger that can be none"
            yield Finding("I10", look.rank, what, named("line", np.flatnonzero(wild)), REMAKE)
        if world.quiescent:
            held, intent = (np.flatnonzero(~wild & (phase == of)) for of in (PIN_HELD.value, PIN_INTENT.value))
            yield from _check_pin_counts(world, look, slot[held])
            yield from _check_pin_owners(world, look, held, intent, producer)


def _check_pin_counts(world: World, look: Look, slots: Numbers) -> Iterator[Finding]:
    said = np.bincount(slots, minlength=look.geometry.hdr_count)
    counted = unpack("STATE", "pins", look.states).astype(np.int64)
    fewer = np.flatnonzero(counted < said)
    if len(fewer):
        what = "objects have fewer pins than HELD ledger lines: they may be reused under a reader"
        yield Finding("I8", look.rank, what, named("slot", fewer), REMAKE)
    more = np.flatnonzero(counted > said)
    if len(more):
        what = "objects have more pins than HELD ledger lines: nobody will unpin them"
        remedy = "they stay until the world is made anew; everything else goes on"
        yield Finding("I8", look.rank, what, named("slot", more), remedy, not world.somebody_ended)


def _check_pin_owners(
    world: World,
    look: Look,
    held: Numbers,
    intent: Numbers,
    producer: Numbers,
) -> Iterator[Finding]:
    ended = {who: world.producer_ended(who) for who in np.unique(producer[np.concatenate([held, intent])]).tolist()}
    remedy = RECOVER if world.rank_ended(look.rank) else WAIT
    lines = [line for line in np.concatenate([held, intent]).tolist() if ended[int(producer[line])]]
    if lines:
        what = f"{len(lines)} pins of readers that have ended"
        yield Finding("I6", look.rank, what, named("line", lines), remedy, breach=False)
    stuck = [line for line in intent.tolist() if not ended[int(producer[line])]]
    if stuck:
        what = "lines of the pin ledger say INTENT at rest: their readers live, and will not come back to them"
        yield Finding("I8", look.rank, what, named("line", stuck), REMAKE)

"""Mutants of the ring, the index, grace periods, the sweeper and the audit."""

from typing import Any

import numpy as np

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import activity, evict, put, reclaim, ring
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import STATE_MASK, WRITING
from nanokv.host_poller import audit, grace, index, intake, orphans, quarantine, sweeper
from nanokv.host_poller.header_pass import Life
from nanokv.space import coalesce


def _no_wait(self: Any) -> bool:
    return True


def _hold_without_grace(self: Any, life: Life, header: Any) -> None:
    self._tickets[life] = 0


def _never_silent(self: Any, header: Any) -> bool:
    return False


def _nothing(self: Any, *args: Any) -> None:
    return None


def _written(headers: Any) -> Any:
    return np.flatnonzero(headers["state"] & STATE_MASK.value == WRITING.value)


def _deaths_of_ranks(machine: Any, heap: Any) -> int:
    ranks = machine.activity(heap.rank)["incarnation"].tolist()[: heap.world_size]
    return sum(inc - heap.alive(rank, inc) for rank, inc in enumerate(ranks) if inc)


# --- guests ---
mutant(
    "guests-unexpected",
    "the owner looks at what ranks have in flight, and not at what guests have",
    ("guest-late", "guest"),
    patches=((Geometry, "producers", property(lambda geometry: geometry.world_size)),),
)
mutant(
    "guests-unseen",
    "no audit looks for the nodes that dead guests had in their hands",
    ("guest",),
    patches=((sweeper, "deaths", _deaths_of_ranks),),
)

# --- splits ---
mutant(
    "splits-remembered",
    "the sweeper does not forget the split of a producer that died in it",
    ("split-dies",),
    patches=((sweeper.Sweeper, "_forget_splits", _nothing),),
)

# --- hints ---
mutant(
    "hint-stays",
    "a hint is read and not taken: it is taken again",
    ("ring",),
    (ring.drain, 'xchg64(at, 0, "acquire")', 'load64(at, "acquire")'),
)
mutant(
    "hint-by-store",
    "a hint is stored over another one, and may be older than its subject",
    ("ring",),
    (
        ring.announce,
        'got = cas64(ring_slot(world, seg, ticket), 0, said, "release")',
        'got = xchg64(ring_slot(world, seg, ticket), said, "relaxed")',
    ),
)
mutant(
    "snapshot-unvalidated",
    "the index takes in a header that changed while it was copied",
    ("swept", "polled"),
    (reclaim.snapshot, "select(still_ready(header, epoch), word(1), word(0))", "word(1)"),
)
mutant(
    "slot-published-in-two",
    "a ring slot is published before all of its content is there",
    ("ring", "ring-count"),
    (
        ring.announce,
        'got = cas64(ring_slot(world, seg, ticket), 0, said, "release")\n',
        "got = cas64(ring_slot(world, seg, ticket), 0, word(kind) | (slot << RING_HEADER_SHIFT), "
        '"release")\n'
        "    if got == 0:\n"
        '        store64(ring_slot(world, seg, ticket), said, "release")\n',
    ),
)
mutant(
    "hint-uncounted",
    "a hint is stored over another one, which is not counted as missed",
    ("ring-count",),
    (
        ring.announce,
        'got = cas64(ring_slot(world, seg, ticket), 0, said, "release")',
        'store64(ring_slot(world, seg, ticket), said, "release")\n    got = word(0)',
    ),
)
mutant(
    "index-stored-ignores-epochs",
    "the index tells listeners of an object that it knows",
    ("events",),
    (
        index.HeaderIndex.stored,
        "new = self._lives[slots] != lives",
        "new = lives == lives",
    ),
)
mutant(
    "index-removed-ignores-epochs",
    "an old hint of a removal takes a newer object out of the index",
    ("events",),
    (index.HeaderIndex.removed, "self._lives[slots] == life_words(epochs)", "self._lives[slots] != NO_ROW"),
)
mutant(
    "poller-trusts-hints",
    "the poller takes headers in as they are, because a hint named them",
    ("events", "polled"),
    (
        intake.Intake._ingest,
        "good = known & drained.good\n    self.tell(self._index.stored(slots[good], drained.records[good]))",
        "every = self._machine.headers(self._rank, 0, self._machine.geometry.hdr_count)\n"
        "    good = known & (kinds == STORED.value)\n"
        "    self.tell(self._index.stored(slots[good], every[slots[good]]))",
    ),
)
mutant(
    "sweeper-trusts-torn-headers",
    "the sweeper takes headers in that changed while they were copied",
    ("swept", "events"),
    (sweeper.Sweeper._whole, "return slots[good], records[good]", "return slots, records"),
)

# --- grace ---
mutant(
    "uncounted",
    "operations do not count themselves: nothing waits for them",
    ("late", "abort", "polled"),
    (activity.enter, 'add64(activity_at(seg, world.rank, phase), 1, "acquire")', "word(0)"),
    (activity.leave, 'add64(activity_at(seg, world.rank, phase), -1, "release")', "word(0)"),
)
mutant(
    "no-grace",
    "a grace period ends at once",
    ("late", "abort", "polled", "swept"),
    patches=((grace.Grace, "_drained", _no_wait),),
)
mutant(
    "no-quarantine",
    "an object that was given up is freed at the next sweep",
    ("late", "acknowledge", "abort"),
    patches=((quarantine.Quarantine, "_hold", _hold_without_grace),),
)
mutant(
    "no-word",
    "the pages of a plan do not wait for its producer's word",
    ("acknowledge", "late-plan"),
    patches=((quarantine.Quarantine, "_is_silent", _never_silent),),
)
mutant(
    "one-look",
    "the audit takes one look: a node on its way from place to place is given away",
    ("swept", "polled", "late", "put-dies"),
    patches=((audit, "LOOKS", 1),),
)
mutant(
    "no-audit",
    "no audit looks for the nodes that the dead had in their hands",
    ("swept", "polled"),
    patches=((sweeper.Sweeper, "_audit_after_deaths", _nothing),),
)
mutant(
    "pins-of-the-dead",
    "pins of dead readers stay",
    ("swept-pins", "pin-dies"),
    patches=((sweeper, "drop_dead_pins", lambda machine, owner, alive: 0),),
)
mutant(
    "orphans-left",
    "what the dead were writing in segments that nobody sweeps stays",
    ("orphans",),
    patches=((orphans.Orphans, "give_up", lambda self: 0),),
)
mutant(
    "orphans-half",
    "only what had pages by then is given up there",
    ("orphans",),
    patches=((orphans, "_unfinished", _written),),
)
mutant(
    "leave-before-copy",
    "a producer counts itself out before its bytes are stored",
    ("remove", "late"),
    (
        put.put,
        "        copy_bytes(seg + begun.payload, src, nbytes)\n",
        "        leave(world, seg, begun.phase)\n        copy_bytes(seg + begun.payload, src, nbytes)\n",
    ),
    (put.finish_in, "    leave(world, seg, begun.phase)\n", ""),
)
mutant(
    "leave-missing",
    "a put that fails is counted as at work for ever",
    ("remove-late", "full"),
    (put.begin, "        leave(world, seg, phase)\n", "        word(0)\n"),
)
mutant(
    "leave-wrong-phase",
    "an operation counts itself out of a phase that it did not count itself into",
    ("grace", "polled"),
    (activity.leave, "world.rank, phase)", "world.rank, 0)"),
)
mutant(
    "grace-one-flip",
    "a grace period does not wait for operations that began late in the phase before",
    ("grace-twice",),
    (grace.Grace.poll, "if self._drained() and not self._flipped:", "if not self._flipped:"),
)
mutant(
    "grace-no-flip",
    "a grace period does not change the phase: it waits for one of two words",
    ("grace",),
    (
        grace.Grace.poll,
        'self._machine.set_control(self._rank, "grace_phase", 1 - self._phase())',
        "pass",
    ),
)
mutant(
    "grace-second-drain-empty",
    "a grace period waits for no operation after it has changed the phase",
    ("grace", "polled"),
    (
        grace.Grace.poll,
        "        self._flipped = True\n        self._expect_all()\n",
        "        self._flipped = True\n",
    ),
)
mutant(
    "grace-ticket-too-early",
    "a request during a grace period gets the ticket of that one",
    ("grace",),
    (grace.Grace.request, "(2 if self._running else 1)", "1"),
)
mutant(
    "release-without-recheck",
    "the sweeper releases slots from quarantine without looking at the header again",
    ("polled", "release"),
    (
        quarantine.Quarantine.release,
        'int(header["epoch"]) == life.epoch and (ours or int(header["n_pages"]) > 0)',
        "True",
    ),
)

# --- audits ---
mutant(
    "audit-three-looks",
    "three looks: a node that passes by three times is given away",
    ("audited",),
    (audit.Audit.step, "self._looks < LOOKS", "self._looks < LOOKS - 1"),
)
mutant(
    "evict-unstamped",
    "a page that an eviction hands from object to object does not say that it changed hands",
    ("audited-evict",),
    (
        evict.evict_for,
        "                        stamp(page_links(world, seg), page, class_pages(world, size_class))\n",
        "",
    ),
)
mutant(
    "audit-no-grace-between",
    "the looks come one after the other, without a grace period between",
    ("audited", "heir"),
    (audit.Audit.step, "self._ticket = self._grace.request()\n        return", "return"),
)
mutant(
    "audit-ignores-stamps",
    "pages that were pushed while the audit looked are given back",
    ("audited", "leaked"),
    (
        audit.Audit._give_back,
        "    pages = pages[self._machine.page_stamps(self._rank)[pages] == self._stamps[pages]]\n",
        "",
    ),
)
mutant(
    "audit-ignores-epochs",
    "slots that were taken while the audit looked are given back",
    ("audited", "leaked"),
    (audit.Audit._give_back, '    slots = slots[headers["epoch"][slots] == self._epochs[slots]]\n', ""),
)
mutant(
    "audit-ignores-quarantine",
    "the audit gives back slots that wait for the word of their producer",
    ("quarantined",),
    (audit.Audit._look, "    loose[[slot for slot in held if slot < len(headers)]] = False\n", ""),
)
mutant(
    "one-audit",
    "a death is followed by one audit: an operation that disturbs it hides a leak for ever",
    ("leaked",),
    (audit.Audit.start, "AUDITS", "1"),
)
mutant(
    "join-uncounted",
    "a host that joins free extents is not counted as at work",
    ("audited-join",),
    (coalesce.join_free_extents, "phase = machine.enter(owner)", "phase = 0"),
    (coalesce.join_free_extents, "        machine.leave(owner, phase)\n", ""),
)
mutant(
    "leave-with-pages-in-use",
    "a rank that leaves gives memory back while an operation has some of it",
    ("leave",),
    (coalesce.join_free_extents, "if_all is not None and len(pages) == geometry.n_pages", "if_all is not None"),
)
mutant(
    "leave-and-give-back",
    "a rank that leaves has taken all pages, and gives them to the next producer",
    ("leave",),
    (coalesce.join_free_extents, "            if_all()\n            return 0\n", "            if_all()\n"),
)

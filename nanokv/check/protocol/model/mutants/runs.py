"""Mutants of runs: objects that one CTA puts one after another."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import freelist, ring, runs

# --- what a run has in its hands ---
mutant(
    "run-head-to-second",
    "a run of nodes leaves all but the first in the list",
    ("list-run", "run"),
    (
        freelist.pop_nodes,
        "                after = load64(links + (after - 1) * WORD_BYTES",
        "                load64(links + (after - 1) * WORD_BYTES",
    ),
)
mutant(
    "run-believes-an-empty-hand",
    "a run that found its list empty takes what it has not got for the first page of an extent",
    ("run-full",),
    (runs.next_page, "    if left > 0:\n", "    if left >= 0:\n"),
)
mutant(
    "run-keeps-pages",
    "a run takes an extent more than it has claimed keys",
    ("run", "run-dies"),
    (runs.next_page, "            wanted,\n", "            wanted + 1,\n"),
)
mutant(
    "run-takes-slots-for-all",
    "a run takes a slot more than it has keys",
    ("run", "run-dies"),
    (runs.next_slot, "world.hdr_count, wanted, ", "world.hdr_count, wanted + 1, "),
)
mutant(
    "run-forgets-its-hand",
    "a run takes a chain of extents for each member",
    ("run",),
    (runs.next_page, "left = select(sound, left - 1, word(0))", "left = word(0)"),
)
mutant(
    "run-takes-one-slot-twice",
    "two members of a run get the same slot",
    ("run",),
    (
        runs.next_slot,
        'hand = (load64(header_links(world, seg) + hand * WORD_BYTES, "relaxed") & LOW32) - 1',
        "hand = hand + 0",
    ),
)

# --- members that are refused ---
mutant(
    "run-refuses-the-rest",
    "a member that finds no slot is refused, though the members before it are about to be READY and may be evicted",
    ("run-evicts-slots",),
    (
        runs.claim_keys,
        "        more = slot >= 0\n        if more:\n",
        "        if slot < 0:\n"
        "            store64(tickets + i * TICKET_BYTES + T_ANSWER, word(NO_HEADER) << RING_HEADER_SHIFT,"
        ' "relaxed")\n'
        "            i += 1\n"
        "            more = i < count\n"
        "        else:\n",
    ),
)
mutant(
    "run-refused-keeps-the-key",
    "a member that is answered FULL leaves its entry behind",
    ("run-full",),
    (
        runs.drop_member,
        "            erase(world, owner, slot, epoch, key_in(request))\n",
        "            word(0)\n",
    ),
)
mutant(
    "run-refused-keeps-the-slot",
    "a member whose key is taken keeps its slot",
    ("run-same-key",),
    (runs.drop_member, "if not undo(world, seg, slot, epoch):", "if status == LOST:"),
)
mutant(
    "run-refused-goes-on",
    "a member whose key is taken goes on as if it had claimed it",
    ("run-same-key",),
    (runs.drop_member, 'store64(ticket + T_ANSWER, status << RING_HEADER_SHIFT, "relaxed")', "word(0)"),
)

# --- the count, and the hints ---
mutant(
    "run-leaves-early",
    "a run counts itself out before its bytes are stored",
    ("run-late",),
    (
        runs.begin_run,
        "            status = word(OK)\n",
        "            status = word(OK)\n            leave(world, seg, phase)\n",
    ),
    (runs.finish_run, "    leave(world, seg, phase)\n", ""),
)
mutant(
    "run-leaves-twice",
    "a run counts each of its members out",
    ("run", "run-polled"),
    (runs.finish_run, "    leave(world, seg, phase)\n", "    leave(world, seg, phase)\n    leave(world, seg, phase)\n"),
)
mutant(
    "run-of-one-ticket",
    "a run takes one ticket for all of its hints",
    ("ring-run",),
    (ring.announce_run, 'add64(seg + ANN_HEAD, given, "relaxed")', 'add64(seg + ANN_HEAD, 1, "relaxed")'),
)
mutant(
    "run-announces-refusals",
    "a run announces members that have no hint",
    ("ring-run",),
    (ring.announce_run, "if (said & RING_KIND_MASK) != 0:", "if said != 0:"),
)
mutant(
    "run-hints-by-store",
    "a run stores its hints over others",
    ("ring-run",),
    (
        ring.announce_run,
        'got = cas64(ring_slot(world, seg, ticket), 0, said, "release")',
        'store64(ring_slot(world, seg, ticket), said, "release")\n            got = word(0)',
    ),
)
mutant(
    "run-hints-uncounted",
    "a run does not count the hints that found no room",
    ("ring-run",),
    (ring.announce_run, "if missed > 0:", "if missed < 0:"),
)

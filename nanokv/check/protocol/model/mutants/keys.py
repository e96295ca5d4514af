"""Mutants of the directory, of pins and of eviction under readers."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import claim, directory, evict, get, pins, remove, search
from nanokv.device.segment.layout import H_STATE
from nanokv.host_poller import dead_pins

# --- keys ---
mutant(
    "no-turnstile",
    "two producers of one key can both look past each other",
    ("same-key-busy", "claim"),
    (claim.claim_at, '        add64(turn_at(world, seg, key.hash), 1, "acq_rel")\n', ""),
)
mutant(
    "turnstile-by-load",
    "the turnstile is passed by a load",
    ("same-key-busy",),
    (
        claim.claim_at,
        'add64(turn_at(world, seg, key.hash), 1, "acq_rel")',
        'load64(turn_at(world, seg, key.hash), "acquire")',
    ),
)
mutant(
    "one-phase",
    "an entry is FINAL at once",
    ("same-key-busy", "claim", "same-key-3"),
    (claim.claim_at, "entry_word(ENTRY_TENTATIVE, ", "entry_word(ENTRY_FINAL, "),
)
mutant(
    "never-look",
    "a producer does not look whether another one claims its key",
    ("same-key-busy", "claim"),
    (claim.settle, "again = has_tag(seen, key.check)\n    tries", "again = i != i\n    tries"),
)
mutant(
    "remove-final",
    "a producer removes a FINAL entry of its key",
    ("same-key-busy", "claim", "same-key-3"),
    (claim.settle, "live & (not final) & (mine < i)", "live & (mine < i)"),
)
mutant(
    "all-withdraw",
    "two that meet both withdraw: neither stores the object",
    ("same-key-busy", "claim"),
    (claim.settle, "live & (not final) & (mine < i)", "live & (mine != mine)"),
)
mutant(
    "lost-claim",
    "a producer does not notice that its entry was removed",
    ("same-key-busy", "claim"),
    (
        claim.claim_at,
        "!= tentative:\n            status = word(DUPLICATE)",
        "!= tentative:\n            status = status + 0",
    ),
)
mutant(
    "erase-final-alone",
    "an entry that its dead producer left TENTATIVE stays for ever",
    ("swept", "late", "abort", "put-dies"),
    (claim.erase, '            cas64(entry_at, seen, 0, "relaxed")\n', "            word(0)\n"),
)
mutant(
    "any-key",
    "a reader does not compare the key in the header",
    ("twins",),
    (directory.judge, " & is_key(header, key, epoch)", ""),
)
mutant(
    "lookup-any-epoch",
    "a reader compares the key in one epoch, and takes the object's place from another one",
    ("slot-reused",),
    (get.lookup, "epoch = epoch_of(state)", f'epoch = epoch_of(load64(header + {H_STATE.value}, "acquire"))'),
)
mutant(
    "remove-any-epoch",
    "a removal compares the key in one epoch, and removes the object of another one",
    ("remove-late",),
    (
        remove.remove_whole,
        "epoch_of(state)",
        f'epoch_of(load64(header_at(world, segment(world, owner), entry_header(entry)) + {H_STATE.value}, "acquire"))',
    ),
)
mutant(
    "final-by-store",
    "a producer makes its entry FINAL by a store, also if another one has removed it",
    ("claim", "same-key-busy"),
    (
        claim.claim_at,
        '        if cas64(entry_at, tentative, target, "relaxed") != tentative:\n',
        '        store64(entry_at, target, "release")\n        if target != target:\n',
    ),
)
mutant(
    "withdraw-leaves-entry",
    "a producer that withdraws leaves its TENTATIVE entry",
    ("same-key", "claim"),
    (claim.claim_at, "epoch), word(0))", "epoch), tentative)"),
)
mutant(
    "place-by-store",
    "an entry is stored over another one that came first",
    ("claim", "same-key-busy"),
    (
        claim.place,
        '        if cas64(candidate_at(world, seg, key.hash, here), 0, entry, "relaxed") == 0:\n',
        '        store64(candidate_at(world, seg, key.hash, here), entry, "release")\n        if i == i:\n',
    ),
)

# --- readers ---
mutant(
    "pin-any-state",
    "a pin does not look whether the object is still there",
    ("pin", "pin-evict"),
    (pins.add_pin, "(phase_of(old) == READY) & ", ""),
)
mutant(
    "pin-any-epoch",
    "a pin holds the slot's next object",
    ("pin-evict", "swept-pins", "pin-dies"),
    (pins.add_pin, "(epoch_of(old) == epoch) & ", ""),
)
mutant(
    "unpin-forgets",
    "unpinning does not take the pin away",
    ("pin", "pin-evict"),
    (pins.unpin, "add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)", "word(0)"),
)
mutant(
    "line-before-pin",
    "unpinning clears the ledger before it takes the pin away",
    ("recount", "swept-pins"),
    (
        pins.unpin,
        "        add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)\n",
        '        store64(ledger_at(world, seg, line), word(0), "relaxed")\n'
        "        add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)\n",
    ),
)
mutant(
    "recount-moving",
    "pins are counted anew while a living reader is just pinning",
    ("recount",),
    (pins.recount, "select(moving == dead, pins, seen & PIN_COUNT)", "pins"),
)
mutant(
    "recount-unwatched",
    "pins are counted anew without noticing that they changed meanwhile",
    ("recount",),
    (pins.recount, "watched = seen | WATCHED", "watched = seen + 0"),
)
mutant(
    "evict-pinned",
    "a producer takes the page of an object that is read in place",
    ("pin-evict",),
    (
        evict.evict_for,
        "if seen == state_word(READY, epoch):",
        "if (seen & 3) == READY:",
    ),
    (search.search, " & ((state & PIN_BITS) == 0)", ""),
)
mutant(
    "held-before-pin",
    "the line of the ledger is HELD before the pin is there",
    ("recount", "pin-dies"),
    (pins.note, "PIN_INTENT", "PIN_HELD"),
)
mutant(
    "unpin-before-intent",
    "the pin is taken away before its line is an INTENT again",
    ("recount", "pin-dies"),
    (
        pins.unpin,
        "    if cas64(ledger_at(world, seg, line), held, ledger_word(world, PIN_INTENT, slot), "
        '"relaxed") == held:\n'
        "        add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)\n",
        "    add_pin(header_at(world, seg, slot), epoch, word(0) - ONE_PIN)\n"
        "    if cas64(ledger_at(world, seg, line), held, ledger_word(world, PIN_INTENT, slot), "
        '"relaxed") == held:\n',
    ),
)
mutant(
    "watched-stays",
    "a pin that comes while pins are counted anew does not show",
    ("recount",),
    (pins.add_pin, "(old & ~WATCHED) + change", "old + change"),
)
mutant(
    "sweeper-drops-living-pins",
    "the sweeper takes away the pins of readers that live",
    ("swept-pins",),
    (dead_pins.drop_dead_pins, " or alive(*reader)", ""),
)
mutant(
    "clear-without-recount",
    "the lines of dead readers are cleared, and their pins stay",
    ("pin-dies", "swept-pins"),
    (dead_pins.drop_dead_pins, "if machine.recount(owner, slot, len(lines)):", "if True:"),
)

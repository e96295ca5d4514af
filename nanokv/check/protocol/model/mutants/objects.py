"""Mutants of headers, and of operations on whole objects."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import evict, get, header, put, reclaim, remove, retire
from nanokv.host_poller import quarantine, sweeper

mutant(
    "no-new-epoch",
    "a slot is taken again in the same epoch",
    ("replace", "slots"),
    (header.next_epoch, "+ 1) & EPOCH_MASK", "+ 0) & EPOCH_MASK"),
)
mutant(
    "commit-by-exchange",
    "a commit raises an object from the dead that was given up",
    ("commit", "late"),
    (
        header.commit_state,
        "cas64(header + H_STATE, state_word(WRITING, epoch), state_word(READY, epoch), ",
        "xchg64(header + H_STATE, state_word(READY, epoch), ",
    ),
)
mutant(
    "give-up-by-exchange",
    "the sweeper takes an object away that was committed meanwhile",
    ("commit", "publish"),
    (
        header.kill,
        "cas64(header + H_STATE, state_word(state, epoch), state_word(DEAD, epoch), ",
        "xchg64(header + H_STATE, state_word(DEAD, epoch), ",
    ),
)
mutant(
    "validate-by-load",
    "the validation is a plain acquire load",
    ("reuse", "replace"),
    (header.still_ready, 'add64(header + H_STATE, 0, "release")', 'load64(header + H_STATE, "acquire")'),
)
mutant(
    "never-validate",
    "a reader believes the bytes that it copied",
    ("reuse", "replace"),
    (header.still_ready, "(seen & ~PIN_BITS) == state_word(READY, epoch)", "seen == seen"),
)
mutant(
    "validate-any-epoch",
    "a reader accepts bytes of the slot's next object",
    ("replace", "reuse"),
    (
        header.still_ready,
        "(seen & ~PIN_BITS) == state_word(READY, epoch)",
        "(seen & STATE_MASK) == READY",
    ),
)
mutant(
    "keep-the-pages",
    "a removal leaves the pages in the header: they are freed once more",
    ("remove-dies", "replace", "host-evicts"),
    (retire.take_out, '        store64(header + H_PAGES, word(0), "relaxed")\n', ""),
)
mutant(
    "forget-the-pages",
    "a removal does not give the pages back",
    ("put-remove-get",),
    (retire.retire, "give(world, seg, page, size_class)", "word(page)"),
)
mutant(
    "slot-before-entry",
    "a removal frees the slot before it takes the entry out",
    ("polled", "remove-late", "same-key-busy", "put-remove-get", "replace"),
    (
        retire.retire,
        "    erase(world, owner, slot, epoch, key_of(header, epoch))\n"
        "    page, size_class = take_out(world, seg, slot)\n"
        "    if page >= 0:\n"
        "        give(world, seg, page, size_class)\n"
        "    give_slot(world, seg, slot)\n",
        "    page, size_class = take_out(world, seg, slot)\n"
        "    if page >= 0:\n"
        "        give(world, seg, page, size_class)\n"
        "    give_slot(world, seg, slot)\n"
        "    erase(world, owner, slot, epoch, key_of(header, epoch))\n",
    ),
)
mutant(
    "double-free-on-lost",
    "a producer whose object was given up frees it, and the sweeper frees it too",
    ("late", "late-plan"),
    (
        put.commit_in,
        "        acknowledge(header, epoch)\n",
        "        retire(world, seg, word(0), slot, epoch, STORED)\n",
    ),
)
mutant(
    "undo-whatever",
    "a put that fails frees its slot also if the sweeper has given it up",
    ("late", "abort", "full"),
    (put.undo, "    if mine:\n", "    if mine == mine:\n"),
)
mutant(
    "undo-nothing",
    "a put that fails keeps its slot",
    ("full", "same-key"),
    (put.undo, "        give_slot(world, seg, slot)\n", "        word(0)\n"),
)
mutant(
    "full-keeps-the-key",
    "a put that is answered FULL leaves its entry behind",
    ("full", "exhaust", "late"),
    (
        put.begin,
        "                    erase(world, owner, slot, epoch, key)\n",
        "                    word(0)\n",
    ),
)
mutant(
    "release-any-state",
    "the sweeper frees a slot without looking whether it moved on",
    ("release", "swept"),
    (reclaim.release, "    if same:\n", "    if same == same:\n"),
)
mutant(
    "give-up-any-producer",
    "the sweeper believes a look at the producer of another epoch",
    ("heir",),
    (sweeper.Sweeper._give_up_stuck, "bool(names_producer(header)) and ", ""),
)
mutant(
    "key-of-any-epoch",
    "a producer takes the key of a slot's last object for that of the object which is being put there",
    ("twins-put",),
    (header.check_word, "key_check ^ (epoch << EPOCH_SHIFT)", "key_check"),
)
mutant(
    "flags-of-any-epoch",
    "the sweeper does not look again at the flags of an object that it gave up",
    ("second-plan-early",),
    (quarantine.Quarantine.release, "if same and self._is_silent(header):", "if False:"),
)
mutant(
    "ready-before-last-store",
    "an object is READY before the last of its bytes is stored",
    ("put-get", "put-remove-get"),
    (
        put.put,
        "        copy_bytes(seg + begun.payload, src, nbytes)\n        status = finish(world, owner, begun)\n",
        "        status = finish(world, owner, begun)\n        copy_bytes(seg + begun.payload, src, nbytes)\n",
    ),
)
mutant(
    "publish-by-store",
    "WRITING is stored over whatever the sweeper made of the slot",
    ("publish", "late"),
    (
        header.publish,
        'return cas64(header + H_STATE, reserved, state_word(WRITING, epoch), "relaxed") == reserved',
        'store64(header + H_STATE, state_word(WRITING, epoch), "release")\n    return reserved == reserved',
    ),
)
mutant(
    "state-before-key",
    "a slot is RESERVED in its new epoch while it still names the last producer and key",
    ("polled", "heir"),
    (
        header.reserve,
        '    store64(header + H_KEY_HASH, key.hash, "relaxed")\n',
        '    store64(header + H_STATE, state_word(RESERVED, epoch), "relaxed")\n'
        '    store64(header + H_KEY_HASH, key.hash, "relaxed")\n',
    ),
)
mutant(
    "validate-epoch-alone",
    "a reader looks whether the epoch is the same, not whether the object is READY",
    ("pin", "reuse"),
    (header.still_ready, "(seen & ~PIN_BITS) == state_word(READY, epoch)", "epoch_of(seen) == epoch"),
)
mutant(
    "never-acknowledge",
    "a producer that came too late does not say that it has ended",
    ("late-plan", "acknowledge"),
    (header.acknowledge, "if seen == state_word(DEAD, epoch):", "if seen != seen:"),
)
mutant(
    "remover-that-lost-frees",
    "a removal that was too late frees the object too",
    ("remove", "pin-evict"),
    (remove.remove_slot, "if seen == state_word(READY, epoch):", "if epoch_of(seen) == epoch:"),
)
mutant(
    "evict-unchecked",
    "a producer takes the pages of an object that another one removed",
    ("pin-evict", "evict-dies"),
    (
        evict.evict_for,
        "if seen == state_word(READY, epoch):",
        "if seen != 0:",
    ),
)
mutant(
    "kill-pinned",
    "an object that is read in place becomes DEAD",
    ("pin", "pin-evict"),
    (
        header.kill,
        "return cas64(header + H_STATE, state_word(state, epoch), state_word(DEAD, epoch), ",
        'pinned = load64(header + H_STATE, "relaxed") & PIN_COUNT\n'
        "    return ~pinned & cas64("
        "header + H_STATE, state_word(state, epoch) | pinned, state_word(DEAD, epoch), ",
    ),
)
mutant(
    "abort-frees-when-lost",
    "an abort that came too late frees the object, and the sweeper frees it too",
    ("abort",),
    (
        put.abort,
        "if kill(header, WRITING, epoch) == state_word(WRITING, epoch):",
        "if kill(header, WRITING, epoch) != 0:",
    ),
)
mutant(
    "retire-keeps-the-entry",
    "a removal leaves its entry in the directory",
    ("remove", "put-remove-get"),
    (retire.retire, "    erase(world, owner, slot, epoch, key_of(header, epoch))\n", ""),
)
mutant(
    "entry-after-undo",
    "a put that is answered FULL gives its slot back before it takes its entry out",
    ("late", "full"),
    (
        put.begin,
        "                if status == FULL:\n"
        "                    # the entry goes first: the key must not lead to the next object of the slot\n"
        "                    erase(world, owner, slot, epoch, key)\n"
        "            if (status != OK) & (status != LOST):\n"
        "                if not undo(world, seg, slot, epoch):\n"
        "                    acknowledge(header_at(world, seg, slot), epoch)\n",
        "            if (status != OK) & (status != LOST):\n"
        "                if not undo(world, seg, slot, epoch):\n"
        "                    acknowledge(header_at(world, seg, slot), epoch)\n"
        "            if status == FULL:\n"
        "                erase(world, owner, slot, epoch, key)\n",
    ),
)
mutant(
    "flags-of-last-plan",
    "a slot keeps the flags of its last object: a plan seems to be acknowledged from the beginning",
    ("second-plan",),
    (
        header.reserve,
        "word(flags) | ",
        'word(flags) | (load64(header + H_FLAGS, "relaxed") & 0xFF) | ',
    ),
)
mutant(
    "gone-is-corrupt",
    "a look-up counts an object as corrupt that has merely gone meanwhile",
    ("pin", "copy-remove"),
    (
        get.lookup,
        '            if status == CORRUPT:\n                add64(seg + COUNT_CORRUPT, 1, "relaxed")\n',
        '            add64(seg + COUNT_CORRUPT, 1, "relaxed")\n',
    ),
)

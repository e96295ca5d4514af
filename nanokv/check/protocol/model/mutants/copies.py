"""Mutants of copies: replicators, removers of copied objects, producers and readers that meet them."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import claim, directory, put_copied, remove, replicate
from nanokv.device.segment.layout import ENTRY_FINAL

PASSAGE = '        add64(turn_at(world, home, key.hash), ONE_COPY_PASSED, "acq_rel")\n'

# --- the replicator ---
mutant(
    "copy-no-turnstile",
    "a replicator does not pass the turnstile",
    ("copy-remove", "copy-replace", "copy-evict"),
    (replicate.enter_copy, PASSAGE, ""),
)
mutant(
    "copy-never-looks",
    "a replicator does not look at the other entries",
    ("copy-copy", "copy-evict", "copy-replace"),
    (replicate.enter_copy, "        others = tagged & ~(word(1) << mine)\n", "        others = tagged & 0\n"),
)
mutant(
    "copy-beside-claim",
    "a replicator goes on while a producer claims the key",
    ("copy-claim",),
    (replicate.settle_copy, "if live & (not is_sure(seen, key.check)):", "if live & (not has_tag(seen, key.check)):"),
)
mutant(
    "copy-twice",
    "a replicator does not ask whether the target has the object",
    ("copy-copy",),
    (replicate.settle_copy, "entry_owner(seen) == target", "entry_owner(seen) != entry_owner(seen)"),
)
mutant(
    "copies-both-withdraw",
    "two replicators that meet both withdraw",
    ("copy-copy",),
    (replicate.settle_copy, " & (mine < i)\n", " & (mine != mine)\n"),
)
mutant(
    "copies-both-stay",
    "a replicator does not give up the other one's copy",
    ("copy-copy",),
    (replicate.settle_copy, "stays = stop_copy(world, seen, state)", "stays = mine < i"),
)
mutant(
    "copy-unvalidated",
    "a replicator does not look whether the object was there while it was copied",
    ("copy-reuse",),
    (replicate.end_replica, "status = validate(world, found.owner, found.slot, found.epoch)", "status = word(OK)"),
    (
        replicate.replicate,
        "verify(world, found, key, to)",
        "word(OK)",
    ),
)
mutant(
    "copy-final",
    "a replicator makes its entry FINAL",
    ("copy-remove", "copy-copy"),
    (replicate.enter_copy, "entry_word(ENTRY_REPLICA, ", f"entry_word({ENTRY_FINAL.value}, "),
)
mutant(
    "copy-leaves-entry",
    "the entry of a copy that goes away stays",
    ("copy-remove", "copies-remove", "copy-copy"),
    (claim.erase, "elif (seen == tentative) | (seen == replica):", "elif seen == tentative:"),
)
mutant(
    "copy-not-given-up",
    "a replicator that withdraws leaves its copy WRITING",
    ("copy-copy", "copy-remove"),
    (replicate.begin_copy, "                abort(world, target, slot, epoch)\n", "                word(0)\n"),
)
mutant(
    "copy-stays-counted",
    "a replicator that withdraws does not count itself out",
    ("copy-copy", "copy-remove"),
    (replicate.end_copy, "        leave(world, segment(world, target), begun.phase)\n", "        word(0)\n"),
)

# --- copies that are put with their object ---
mutant(
    "copies-first",
    "a put commits its copies before it commits the primary",
    ("put-copied", "put-copied-remove"),
    (
        put_copied.put_copied,
        "        status = finish(world, owner, begun)\n        end_copies_put(world, copies, count, status)\n",
        "        end_copies_put(world, copies, count, status)\n        status = finish(world, owner, begun)\n",
    ),
)

# --- the remover ---
mutant(
    "remove-one",
    "a removal ends the primary only",
    ("copies-pin", "copy-remove", "copies-remove-put"),
    (remove.remove_whole, "more = (status == OK) & (world.world_size > 1)", "more = status != status"),
)
mutant(
    "remove-no-turnstile",
    "a remover looks for copies without passing the turnstile",
    ("copy-remove", "copies-remove"),
    (remove.remove_whole, 'before = add64(turn, 1, "acquire")', "before = passed + 0"),
)
mutant(
    "remove-passes-by-load",
    "a remover passes the turnstile by a load",
    ("copies-remove-busy", "copy-remove-busy"),
    (remove.remove_whole, 'before = add64(turn, 1, "acquire")', 'before = load64(turn, "acquire")'),
)
mutant(
    "remove-no-second-look",
    "a remover does not look again after others have passed",
    ("copy-remove", "copies-remove"),
    (remove.remove_whole, "copies_passed(before) != copies_passed(passed)", "before != before"),
)
mutant(
    "remove-ready-only",
    "a remover leaves copies that are WRITING",
    ("copy-remove",),
    (remove.end_copies, "alive = not stop_copy(world, entry, state)", "alive = answer != answer"),
)
mutant(
    "remove-new-object",
    "a remover that looks again ends primaries too, which are newer",
    ("copies-remove-recopy", "copy-replace"),
    (remove.end_copies, "if is_sure(entry, key.check) & is_copy(entry):", "if is_sure(entry, key.check):"),
)
mutant(
    "remove-copy-first",
    "a removal ends a copy before the primary",
    ("copies-remove-put", "copies-pin"),
    (remove.first_to_go, "better = (status != OK) | (not is_copy(entry))", "better = (status != OK) | is_copy(entry)"),
)
mutant(
    "remove-some",
    "a removal does not look for pins before it ends anything, and then says MISS",
    ("copies-pin",),
    (remove.end_copies, "status = select(gone == PINNED, word(PINNED), word(OK))", "status = word(OK)"),
)
mutant(
    "remove-gives-up",
    "a remover whose object goes away does not ask for copies",
    ("copies-lose",),
    (remove.remove_whole, "more = (status == MISS) & (rounds < ROUNDS)", "more = status != status"),
)

# --- producers and readers ---
mutant(
    "put-beside-copy",
    "a producer does not withdraw where a copy is READY",
    ("copy-evict", "copy-replace"),
    (claim.has_no_copy, "gone = answer != OK", "gone = i == i"),
    (claim.settle, "live = (answer == OK) | ((answer", "live = ((answer == OK) & (not is_copy(seen))) | ((answer"),
)
mutant(
    "put-leaves-copy",
    "a producer does not give up a copy that is being made of an object that is gone",
    ("copy-evict", "copy-replace"),
    (claim.has_no_copy, "gone = stop_copy(world, entry, state)", "gone = i == i"),
)
mutant(
    "put-withdraws-early",
    "a producer is refused by a copy that is being made, though the object was removed",
    ("copy-replace",),
    (
        claim.is_taken,
        "((answer == NOT_READY) & (not is_copy(seen)))",
        "(answer == NOT_READY)",
    ),
)
mutant(
    "read-writing-copy",
    "a reader takes a copy that is WRITING for one that is READY",
    ("copy-get", "copy-lose"),
    (
        directory.nearest,
        "answer, seen = judge(world, entry, key)",
        "answer, seen = judge(world, entry, key)\n            answer = select(answer == NOT_READY, word(OK), answer)",
    ),
)
mutant(
    "read-first",
    "a reader takes the first entry of a key, READY or not",
    ("copy-get-first",),
    (
        directory.nearest,
        "            if better & (answer != MISS):",
        "            if (status == MISS) & (answer != MISS):",
    ),
    (directory.find_state, "if (status == MISS) | ((tagged & (tagged - 1)) != 0):", "if status == MISS:"),
)

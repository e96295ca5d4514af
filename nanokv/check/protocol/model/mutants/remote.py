"""Mutants of the rounds by which a reader on another host gets an object."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.fabric import judging, rounds
from nanokv.device.segment.layout import EPOCH_SHIFT, H_KEY_CHECK

# --- what is looked at, and when ---
mutant(
    "remote-descriptor-early",
    "the descriptor is read beside the first look at the header",
    ("remote-replace", "remote-fresh"),
    (
        rounds.ask_candidates,
        "        add_look(work, k, k, header_at(world, seg, entry_header(entry)))\n"
        "        k += 1\n"
        "    rows, _ = gather(work, count, word(0), word(0))\n",
        "        add_look(work, 2 * k, k, header_at(world, seg, entry_header(entry)))\n"
        "        add_look(work, 2 * k + 1, count + k, descriptor_at(world, seg, entry_header(entry)))\n"
        "        k += 1\n"
        "    rows, _ = gather(work, 2 * count, word(0), word(0))\n",
    ),
    (
        rounds.take_headers,
        "            copy_line(fetch + F_HEADER, header)\n",
        "            copy_line(fetch + F_HEADER, header)\n"
        "            copy_line(fetch + F_WHAT, peek(places, count + k))\n",
    ),
    (rounds.take_descriptors, "                copy_line(fetch + F_WHAT, peek(places, 2 * i + 1))\n", ""),
)
mutant(
    "remote-look-with-bytes",
    "the last look at the header is the one in the transfer of the bytes, before or after them: it has no order",
    ("remote-reuse", "remote-replace"),
    (
        judging.judge_again,
        'if not same_state(field(fetch, F_HEADER + H_STATE), load64(header + H_STATE, "relaxed")):',
        "if status != OK:",
    ),
)
mutant(
    "remote-one-look",
    "a reader believes the bytes that it read by its first look at the header",
    ("remote-reuse", "remote-replace"),
    (
        judging.judge_again,
        'if not same_state(field(fetch, F_HEADER + H_STATE), load64(header + H_STATE, "relaxed")):',
        "if status != OK:",
    ),
    (
        rounds.take_descriptors,
        "            if same_header(fetch + F_HEADER, header):\n                copy_line(fetch + F_HEADER, header)\n",
        "            if i == i:\n",
    ),
)
mutant(
    "remote-two-looks",
    "two equal looks at the header, before and after the bytes, count as a look at one object",
    ("remote-fresh",),
    (
        judging.judge_again,
        'if not same_state(field(fetch, F_HEADER + H_STATE), load64(header + H_STATE, "relaxed")):',
        "if not same_header(fetch + F_HEADER, header):",
    ),
    (
        rounds.take_descriptors,
        "            if same_header(fetch + F_HEADER, header):\n                copy_line(fetch + F_HEADER, header)\n",
        "            if i == i:\n",
    ),
)

# --- what is compared ---
mutant(
    "remote-any-epoch",
    "the last look sees whether the slot is READY, and not in which epoch",
    ("remote-replace", "remote-reuse"),
    (
        judging.judge_again,
        'if not same_state(field(fetch, F_HEADER + H_STATE), load64(header + H_STATE, "relaxed")):',
        'if phase_of(load64(header + H_STATE, "relaxed")) != READY:',
    ),
)
mutant(
    "remote-any-state",
    "the last look sees whether the epoch is the same, and not whether the object is READY",
    ("remote-evicted", "remote-reuse"),
    (
        judging.judge_again,
        'if not same_state(field(fetch, F_HEADER + H_STATE), load64(header + H_STATE, "relaxed")):',
        'if epoch_of(field(fetch, F_HEADER + H_STATE)) != epoch_of(load64(header + H_STATE, "relaxed")):',
    ),
)
mutant(
    "remote-state-beside",
    "the last look is compared with STATE as it was beside the bytes, and not as it was before",
    ("remote-replace", "remote-fresh"),
    (judging.same_header, " & same_state(field(one, H_STATE), field(two, H_STATE))", ""),
)
mutant(
    "remote-any-key",
    "nothing tells in which epoch a slot has the key: no entry, no key's word, no look beside the bytes",
    ("remote-reuse", "remote-fresh"),
    (
        judging.judge_header,
        "    if (epoch & ENTRY_EPOCH_MASK) != ((entry >> ENTRY_EPOCH_SHIFT) & ENTRY_EPOCH_MASK):\n"
        "        answer = word(TORN)\n"
        "    elif is_key(header, key, epoch)",
        f'    its_own = (load64(header + {H_KEY_CHECK.value}, "relaxed") ^ key.check) >> {EPOCH_SHIFT.value}\n'
        "    if is_key(header, key, its_own)",
    ),
    (
        judging.same_header,
        "(i * WORD_BYTES != H_FLAGS)",
        "(i * WORD_BYTES != H_FLAGS) & (i * WORD_BYTES != H_KEY_HASH) & (i * WORD_BYTES != H_KEY_CHECK)",
    ),
)
for what, field in (("place", "H_PAYLOAD"), ("size", "H_BYTES")):
    mutant(
        f"remote-any-{what}",
        f"the look at the header beside the bytes does not compare the {what} of the bytes",
        ("remote-moved", "remote-fresh"),
        (
            judging.same_header,
            "(i * WORD_BYTES != H_FLAGS)",
            f"(i * WORD_BYTES != H_FLAGS) & (i * WORD_BYTES != {field})",
        ),
    )
mutant(
    "remote-any-world",
    "a reader does not compare the control block with that of the card",
    ("remote-gone",),
    (
        judging.judge_again,
        "if not same_line(field(work, W_CONTROLS) + field(fetch, F_OWNER) * (LINE_WORDS * WORD_BYTES), control):",
        "if status != status:",
    ),
)
mutant(
    "remote-doubt-is-corrupt",
    "a first look at a header that names impossible bytes is answered CORRUPT, and it was torn",
    ("remote-fresh", "remote-replace"),
    (judging.judge_header, "answer = word(DOUBTFUL)", "answer = word(CORRUPT)"),
    (judging.rank_of, "status == DOUBTFUL", "status == CORRUPT"),
)
mutant(
    "remote-flags-late",
    "whether there is a checksum is seen after the bytes, in the flags of the slot's next use",
    ("remote-checksum",),
    (
        judging.judge_again,
        "    elif not has_right_sum(world, work, fetch):\n",
        '    store64(fetch + F_HEADER + H_FLAGS, load64(header + H_FLAGS, "relaxed"), "relaxed")\n'
        "    if status == OK and not has_right_sum(world, work, fetch):\n",
    ),
)

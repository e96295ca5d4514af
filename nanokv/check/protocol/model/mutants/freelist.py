"""Mutants of free lists, extents and slots."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import evict, extent, freelist, header, joining, reclaim, shards
from nanokv.space import coalesce

_LIST = "(((old >> TAG_SHIFT) + 1) << TAG_SHIFT)"
_SAME_TAG = "((old >> TAG_SHIFT) << TAG_SHIFT)"

mutant(
    "no-tag",
    "the head of a list has no tag: a node that came back is taken for the same list (ABA)",
    ("list-aba", "list-detach"),
    (freelist.pop_nodes, _LIST, _SAME_TAG),
    (freelist.push_marked, _LIST, _SAME_TAG),
)
mutant(
    "pop-by-exchange",
    "the head is exchanged, whatever it is by now",
    ("list",),
    (freelist.pop_nodes, "cas64(head, old, ", "xchg64(head, "),
)
mutant(
    "push-by-exchange",
    "the head is exchanged, whatever it is by now: nodes are lost",
    ("list",),
    (freelist.push_marked, "cas64(head, old, ", "xchg64(head, "),
)
mutant(
    "link-once",
    "the link is written only before the first try: a second try links to an old list",
    ("list", "list-aba"),
    (
        freelist.push_marked,
        '        store64(link, mark | (old & LOW32), "relaxed")\n',
        '        if tries == 0:\n            store64(link, mark | (old & LOW32), "relaxed")\n',
    ),
)
mutant(
    "bump-unchecked",
    "a page that an add has reached is believed, also beyond the end of the arena",
    ("bump",),
    (extent.bump, "        fits = (old >= base) & (old <= last)\n    elif", "    elif"),
)
mutant(
    "bump-by-store",
    "the pointer is moved by a store",
    ("bump",),
    (extent.bump, 'old = add64(seg + BUMP_PTR, size, "relaxed")', 'store64(seg + BUMP_PTR, old + size, "relaxed")'),
)
mutant(
    "large-bump-by-store",
    "the pointer is moved by a store, for an extent of many pages",
    ("bump",),
    (
        extent.bump,
        'got = cas64(seg + BUMP_PTR, old, old + size, "relaxed")',
        'store64(seg + BUMP_PTR, old + size, "relaxed")\n            got = old',
    ),
)
mutant(
    "slots-unchecked",
    "a header slot that an add has reached is believed, also beyond the end",
    ("shards-slots",),
    (header.bump_slot, "select((slot >= 0) & (slot < count), slot, word(-1))", "slot"),
)
mutant(
    "carve-keeps-too-much",
    "a split gives back the piece that it keeps",
    ("split",),
    (extent.carve, "page + class_pages(world, want), page", "page, page"),
)
mutant(
    "carve-forgets",
    "a split forgets the last page of the extent",
    ("split", "split-odd"),
    (extent.carve, "page + class_pages(world, have))", "page + class_pages(world, have) - 1)"),
)
mutant(
    "rest-in-one-piece",
    "a split whose rest is several extents gives back the first of them",
    ("split-odd",),
    (extent.give_pages, "            page += class_pages(world, size_class)\n", "            page = end + 0\n"),
)
mutant(
    "rest-given-twice",
    "a split pushes a piece of its rest twice",
    ("split-odd", "split"),
    (
        extent.give_pages,
        "            give(world, seg, page, size_class)\n",
        "            give(world, seg, page, size_class)\n            give(world, seg, page, size_class)\n",
    ),
)
mutant(
    "rest-of-a-smaller-class",
    "a split pushes a piece of its rest as one of the class below: pages are lost",
    ("split-odd",),
    (
        extent.give_pages,
        "            give(world, seg, page, size_class)\n",
        "            give(world, seg, page, select(size_class > 0, size_class - 1, size_class))\n",
    ),
)
mutant(
    "rest-of-a-larger-class",
    "a split rounds its rest up to the next class: pages of the neighbour are given away",
    ("split-odd",),
    (
        extent.give_pages,
        "        size_class = class_within(world, end - page)\n",
        "        size_class = class_of(world, end - page)\n",
    ),
)
mutant(
    "marks-of-five-bits",
    "the mark of a held extent is read as if it had five bits: large classes seem to be held by nobody",
    ("marks",),
    (extent.is_held, "& MARK_MASK", "& 31"),
)
mutant(
    "marks-cut",
    "a mark is written with five bits: a held extent of a large class looks like a free one",
    ("marks",),
    (extent.marked, "(value << MARK_SHIFT)", "((value & 31) << MARK_SHIFT)"),
)
mutant(
    "runs-aligned",
    "a host cuts a run only where an extent would be aligned to its size",
    ("join-odd",),
    (coalesce.carve_runs, "count = left // size\n", "count = left // size if at % size == 0 else 0\n"),
)
mutant(
    "join-unannounced",
    "a host joins free extents without announcing it: a producer is answered FULL by accident",
    ("join-full",),
    (joining.begin_join, "| world.producer", ""),
)
mutant(
    "detach-resets-tag",
    "a host that takes a whole list lets its tag begin anew",
    ("detach-aba",),
    (freelist.detach, "((old >> TAG_SHIFT) + 1) << TAG_SHIFT", "0"),
)
mutant(
    "stamp-after-push",
    "an extent is on the list before its links say that it was pushed once more",
    ("exhaust", "split", "release"),
    (
        extent.give,
        "    link = link_of(world, seg, page)\n"
        "    stamp(links, page + 1, pages - 1)\n"
        "    free = marked(stamped(link), FREE + size_class, word(0))\n"
        "    number = page\n"
        "    if pages > 1:\n"
        "        number = page // pages\n"
        "    push_marked(extent_list(world, seg, size_class, number), links, page, page, free, "
        "retries_at(world, seg))\n",
        "    link = link_of(world, seg, page)\n"
        "    free = marked(link, FREE + size_class, word(0))\n"
        "    number = page\n"
        "    if pages > 1:\n"
        "        number = page // pages\n"
        "    push_marked(extent_list(world, seg, size_class, number), links, page, page, free, "
        "retries_at(world, seg))\n"
        "    stamp(links, page, pages)\n"
        "    mark(world, seg, page, FREE + size_class, word(0))\n",
    ),
)
mutant(
    "bump-rest-by-store",
    "a host takes the pages that were never used by a store",
    ("join-fresh",),
    (
        extent.bump_rest,
        'got = cas64(seg + BUMP_PTR, old, limit, "relaxed")',
        'store64(seg + BUMP_PTR, limit, "relaxed")\n        got = old',
    ),
)
mutant(
    "evict-keeps-all",
    "a producer that evicts a large object keeps what it does not need",
    ("evict-larger",),
    (evict.evict_for, "carve(world, seg, page, have, size_class)", "word(0)"),
)
mutant(
    "home-list-alone",
    "a producer asks its home list, and no other one",
    ("shards-join", "shards"),
    (shards.next_filled, "look_rows(rows, count, ", "look_rows(rows, count - count, "),
)
mutant(
    "detach-one-list",
    "a host that joins free extents takes one list of each class",
    ("shards-join",),
    (reclaim.detach_class, "i < world.shards", "i < 1"),
)
mutant(
    "walk-one-list",
    "the audit looks at one list of each class: pages in the others seem to be in no place",
    ("shards-audited",),
    (reclaim.walk_class, "i < world.shards", "i < 1"),
)
mutant(
    "walk-one-slot-list",
    "the audit looks at one list of header slots",
    ("shards-audited",),
    (reclaim.walk_slots, "i < world.shards", "i < 1"),
)
mutant(
    "joining-by-load",
    "a producer that finds the lists empty looks by a load whether a host joins: the word may be too old",
    ("shards-full", "join-full"),
    (joining.joiner, 'add64(seg + JOINING, 0, "acq_rel")', 'load64(seg + JOINING, "acquire")'),
)

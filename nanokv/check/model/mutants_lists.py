"""Mutants of free lists, extents and slots."""

from nanokv.check.model.mutant import Mutant
from nanokv.device import evict, extent, freelist, header, reclaim

_LIST = "(((old >> TAG_SHIFT) + 1) << TAG_SHIFT)"
_SAME_TAG = "((old >> TAG_SHIFT) << TAG_SHIFT)"

LISTS = (
    Mutant(
        "no-tag",
        "the head of a list has no tag: a node that came back is taken for the same list (ABA)",
        ("list-aba", "list-detach"),
        ((freelist.pop, _LIST, _SAME_TAG), (freelist.push_chain, _LIST, _SAME_TAG)),
    ),
    Mutant(
        "pop-by-exchange",
        "the head is exchanged, whatever it is by now",
        ("list",),
        ((freelist.pop, "cas64(head, old, ", "xchg64(head, "),),
    ),
    Mutant(
        "push-by-exchange",
        "the head is exchanged, whatever it is by now: nodes are lost",
        ("list",),
        ((freelist.push_chain, "cas64(head, old, ", "xchg64(head, "),),
    ),
    Mutant(
        "link-once",
        "the link is written before the first try alone: a second try links to an old list",
        ("list", "list-aba"),
        (
            (
                freelist.push_chain,
                '        store64(link, mark | (old & LOW32), "relaxed")\n',
                '        if tries == 0:\n            store64(link, mark | (old & LOW32), "relaxed")\n',
            ),
        ),
    ),
    Mutant(
        "bump-overshoots",
        "the bound is not looked at again after a failed try",
        ("bump", "exhaust"),
        ((extent.bump, "more = more & fits", "more = more & (tries < SPIN_LIMIT)"),),
    ),
    Mutant(
        "bump-by-store",
        "the pointer is moved by a store",
        ("bump",),
        (
            (
                extent.bump,
                'got = cas64(seg + BUMP_PTR, old, old + n_pages * size, "relaxed")',
                'store64(seg + BUMP_PTR, old + n_pages * size, "relaxed")\n        got = old',
            ),
        ),
    ),
    Mutant(
        "slots-overshoot",
        "more header slots are taken than there are",
        ("slots", "full"),
        ((header.take_slot, "more = more & fits", "more = more & (tries < SPIN_LIMIT)"),),
    ),
    Mutant(
        "carve-keeps-too-much",
        "a split gives back the piece that it keeps",
        ("split",),
        ((extent.carve, "piece = word(1)", "piece = word(0)"),),
    ),
    Mutant(
        "carve-forgets",
        "a split gives back all pieces but the last",
        ("split",),
        ((extent.carve, "piece < pieces", "piece < pieces - 1"),),
    ),
    Mutant(
        "join-unannounced",
        "a host joins free extents without saying so: a producer is answered FULL by accident",
        ("join-full",),
        ((reclaim.joining, "if change > 0:", "if change > 1:"),),
    ),
    Mutant(
        "detach-resets-tag",
        "a host that takes a whole list lets its tag begin anew",
        ("detach-aba",),
        ((freelist.detach, "((old >> TAG_SHIFT) + 1) << TAG_SHIFT", "0"),),
    ),
    Mutant(
        "stamp-after-push",
        "an extent is on the list before its links say that it was pushed once more",
        ("exhaust", "split", "release"),
        (
            (
                extent.give,
                "    stamp(links, page, class_pages(world, size_class))\n"
                "    mark(world, seg, page, FREE + size_class, word(0))\n"
                "    push(free_list(seg, size_class), links, page)\n",
                "    push(free_list(seg, size_class), links, page)\n"
                "    stamp(links, page, class_pages(world, size_class))\n"
                "    mark(world, seg, page, FREE + size_class, word(0))\n",
            ),
        ),
    ),
    Mutant(
        "bump-rest-by-store",
        "a host takes the pages that were never used by a store",
        ("join-fresh",),
        (
            (
                extent.bump_rest,
                'got = cas64(seg + BUMP_PTR, old, limit, "relaxed")',
                'store64(seg + BUMP_PTR, limit, "relaxed")\n        got = old',
            ),
        ),
    ),
    Mutant(
        "evict-keeps-all",
        "a producer that evicts a large object keeps what it does not need",
        ("evict-larger",),
        ((evict.evict_for, "carve(world, seg, page, have, size_class)", "word(0)"),),
    ),
)

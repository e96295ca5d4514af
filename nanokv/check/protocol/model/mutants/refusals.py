"""Mutants in which a producer is refused although there is room: another one has more in its hands than it keeps."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import extent, header, splitting, take_or_evict

# --- pages and slots that were never used ---
mutant(
    "pages-hoarded",
    "a producer takes two pages that were never used, and gives one of them to a list",
    ("cold", "cold-sizes"),
    (extent.bump, 'old = add64(seg + BUMP_PTR, size, "relaxed")', 'old = add64(seg + BUMP_PTR, 2 * size, "relaxed")'),
    (
        extent.take_elsewhere,
        "        page = bump(world, seg, size_class)\n",
        "        page = bump(world, seg, size_class)\n"
        "        if (page >= 0) & (size_class == 0) & (page + 1 < world.n_pages):\n"
        "            give(world, seg, page + 1, size_class)\n",
    ),
)
mutant(
    "slots-hoarded",
    "a producer takes two header slots that were never used, and gives one of them to a list",
    ("cold", "cold-dies"),
    (
        header.bump_slot,
        'slot = add64(seg + HDR_HEAD, 1, "relaxed")',
        'slot = add64(seg + HDR_HEAD, 2, "relaxed")\n'
        "        if slot + 1 < count:\n"
        "            give_slot(world, seg, slot + 1)",
    ),
)
mutant(
    "large-bump-once",
    "a producer of many pages that loses a race for the bump pointer takes the pages all the same",
    ("cold-sizes",),
    (extent.bump, "more = more & fits", "more = tries < 0"),
)

# --- an extent that is split ---
mutant(
    "split-uncounted",
    "a producer splits an extent without counting the split",
    ("split-full", "split-puts"),
    (splitting.begin_split, 'add64(seg + SPLITTING, 1, "acquire")', "word(seg)"),
    (splitting.end_split, 'add64(seg + SPLITTING, ONE_SPLIT_ENDED - 1, "release")', "word(seg)"),
)
mutant(
    "split-counted-late",
    "a producer counts a split when it has taken the extent",
    ("split-full", "split-puts"),
    (
        extent.take_elsewhere,
        "            if level > size_class:\n"
        "                begin_split(seg)\n"
        "            page = pop_free(world, seg, level, home + place, slot)\n",
        "            page = pop_free(world, seg, level, home + place, slot)\n"
        "            if level > size_class:\n"
        "                begin_split(seg)\n",
    ),
)
mutant(
    "split-ends-early",
    "a producer counts a split out before it has pushed the pieces",
    ("split-full", "split-puts"),
    (
        extent.take_elsewhere,
        "            if page >= 0:\n"
        "                carve(world, seg, page, level, size_class)\n"
        "                hold(world, seg, page, size_class, slot)\n"
        "            if level > size_class:\n"
        "                end_split(seg)\n",
        "            if level > size_class:\n"
        "                end_split(seg)\n"
        "            if page >= 0:\n"
        "                carve(world, seg, page, level, size_class)\n"
        "                hold(world, seg, page, size_class, slot)\n",
    ),
)
mutant(
    "split-not-counted-out",
    "a producer whose split has ended stays counted",
    ("split-puts",),
    (splitting.end_split, "ONE_SPLIT_ENDED - 1", "ONE_SPLIT_ENDED"),
)
mutant(
    "split-ended-unseen",
    "a producer that finds nothing asks only whether a split is under way, not whether one has ended meanwhile",
    ("split-full",),
    (splitting.is_split_since, "(now != before) | ", ""),
)
mutant(
    "splits-by-load",
    "a producer that finds nothing looks by a load whether others split: the word may be too old",
    ("split-full",),
    (splitting.is_split_since, 'add64(seg + SPLITTING, 0, "release")', 'load64(seg + SPLITTING, "acquire")'),
)
mutant(
    "looks-once",
    "a producer that finds nothing is refused at once, whoever splits",
    ("split-puts", "split-dies"),
    (take_or_evict.find_pages, "& (looks < EXTENT_LOOKS)", "& (looks < 1)"),
)
mutant(
    "looks-for-ever",
    "a producer that finds nothing looks as long as a split is counted under way",
    ("split-dies",),
    (take_or_evict.find_pages, "& (looks < EXTENT_LOOKS)", "& (looks > 0)"),
)

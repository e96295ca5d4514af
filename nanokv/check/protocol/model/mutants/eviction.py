"""Mutants of eviction: leased objects stay, as do all while free neighbours would do, and neighbours go together."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import evict, evict_neighbours, joinable, lease, lifetimes, search, take_or_evict

# --- leases ---
mutant(
    "evict-leased",
    "a producer evicts an object that waits for its first reader",
    ("leased-read", "leased"),
    (search.search, " & (not stays(access, now))", ""),
    (evict.evict_for, "if not must_stay(header, now):", "if now > 0:"),
)
mutant(
    "lease-of-old-look",
    "a producer believes an old look at the lease of the object that it evicts",
    ("leased",),
    (evict.evict_for, "if not must_stay(header, now):", "if now > 0:"),
)
mutant(
    "touch-by-store",
    "a reader stores the time of its read over the lease of the next object in the slot",
    ("leased-late",),
    (lease.touch, 'cas64(header + H_ACCESS, seen, used, "relaxed")', 'store64(header + H_ACCESS, used, "relaxed")'),
)
mutant(
    "touch-unvalidated",
    "a late reader ends the lease of the next object in the slot",
    ("leased-late",),
    (lease.touch, "if not still_ready(header, epoch):", "if epoch < 0:"),
)
mutant(
    "renew-unvalidated",
    "a late renewal leases the next object in the slot",
    ("renewed-late",),
    (lease.renew, "    if still_ready(header, epoch):\n        # relaxed", "    if epoch >= 0:\n        # relaxed"),
    (lease.renew, "if not still_ready(header, epoch):", "if epoch < 0:"),
)
mutant(
    "renew-unrepaired",
    "a late renewal leases the next object in the slot, which was put at the same time",
    ("renewed-late",),
    (lease.renew, "if not still_ready(header, epoch):", "if epoch < 0:"),
)

mutant(
    "evict-kept",
    "an eviction looks at leases only",
    ("kept",),
    (lease.stays, " | ((access & PRIORITY) == KEPT)", ""),
)
mutant(
    "use-forgets-priority",
    "a read gives an object normal priority",
    ("kept",),
    (lifetimes.used_again, " | (access & PRIORITY)", ""),
)

# --- free neighbours ---
mutant(
    "evict-at-once",
    "a producer that finds no extent evicts, whatever could be joined",
    ("neighbours",),
    (take_or_evict.find_pages, "found = outlook(world, seg, size_class)", "found = word(NOTHING)"),
)
mutant(
    "neighbours-unsummed",
    "free neighbours are looked at one by one",
    ("neighbours",),
    (joinable.has_run, "select(free, run + pages, word(0))", "select(free, pages, word(0))"),
    (joinable.free_from, "run += pages", "run = pages"),
)
mutant(
    "outlook-without-host",
    "a producer does not ask whether a host holds the free extents",
    ("neighbours",),
    (joinable.outlook, "(after != before) | ((after & JOINER_MASK) != 0)", "after != before"),
)
mutant(
    "outlook-uncounted",
    "a producer does not notice a host that joined while it looked",
    ("neighbours",),
    (joinable.outlook, "(after != before) | ((after & JOINER_MASK) != 0)", "(after & JOINER_MASK) != 0"),
)
mutant(
    "outlook-of-small-extents",
    "a producer that finds no extent does not notice that a host has just pushed one",
    ("neighbours",),
    (joinable.listed_run, "select(place < 0, longest, word(-1))", "longest"),
)

# --- neighbours that go together ---
mutant(
    "run-unlooked",
    "neighbours of an object that must stay are evicted",
    ("neighbours-stay",),
    (evict_neighbours.run_ripeness, "more = may_go(world, seg, slot, page, pages, now) >= 0", "more = slot >= 0"),
)
mutant(
    "run-without-kill",
    "a producer takes the pages of a run although another one has evicted or removed an object of it",
    ("neighbours-change", "neighbours-shared"),
    (evict_neighbours.evict_at, "if seen == state_word(READY, epoch):", "if seen != word(0):"),
)
mutant(
    "run-not-given-back",
    "the pages of a run that is given up are leaked",
    ("neighbours-change", "neighbours-shared"),
    (evict_neighbours.take_run, "    give_pages(world, seg, kept, end)\n", ""),
)
mutant(
    "run-kept-when-torn",
    "a producer keeps a run although one of its objects had to stay",
    ("neighbours-change", "neighbours-shared"),
    (evict_neighbours.take_run, "whole = end >= first + wanted", "whole = end > first"),
)
mutant(
    "run-unheld",
    "the pages of a run belong to no header slot",
    ("neighbours-go",),
    (evict_neighbours.take_run, "        hold(world, seg, first, size_class, slot)\n", ""),
)
mutant(
    "young-goes",
    "a producer evicts any object that is large enough, however young, and never those that are too small",
    ("young-stays",),
    (evict.evict_for, "select((fair != 0) & (ripe == 0) & (crowd != 0), word(-1), victim)", "victim + 0"),
)

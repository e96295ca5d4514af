"""Generations: of each identity how many times all that it had stored was declared void, at once and everywhere.

Those who use them (an engine's connector) mix the number into their keys: what was stored under an older one is not
found any more, in no segment, whoever lives or sleeps, and is evicted in its time. Each segment has a row of words,
which identities share by the low bits of their tags: two that meet only lose what they had cached. A rank looks at the
word of its own segment; a host that raises a generation first takes a new number from rank 0's segment, then raises the
words of all segments to it, also of those whose rank has gone.

Guarantees: a word never goes back; of several hosts that take a number at the same time each gets another one.

Why the orderings suffice: a word is changed by compare-and-swap only, so no raise is lost. Acquire and release: who
sees a number also sees all that its host had stored before it raised it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64, load64, select, word
from nanokv.device.segment.layout import GENERATIONS, WORD_BYTES
from nanokv.device.segment.world_table import World, segment


@triton.jit
def raise_generation(world: World, owner: tl.int64, place: tl.int64, at_least: tl.int64, more: tl.int64) -> Any:
    """Raise the word `place` of a segment to at least `at_least`, and then by `more`. Returns it."""
    at = segment(world, owner) + GENERATIONS + place * WORD_BYTES
    seen = load64(at, "acquire")
    raised = word(-1)
    while raised < 0:
        wanted = select(seen < at_least, at_least, seen) + more
        found = cas64(at, seen, wanted, "acq_rel")
        raised = select(found == seen, wanted, -1)
        seen = found
    return raised

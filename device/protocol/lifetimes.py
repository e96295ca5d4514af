"""The default eviction policy: an object goes when it was not used for longer than objects of its kind live.

A hand goes around the header slots. Objects that were put once live for half of `life`, or longer: as long as the hand
takes to come round. Objects that were used again live `r` and `r q` times as long. `life` follows the age of what goes,
and `r` follows the ghosts that come back (`ghosts`): of objects that were put once, they shorten it; of objects that
were used again, they lengthen it. So the policy lies anywhere between LRU and one that keeps only what is used often.

Source: GCLOCK (Smith 1978) for the hand; ARC (Megiddo and Modha 2003) for learning from ghosts. A hand in the order of
slots takes chains of blocks as they were put, and leaves no holes in others as random samples do (docs/eviction.md).

Guarantees
- A search looks at LOOKS headers, and at more only while it has found nothing that may go.
- What it reads may be old: then the object that goes is a worse choice, never a wrong one.

Why the orderings suffice: all accesses are relaxed. The compare-and-swap of the STATE word decides who goes (`evict`).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, select, store64, word
from nanokv.device.protocol.ghosts import recall, remember
from nanokv.device.segment.layout import (
    ACCESS_TIME,
    CLOCK_HAND,
    GAIN,
    GONE_NEW,
    GONE_USED,
    HDR_HEAD,
    HIGH,
    LIFE,
    LOW,
    MOST_USES,
    PRIORITY,
    PRIORITY_STEP,
    USE_MASK,
    USE_SHIFT,
)
from nanokv.device.segment.world_table import World, open_world

LOOKS = tl.constexpr(64)
SINGLE = tl.constexpr(16)  # looks before the hand's steps grow: 2, 4, .. 64, at most; eight of each
PER_STEP = tl.constexpr(8)
LAST_STEP = tl.constexpr(6)  # log2 of the longest step
FRACTION = tl.constexpr(32)  # bits of `gain` behind the point
FACTOR_BITS = tl.constexpr(8)  # bits of a factor behind the point
ONE = tl.constexpr(256)
FIRST_GAIN = tl.constexpr(1 << 31)  # r = 1.5
MOST_GAIN = tl.constexpr(5 << 32)  # r = 32
LONGEST_AGE = tl.constexpr(1 << 50)  # 13 days: longer ages count as that
YOUNG = tl.constexpr(5)  # a ghost teaches if its age is at most a fifth of the slots
LESSONS = tl.constexpr(6)  # r doubles after so many lessons per slot
SMOOTH = tl.constexpr(8)  # `life` follows within an eighth of the slots' evictions
SAME_USE = tl.constexpr(6)  # uses within life / 64 of each other are one


@triton.jit
def slots_in_use(world: World, seg: tl.int64) -> Any:
    """How many header slots were ever taken."""
    head = load64(seg + HDR_HEAD, "relaxed")
    return select((head < 0) | (head > world.hdr_count), world.hdr_count, head)


@triton.jit
def lifetime(seg: tl.int64) -> Any:
    """How long objects of a segment live without use, about, in ns; 0 before the first eviction."""
    return load64(seg + LIFE, "relaxed")


@triton.jit
def use_of(access: tl.int64) -> Any:
    """How often an object was used again, from its ACCESS word: 0 to MOST_USES. After a lease: 0."""
    use = (access >> USE_SHIFT) & USE_MASK
    return select(use > MOST_USES, word(0), use)


@triton.jit
def used_again(access: tl.int64, now: tl.int64, life: tl.int64) -> Any:
    """The ACCESS word of an object that is used now. Several uses at about one time count as one."""
    leased = ((access >> USE_SHIFT) & USE_MASK) > MOST_USES
    use = use_of(access)
    later = (now - (access & ACCESS_TIME) >= (life >> SAME_USE)) & (use < MOST_USES) & (not leased)
    return (now & ACCESS_TIME) | (access & PRIORITY) | (select(later, use + 1, use) << USE_SHIFT)


@triton.jit
def factors(seg: tl.int64, first_round: tl.int1) -> Any:
    """How much longer objects live that were used again: r and r q, in 1/256.

    `first_round`: whether the hand goes round for the first time. An object that it spares stays for a whole round.
    """
    gain = load64(seg + GAIN, "relaxed")
    gain = select((gain < 0) | (gain > MOST_GAIN), word(MOST_GAIN), gain)
    once = (ONE + ((gain >> (FRACTION - FACTOR_BITS)) & (ONE - 1))) << (gain >> FRACTION)
    step = ONE + 2 * (once - ONE)
    step = select((step > 2 * ONE) | first_round, word(2 * ONE), step)
    once = select(first_round, word(ONE), once)
    return once, (once * step) >> FACTOR_BITS


@triton.jit
def ripeness(access: tl.int64, now: tl.int64, once: tl.int64, often: tl.int64) -> Any:
    """The time since an object's last use, in ns, divided by how much longer objects of its kind live."""
    age = now - (access & ACCESS_TIME)
    age = select(age < 0, word(0), select(age > LONGEST_AGE, word(LONGEST_AGE), age))
    priority = access & PRIORITY
    age = select(priority == HIGH, age >> PRIORITY_STEP, select(priority == LOW, age << PRIORITY_STEP, age))
    use = use_of(access)
    return select(use == 0, age, (age << FACTOR_BITS) // select(use == 1, once, often))


@triton.jit
def is_ripe(access: tl.int64, ripe: tl.int64, life: tl.int64, first_round: tl.int1) -> Any:
    """True if an object has lived long enough to go at once. Before the first eviction none has."""
    needed = select(use_of(access) == 0, life >> 1, select(first_round, life - (life >> 2), life))
    return (life > 0) & (ripe >= needed)


@triton.jit
def next_place(seg: tl.int64, look: tl.int64, total: tl.int64) -> Any:
    """Move the hand on: the number of slots that it had passed. `look`: how many looks this search had.

    LOOKS steps lead around the `total` slots once at most, so that in a small segment they miss none.
    """
    far = (look - SINGLE) // PER_STEP + 1
    far = select((look < SINGLE) | (look >= LOOKS), word(0), select(far > LAST_STEP, word(LAST_STEP), far))
    step = word(1) << far
    longest = (total + LOOKS - 1) // LOOKS
    step = select(step > longest, longest, step)
    return add64(seg + CLOCK_HAND, step, "relaxed") + step - 1  # relaxed: searches may look at one slot twice


@triton.jit
def learn(world: World, seg: tl.int64, key_hash: tl.int64, access: tl.int64, ripe: tl.int64, found: tl.int64) -> None:
    """An object goes: `life` follows its age, and a ghost stays. `found`: 1 if it was ripe, 0 if nothing was."""
    life = lifetime(seg)
    life = select(found == 0, life - life // 20, life)
    share = slots_in_use(world, seg) // SMOOTH + 1
    closer = select(ripe > life, life + (ripe - life) // share, life - (life - ripe) // share)
    closer = select(life == 0, ripe, closer)
    if life == 0:
        store64(seg + GAIN, word(FIRST_GAIN), "relaxed")
    store64(seg + LIFE, select(closer < 1, word(1), closer), "relaxed")
    used = select(use_of(access) > 0, word(1), word(0))
    remember(world, seg, key_hash, used)
    add64(seg + select(used == 1, word(GONE_USED), word(GONE_NEW)), 1, "relaxed")


@triton.jit(noinline=True)
def welcome(table: tl.int64, seg: tl.int64, key_hash: tl.int64) -> Any:
    """The use with which an object begins: 1 if its key was evicted lately, else 0. `r` learns from it."""
    world = open_world(table)
    slots = slots_in_use(world, seg)
    age, used = recall(world, seg, key_hash)
    if (age >= 0) & (age <= slots // YOUNG):
        lesson = word(LESSONS << FRACTION) // (slots + 1)
        gain = load64(seg + GAIN, "relaxed") + select(used == 1, lesson, -lesson)
        gain = select(gain < 0, word(0), select(gain > MOST_GAIN, word(MOST_GAIN), gain))
        store64(seg + GAIN, gain, "relaxed")
    return select((age >= 0) & (age <= slots), word(1), word(0))


@triton.jit
def new_access(world: World, seg: tl.int64, key_hash: tl.int64, now: tl.int64, life: tl.int64) -> Any:
    """The ACCESS word of a new object. `life`: `lifetime`, for which the caller asks early: nothing waits for it."""
    use = word(0)
    if life != 0:  # else there are no ghosts
        use = welcome(world.table, seg, key_hash)
    return (now & ACCESS_TIME) | (use << USE_SHIFT)

"""The memory vocabulary, in Triton: everything that a protocol function may do to shared memory.

Every shared word is a 64-bit word at an int64 address. The ordering is spelled at each call, there is no default:
"relaxed", "acquire", "release" or "acq_rel", always at system scope, because other GPUs and the host read these words.
`memory.native` defines the same names for a CPU; `retarget` exchanges one vocabulary for another.

Four rules follow from how compilers behave:
- An acquire load is an `atomic_add` of 0: compilers may hoist a plain load out of a loop, and some versions put the
  fence of `atomic_load` on its wrong side.
- LLVM turns an addition of 0 that does not release into a load, which may read an old word. One that releases stays a
  read-modify-write, which reads the newest.
- A relaxed load is a plain load, which each warp executes for itself: two warps could read different words and diverge.
  In a CTA of several warps one thread reads, and shared memory hands the word to the others (below).
- A barrier stands before each releasing and after each acquiring atomic: one warp executes a scalar atomic, and only
  the barrier orders the stores of the other warps. Triton 3.9 puts these barriers itself; for older ones they are here.

Several warps. All threads of a CTA take the same branches, because each value that steers a branch is the same in all:
an argument, a word of a private table, what an atomic returned (one thread executes it, and Triton hands its result
around), or a look at shared words. A look by several warps is done once:
- `load64` adds 0, relaxed. Triton 3.6 and 3.9 make of this one relaxed load by one thread on NVIDIA, a store and a load
  of shared memory, and one barrier between them.
- `look_lines`, `look_rows` and `checksum_bytes` load with all warps, and return what the first warp found (`uniform`).
- `count_up` decides nothing. Each warp loads, and only the first one stores what it loaded plus one.
Orderings hold for the CTA as for one thread, because the barriers of a CTA synchronize its threads, and causality
order is transitive (PTX ISA, "Memory Consistency Model", Synchronizes and Causality Order): the other warps' accesses
come before the barrier, and the release of one thread after it; an acquire likewise.
AMD's barriers do not: a wave waits there for its accesses to LDS, not for those to memory, and a release waits for the
accesses of its own wave (LLVM's AMDGPU usage guide, "Memory Model gfx942"; LLVM pull request 161638 calls the like of
it on gfx10 a breach of transitivity, and mends it there). So each wave waits for its loads and stores before the
barrier that precedes a release (`drain`). The releasing wave then writes the L2 cache back, which all waves of a CTA
share; an acquiring wave empties the L1 cache, which they share too.

One warp. PTX promises no single value for the 32 lanes of a relaxed load either; it promises one for a load by one
lane, handed round by shuffles. We rely on the hardware, which serves the lanes of one instruction that name one word by
one transaction. Certainty would cost six or seven instructions per relaxed load, two of them shuffles (counted: 79 in a
put of 2,327 instructions, 24 in a find of 405, 121 in a remove of 916). Lanes that did read different words would take
different branches, and wait for each other in different barriers or shuffles: a machine for PTX that parts the lanes of
a load reports that (`Divergence`), and has shown no wrong bytes.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.warps import WARPS, several_warps, several_waves, threads

VOCABULARY = (
    *(
        "word",
        "select",
        "table64",
        "count_below",
        "load64",
        "look_lines",
        "look_rows",
        "near",
        "store64",
        "count_up",
        "cas64",
        "add64",
        "xchg64",
    ),
    *("copy_bytes", "mixed", "checksum_bytes"),
    "open_world",  # of `segment.world_table`
)
TABLE_LANES = tl.constexpr(32)  # words that `count_below` looks at
COUNT_LANES = tl.constexpr(32)  # words per step of `count_up`
SUM_LANES = tl.constexpr(512)  # words per step of `checksum_bytes`
ODD_LANES = tl.constexpr(32)  # of those that are read byte by byte
OWN_BARRIERS = tl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9))

# the constants of splitmix64 (Steele 2014), as signed words
GOLDEN = tl.constexpr(-0x61C8864680B583EB)
MIX_ONE = tl.constexpr(-0x40A7B892E31B1A47)
MIX_TWO = tl.constexpr(-0x6B2FB644ECCEEE15)


@triton.jit
def word(value: tl.int64) -> Any:
    """A constant as a 64-bit word, so that a variable keeps one type through a loop."""
    return tl.cast(value, tl.int64)


@triton.jit
def select(condition: tl.int64, yes: tl.int64, no: tl.int64) -> Any:
    """`yes if condition else no`; both are evaluated."""
    return tl.where(condition, yes, no)


@triton.jit
def pointer64(address: tl.int64) -> Any:
    """An address as a Triton pointer to a 64-bit word."""
    return tl.cast(address, tl.pointer_type(tl.int64))


@triton.jit
def uniform(value: tl.int64) -> Any:
    """The value that the first thread of the CTA has, for all warps."""
    if several_warps(WARPS):
        of_first = tl.where(tl.arange(0, threads(WARPS)) == 0, value, 0)
        value = tl.sum(tl.gather(of_first, tl.zeros([1], tl.int32), 0), 0)
    return value


@triton.jit
def table64(address: tl.int64) -> Any:
    """Read a word of a private table, which nobody changes while a kernel runs."""
    return tl.load(pointer64(address))


@triton.jit
def count_below(address: tl.int64, count: tl.int64, value: tl.int64) -> Any:
    """How many of the first `count` words (at most TABLE_LANES) of a private table, which ascend, are below `value`."""
    lane = tl.arange(0, TABLE_LANES)
    here = tl.load(pointer64(address) + lane, mask=lane < count, other=0)
    below = (lane < count) & (here < value)
    return uniform(tl.sum(below.to(tl.int32), 0).to(tl.int64))  # of 32 bits: a warp adds them in one instruction


@triton.jit
def drain() -> None:
    """Each wave of several waits for its own loads and stores."""
    if several_waves(WARPS):
        tl.inline_asm_elementwise("s_waitcnt vmcnt(0)", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def barrier_before(sem: tl.constexpr) -> None:
    """The barrier before a releasing atomic, where the compiler does not put it; each wave of several drains first."""
    if sem == "release" or sem == "acq_rel":  # noqa: PLR1714 - Triton knows no `in`
        drain()
        if OWN_BARRIERS:
            tl.debug_barrier()


@triton.jit
def barrier_after(sem: tl.constexpr) -> None:
    """The barrier after an acquiring atomic, where the compiler does not put it."""
    if OWN_BARRIERS and (sem == "acquire" or sem == "acq_rel"):  # noqa: PLR1714 - Triton knows no `in`
        tl.debug_barrier()


@triton.jit
def load64(address: tl.int64, sem: tl.constexpr) -> Any:
    """Load a shared word. A relaxed load may be old, or of another moment than its neighbours: the caller validates."""
    if sem != "relaxed":
        value = tl.atomic_add(pointer64(address), 0, sem=sem, scope="sys")
        barrier_after(sem)
    elif several_warps(WARPS):
        value = tl.atomic_add(pointer64(address), 0, sem="relaxed", scope="sys")
    else:
        value = tl.load(pointer64(address), volatile=True)
    return value


@triton.jit
def look_lines(one: tl.int64, two: tl.int64, count: tl.constexpr, mask: tl.int64, want: tl.int64) -> Any:
    """Look at two lines of `count` shared words at once: relaxed loads, none of which waits for another.

    Returns two sets of places, as bits, those of the line `two` after those of `one`: the words that equal `want` under
    `mask` and are not 0, and the words that are 0. Two lanes look at each word, one for each set. `count` is a power of
    two, at most 8.
    """
    both: tl.constexpr = 2 * count
    lane = tl.arange(0, 2 * both)
    place = lane % both
    line = tl.where(place < count, one, two)
    seen = tl.load(pointer64(line) + place % count, volatile=True)
    asked = tl.where(lane < both, (seen != 0) & ((seen & mask) == want), seen == 0)
    sets = uniform(
        tl.sum(asked.to(tl.int32) << lane, 0).to(tl.int64)
    )  # of 32 bits: a warp adds them in one instruction
    first = (word(1) << both) - 1
    return sets & first, (sets >> both) & first


@triton.jit
def look_rows(
    address: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    start: tl.int64,
    after: tl.int64,
    mask: tl.int64,
    high: tl.constexpr,
    wide: tl.constexpr,
) -> Any:
    """Look at rows of shared words, `high` rows at once, by relaxed loads: find the first that is not 0 under `mask`.

    Returns row * `wide` + column of the first such word beyond `after`, or -1; columns are counted from `start` and
    wrap around.

    Args:
        address: of the first row; each row has `wide` words.
        rows: how many rows are looked at.
        columns: a mask: in a row those columns are looked at whose number has no other bits. Its bits are neighbours.
    """
    column = tl.arange(0, wide).to(tl.int64)[None, :]
    turned = (column - start) & columns
    first = word(-1)
    begin = (after + 1) // (high * wide) * high
    while (first < 0) & (begin < rows):
        row = begin + tl.arange(0, high).to(tl.int64)[:, None]
        place = row * wide + turned
        asked = (row < rows) & ((column & columns) == column) & (place > after)
        seen = tl.load(pointer64(address) + (row * wide + column), mask=asked, other=0, volatile=True)
        found = uniform(tl.min(tl.where((seen & mask) != 0, place, rows * wide)))
        first = select(found < rows * wide, found, word(-1))
        begin += high
    return first


@triton.jit
def near(number: tl.int64, step: tl.int64) -> Any:
    """A number by which threads that run at the same time part: `step` times the processor on a CPU, if `step` > 1.

    Else, and on a GPU, it is `number`, which should differ from CTA to CTA.
    """
    return number


@triton.jit
def store64(address: tl.int64, value: tl.int64, sem: tl.constexpr) -> None:
    """Store a shared word."""
    if sem == "relaxed":
        tl.store(pointer64(address), value)
    else:
        barrier_before(sem)
        tl.atomic_xchg(pointer64(address), value, sem=sem, scope="sys")


@triton.jit
def count_up(address: tl.int64, count: tl.int64, shift: tl.constexpr, mask: tl.constexpr, keep: tl.constexpr) -> None:
    """Add 1 to the counter (`shift`, `mask`) in each of `count` neighbouring words; of the other bits keep only `keep`.

    Relaxed loads and stores, one lane per word: only the caller writes these words, others look at them.
    """
    lanes = tl.arange(0, COUNT_LANES).to(tl.int64)
    start = word(0)
    while start < count:
        at = start + lanes
        old = tl.load(pointer64(address) + at, mask=at < count, other=0, volatile=True)
        new = ((((old >> shift) + 1) & mask) << shift) | (old & keep)
        tl.store(pointer64(address) + at, new, mask=at < count)
        start += COUNT_LANES


@triton.jit
def cas64(address: tl.int64, expected: tl.int64, new: tl.int64, sem: tl.constexpr) -> Any:
    """Compare and swap; returns the previous word."""
    barrier_before(sem)
    # the compiler converts the operand of an exchange or an addition, but not those of a compare-and-swap
    old = tl.atomic_cas(pointer64(address), word(expected), word(new), sem=sem, scope="sys")
    barrier_after(sem)
    return old


@triton.jit
def add64(address: tl.int64, value: tl.int64, sem: tl.constexpr) -> Any:
    """Fetch and add; returns the previous word. Adding 0 with "acq_rel" reads the newest word, and orders."""
    barrier_before(sem)
    old = tl.atomic_add(pointer64(address), value, sem=sem, scope="sys")
    barrier_after(sem)
    return old


@triton.jit
def xchg64(address: tl.int64, value: tl.int64, sem: tl.constexpr) -> Any:
    """Exchange; returns the previous word."""
    barrier_before(sem)
    old = tl.atomic_xchg(pointer64(address), value, sem=sem, scope="sys")
    barrier_after(sem)
    return old


@triton.jit
def copy_elements(dst: tl.int64, src: tl.int64, count: tl.int64, kind: tl.constexpr, width: tl.constexpr) -> None:
    """Copy `count` elements of type `kind` between aligned addresses, with the whole CTA, `width` per step."""
    lanes = tl.arange(0, width)
    start = word(0)
    while start < count:
        at = start + lanes
        value = tl.load(tl.cast(src, tl.pointer_type(kind)) + at, mask=at < count, cache_modifier=".cg")
        tl.store(tl.cast(dst, tl.pointer_type(kind)) + at, value, mask=at < count)
        start += width


@triton.jit
def copy_bytes(dst: tl.int64, src: tl.int64, nbytes: tl.int64, width: tl.constexpr = 1024) -> None:
    """Copy bytes with the whole CTA. Not atomic: a caller that reads shared bytes validates afterwards.

    `width`: elements per step; a CTA of one warp has registers for fewer.
    """
    if ((dst | src) & 7) == 0:
        whole = select((dst & 7) == 0, nbytes & ~7, word(0))  # no constant: Triton 3.6 fails at a loop that never runs
        copy_elements(dst, src, whole // 8, tl.int64, width)
        copy_elements(dst + whole, src + whole, nbytes - whole, tl.int8, 8)
    else:
        copy_elements(dst, src, nbytes, tl.int8, width)


@triton.jit
def mixed(value: tl.int64, place: tl.int64) -> Any:
    """One term of a checksum: a bijection of the word, a different one per place (splitmix64's output function)."""
    x = value + (word(place) + 1) * GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX_ONE
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX_TWO
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def words_at(address: tl.int64, at: tl.tensor, nbytes: tl.int64) -> Any:
    """The 64-bit words number `at` of `nbytes` bytes at any address, read byte by byte; zeros follow the last byte."""
    found = tl.zeros_like(at)
    for k in tl.static_range(8):
        here = at * 8 + k
        byte = tl.load(tl.cast(address, tl.pointer_type(tl.uint8)) + here, mask=here < nbytes, other=0)
        found |= byte.to(tl.int64) << (8 * k)
    return found


@triton.jit(noinline=True)
def checksum_bytes(address: tl.int64, nbytes: tl.int64, first: tl.int64) -> Any:
    """The sum of `mixed` over the 64-bit words of `nbytes` bytes, with the whole CTA. `first`: the first word's place.

    The last word is padded with zeros. Sums of pieces add up if each piece except the last consists of whole words.
    Earlier stores of the CTA are seen. Shared bytes may change meanwhile: the caller validates afterwards.
    """
    tl.debug_barrier()
    lanes = tl.arange(0, SUM_LANES).to(tl.int64)
    whole = select((address & 7) == 0, nbytes // 8, word(0))
    total = tl.zeros_like(lanes)
    start = word(0)
    while start < whole:
        at = start + lanes
        value = tl.load(pointer64(address) + at, mask=at < whole, cache_modifier=".cg")
        total += tl.where(at < whole, mixed(value, first + at), 0)
        start += SUM_LANES
    few = tl.arange(0, ODD_LANES).to(tl.int64)
    odd = tl.zeros_like(few)
    start = whole + 0
    while start * 8 < nbytes:
        at = start + few
        odd += tl.where(at * 8 < nbytes, mixed(words_at(address, at, nbytes), first + at), 0)
        start += ODD_LANES
    return uniform(tl.sum(total, 0) + tl.sum(odd, 0))

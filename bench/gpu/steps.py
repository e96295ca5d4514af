"""A put without payload: the steps of `put.begin` and `put.finish` in their order, with the clock read between them."""

from typing import Any

import triton
import triton.language as tl

from nanokv.bench.gpu.clock import cycles, nanoseconds
from nanokv.bench.gpu.kernels import ALL_CYCLES, ALL_NS, FAILED, TOTALS
from nanokv.device.memory.triton import mixed, store64, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.claim import claim_at, survey
from nanokv.device.protocol.directory import home_of, look
from nanokv.device.protocol.extent import class_of
from nanokv.device.protocol.header import commit_state, publish, reserve, state_word
from nanokv.device.protocol.lifetimes import lifetime, new_access
from nanokv.device.protocol.remove import remove_slot
from nanokv.device.protocol.ring import announce
from nanokv.device.protocol.shards import home_for
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Key
from nanokv.device.protocol.take_or_evict import take_header, take_pages
from nanokv.device.segment.layout import REMOVED, STORED, WORD_BYTES, WRITING
from nanokv.device.segment.world_table import World, header_at, open_world, segment

NAMES = (
    *("look", "enter", "choose place", "look for ghost", "take slot", "reserve", "claim key"),
    *("take pages", "publish", "commit", "announce", "leave", "remove"),
)
COUNT = tl.constexpr(len(NAMES))


@triton.jit  # type: ignore[untyped-decorator]
def put_in_steps(world: World, n: tl.int64, now: tl.int64, at: tl.int64) -> Any:
    """Put an object of one page under the key `n`, remove it, and write the cycles of each step: 0, or 1 if it failed.

    Only the usual path: a step that fails leaves out all later ones. `tests/tools/test_bench_steps.py` compares it.
    """
    seg = segment(world, word(0))
    key = Key(mixed(n, 0), mixed(n, 1))
    size_class = class_of(world, word(1))
    home = segment(world, home_of(world, key.check))
    t0 = word(cycles())
    tagged, empty = look(world, home, key)
    life = lifetime(seg)
    t1 = word(cycles())
    phase = enter(world, seg)
    t2 = word(cycles())
    status, start = survey(world, home, key, tagged, empty)
    t3 = word(cycles())
    access = new_access(world, seg, key.hash, now, life)
    t4 = word(cycles())
    slot, epoch = take_header(world, seg, word(0), home_for(world, key.hash), now)
    t5 = word(cycles())
    failed = word(1)
    if slot >= 0:
        reserve(world, seg, slot, epoch, key, word(0))
        t6 = word(cycles())
        if status == OK:
            status = claim_at(world, home, start, word(0), slot, epoch, key)
        t7 = word(cycles())
        page = take_pages(world, seg, word(0), size_class, home_for(world, key.hash), slot, now)
        t8 = word(cycles())
        if (status == OK) & (page >= 0):
            nbytes = world.page_bytes
            publish(world, seg, slot, epoch, word(1), world.heap_base + page * nbytes, nbytes, access)
            t9 = word(cycles())
            seen = commit_state(header_at(world, seg, slot), epoch)
            t10 = word(cycles())
            announce(world, seg, STORED, slot, epoch)
            t11 = word(cycles())
            leave(world, seg, phase)
            t12 = word(cycles())
            removed = remove_slot(world, word(0), slot, epoch, REMOVED)
            t13 = word(cycles())
            if (seen == state_word(WRITING, epoch)) & (removed == OK):
                failed = word(0)
            clocks = (t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13)
            for i in tl.static_range(COUNT):
                store64(at + i * WORD_BYTES, clocks[i + 1] - clocks[i], "relaxed")
    return failed


@triton.jit(do_not_specialize=["first_key"])  # type: ignore[untyped-decorator]
def put_in_steps_kernel(table: tl.int64, first_key: tl.int64, rounds: tl.int64, out: tl.int64) -> None:
    """Put and remove `rounds` times in each CTA. `out`: per CTA, one word per step of each round, then TOTALS."""
    world = open_world(table)
    me = tl.program_id(0).to(tl.int64)
    mine = out + me * (rounds * COUNT + TOTALS) * WORD_BYTES
    failed = word(0)
    start_ns = word(nanoseconds())
    start = word(cycles())
    i = word(0)
    while i < rounds:
        at = mine + i * COUNT * WORD_BYTES
        failed += put_in_steps(world, first_key + me * rounds + i, start_ns, at)
        i += 1
    at = mine + rounds * COUNT * WORD_BYTES
    store64(at + FAILED * WORD_BYTES, failed, "relaxed")
    store64(at + ALL_CYCLES * WORD_BYTES, word(cycles()) - start, "relaxed")
    store64(at + ALL_NS * WORD_BYTES, word(nanoseconds()) - start_ns, "relaxed")

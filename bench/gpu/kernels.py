"""Kernels that are measured beside NanoKV's own, and kernels that make room for the next lap."""

from typing import Any

import triton
import triton.language as tl

from nanokv.bench.gpu.clock import cycles, nanoseconds
from nanokv.device.kernels.shares import copy_tile
from nanokv.device.memory.triton import copy_bytes, mixed, pointer64, select, store64, table64, word
from nanokv.device.protocol.extent import class_of, give, take
from nanokv.device.protocol.freelist import pop, push
from nanokv.device.protocol.get import lookup, read
from nanokv.device.protocol.header import give_slot, take_slot
from nanokv.device.protocol.put import begin, finish
from nanokv.device.protocol.remove import remove, remove_slot
from nanokv.device.protocol.request import REQUEST_BYTES, key_in
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Found, Key
from nanokv.device.segment.layout import REMOVED, WORD_BYTES
from nanokv.device.segment.world_table import World, open_world, segment

# the words that a CTA of `produce_kernel` writes: three per put (BEGIN, ...), then FAILED and so on
BEGIN, FINISH, REMOVE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
STEPS = tl.constexpr(3)
FAILED, ALL_CYCLES, ALL_NS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
TOTALS = tl.constexpr(3)

REST_WORDS = tl.constexpr(256)
EXTENTS, SLOTS, LIST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # the kinds of `take_and_give_kernel`


@triton.jit  # type: ignore[untyped-decorator]
def remove_many_kernel(table: tl.int64, requests: tl.int64, count: tl.int64, statuses: tl.int64) -> None:
    """Remove the keys of `count` requests, one per CTA at a time."""
    world = open_world(table)
    at = tl.program_id(0).to(tl.int64)
    while at < count:
        request = requests + at * REQUEST_BYTES
        status, _ = remove(world, key_in(request))
        store64(statuses + at * WORD_BYTES, status, "relaxed")
        at += tl.num_programs(0)


@triton.jit  # type: ignore[untyped-decorator]
def copy_flat_kernel(dst: tl.int64, src: tl.int64, nbytes: tl.int64, tile_words: tl.constexpr) -> None:
    """Copy bytes in equal runs of whole tiles, one run per CTA, as put_many shares its tiles, without the protocol.

    The addresses are multiples of 16, `nbytes` of 8.
    """
    tile_bytes: tl.constexpr = tile_words * WORD_BYTES
    tiles = nbytes // tile_bytes
    tile = tl.program_id(0) * tiles // tl.num_programs(0)
    end = (tl.program_id(0) + 1) * tiles // tl.num_programs(0)
    while tile < end:
        copy_tile(dst + tile * tile_bytes, src + tile * tile_bytes, tile_words)
        tile += 1
    at = tiles * tile_words + tl.program_id(0) * REST_WORDS  # the rest, in small steps: few registers
    while at < nbytes // WORD_BYTES:
        word_at = at + tl.arange(0, REST_WORDS)
        mask = word_at < nbytes // WORD_BYTES
        tl.store(pointer64(dst) + word_at, tl.load(pointer64(src) + word_at, mask=mask), mask=mask)
        at += tl.num_programs(0) * REST_WORDS


@triton.jit(do_not_specialize=["first_key"])  # type: ignore[untyped-decorator]
def produce_kernel(
    table: tl.int64, first_key: tl.int64, rounds: tl.int64, sizes: tl.int64, n_sizes: tl.int64, out: tl.int64
) -> None:
    """Put objects without writing their payload, and remove each at once: `rounds` times in each CTA.

    `sizes`: n_sizes words; CTA c takes the (c % n_sizes)-th. `out`: per CTA, STEPS words per round: the cycles of begin
    (slot, key, pages, header), of finish (commit, announce) and of remove; then TOTALS words.
    """
    world = open_world(table)
    me = tl.program_id(0).to(tl.int64)
    mine = out + me * (rounds * STEPS + TOTALS) * WORD_BYTES
    nbytes = table64(sizes + (me % n_sizes) * WORD_BYTES)
    failed = word(0)
    start_ns = word(nanoseconds())
    start = word(cycles())
    i = word(0)
    while i < rounds:
        n = first_key + me * rounds + i
        t0 = word(cycles())
        status, begun = begin(world, word(0), Key(mixed(n, 0), mixed(n, 1)), nbytes, word(0), start_ns)
        t1 = word(cycles())
        t2 = t1
        t3 = t1
        if status == OK:
            status = finish(world, word(0), begun)
            t2 = word(cycles())
            removed = remove_slot(world, word(0), begun.slot, begun.epoch, REMOVED)
            t3 = word(cycles())
            status = select(status == OK, removed, status)
        failed += select(status == OK, word(0), word(1))
        at = mine + i * STEPS * WORD_BYTES
        store64(at + BEGIN * WORD_BYTES, t1 - t0, "relaxed")
        store64(at + FINISH * WORD_BYTES, t2 - t1, "relaxed")
        store64(at + REMOVE * WORD_BYTES, t3 - t2, "relaxed")
        i += 1
    at = mine + rounds * STEPS * WORD_BYTES
    store64(at + FAILED * WORD_BYTES, failed, "relaxed")
    store64(at + ALL_CYCLES * WORD_BYTES, word(cycles()) - start, "relaxed")
    store64(at + ALL_NS * WORD_BYTES, word(nanoseconds()) - start_ns, "relaxed")


@triton.jit(do_not_specialize=["first_key"])  # type: ignore[untyped-decorator]
def put_and_get_kernel(
    table: tl.int64,
    first_key: tl.int64,
    rounds: tl.int64,
    nbytes: tl.int64,
    moved: tl.int64,
    sources: tl.int64,
    n_sources: tl.int64,
    targets: tl.int64,
    out: tl.int64,
) -> None:
    """Put objects of `nbytes`, get each at once, and remove it: `rounds` times in each CTA, by this CTA alone.

    `moved`: the bytes of them that are copied, 0 for the protocol alone. `sources`: n_sources times nbytes, in turn.
    `targets`: nbytes per CTA. `out`: as in `produce_kernel`, with the cycles of the put, the get and the removal.
    """
    world = open_world(table)
    me = tl.program_id(0).to(tl.int64)
    mine = out + me * (rounds * STEPS + TOTALS) * WORD_BYTES
    target = targets + me * nbytes
    failed = word(0)
    start_ns = word(nanoseconds())
    start = word(cycles())
    i = word(0)
    while i < rounds:
        n = first_key + me * rounds + i
        source = sources + (me * rounds + i) % n_sources * nbytes
        key = Key(mixed(n, 0), mixed(n, 1))
        t0 = word(cycles())
        status, begun = begin(world, word(0), key, nbytes, word(0), start_ns)
        if status == OK:
            copy_bytes(segment(world, word(0)) + begun.payload, source, moved)
            status = finish(world, word(0), begun)
        t1 = word(cycles())
        found, place = lookup(world, key)
        if found == OK:
            part = Found(place.owner, place.slot, place.epoch, place.payload, moved)
            found = read(world, part, key, target, start_ns)
        t2 = word(cycles())
        removed = word(OK)
        if status == OK:
            removed = remove_slot(world, word(0), begun.slot, begun.epoch, REMOVED)
        t3 = word(cycles())
        failed += select((status == OK) & (found == OK) & (removed == OK), word(0), word(1))
        row = mine + i * STEPS * WORD_BYTES
        store64(row, t1 - t0, "relaxed")
        store64(row + WORD_BYTES, t2 - t1, "relaxed")
        store64(row + 2 * WORD_BYTES, t3 - t2, "relaxed")
        i += 1
    at = mine + rounds * STEPS * WORD_BYTES
    store64(at + FAILED * WORD_BYTES, failed, "relaxed")
    store64(at + ALL_CYCLES * WORD_BYTES, word(cycles()) - start, "relaxed")
    store64(at + ALL_NS * WORD_BYTES, word(nanoseconds()) - start_ns, "relaxed")


@triton.jit(do_not_specialize=["first_key", "count"])  # type: ignore[untyped-decorator]
def put_storm_kernel(
    table: tl.int64, owner: tl.int64, first_key: tl.int64, count: tl.int64, nbytes: tl.int64, out: tl.int64
) -> None:
    """Put `count` objects without payload as fast as all CTAs can. `out`: per CTA, how many puts were not OK."""
    world = open_world(table)
    me = tl.program_id(0).to(tl.int64)
    now = word(nanoseconds())
    failed = word(0)
    n = me
    while n < count:
        key = first_key + n
        status, begun = begin(world, owner, Key(mixed(key, 0), mixed(key, 1)), nbytes, word(0), now)
        if status == OK:
            status = finish(world, owner, begun)
        failed += select(status == OK, word(0), word(1))
        n += tl.num_programs(0)
    store64(out + me * WORD_BYTES, failed, "relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def fill_list_kernel(head: tl.int64, links: tl.int64, count: tl.int64) -> None:
    """Push the nodes 0 to `count` - 1 on a list."""
    node = word(0)
    while node < count:
        push(head, links, node, head + WORD_BYTES)
        node += 1


@triton.jit  # type: ignore[untyped-decorator]
def take_and_give_one(
    world: World,
    nbytes: tl.int64,
    head: tl.int64,
    links: tl.int64,
    count: tl.int64,
    home: tl.int64,
    what: tl.constexpr,
) -> Any:
    """Take one and give it back: 0, or 1 if there was none. `home`: in the place of a key's hash."""
    seg = segment(world, word(0))
    node = word(-1)
    if what == EXTENTS:
        size_class = class_of(world, (nbytes + world.page_bytes - 1) // world.page_bytes)
        node = take(world, seg, size_class, home, word(0))
        if node >= 0:
            give(world, seg, node, size_class)
    elif what == SLOTS:
        node, _ = take_slot(world, seg, home)
        if node >= 0:
            give_slot(world, seg, node)
    else:
        node = pop(head, links, count, head + WORD_BYTES)
        if node >= 0:
            push(head, links, node, head + WORD_BYTES)
    return select(node >= 0, word(0), word(1))


@triton.jit  # type: ignore[untyped-decorator]
def take_and_give_kernel(
    table: tl.int64,
    rounds: tl.int64,
    sizes: tl.int64,
    n_sizes: tl.int64,
    head: tl.int64,
    links: tl.int64,
    count: tl.int64,
    out: tl.int64,
    what: tl.constexpr,
) -> None:
    """Take an extent, a header slot, or a node of the list at `head`, and give it back, `rounds` times in each CTA.

    `sizes`: as in `produce_kernel`. `out`: one word per CTA: how often there was none.
    """
    world = open_world(table)
    me = tl.program_id(0).to(tl.int64)
    nbytes = table64(sizes + (me % n_sizes) * WORD_BYTES)
    failed = word(0)
    i = word(0)
    while i < rounds:
        failed += take_and_give_one(world, nbytes, head, links, count, mixed(i, me), what)
        i += 1
    store64(out + me * WORD_BYTES, failed, "relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def put_stamped_kernel(
    table: tl.int64, owner: tl.int64, request: tl.int64, src: tl.int64, nbytes: tl.int64, out: tl.int64
) -> None:
    """Put one small object by one CTA, and note the time right before its commit.

    `request`: two words, the key. `out`: two words, the status and the time in ns.
    """
    world = open_world(table)
    now = word(nanoseconds())
    key = Key(table64(request), table64(request + WORD_BYTES))
    status, begun = begin(world, owner, key, nbytes, word(0), now)
    if status == OK:
        copy_bytes(segment(world, owner) + begun.payload, src, nbytes)
        now = word(nanoseconds())
        status = finish(world, owner, begun)
    store64(out + WORD_BYTES, now, "relaxed")
    store64(out, status, "relaxed")

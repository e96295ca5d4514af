"""The rounds of a get over NIXL, each call without Python in between.

NIXL's C interface (src/bindings/rust/wrapper.h of ai-dynamo/nixl, 1.5.1) takes 3 us for a read of one line from another
process of the host; its Python interface takes 5.

Without a progress thread UCX lets one thread at a time into an agent, and NIXL's own modes of synchronisation do not
see to that (1.5.1: SIGSEGV in `uct_tcp_iface_progress`). So each call takes the agent's lock, a word, for as long as it
takes: while a thread waits for a slow peer others come in between.

`get_into` is all of a get, from the caller's key to his tensor; it lets go of the interpreter's lock meanwhile.

A caller passes the NIXL record of its own thread. A transfer that does not end in time stays in the record: its memory
must be kept until `look_at` says so.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.fetches import fetch_at, is_described_so
from nanokv.device.fabric.judging import UNFIT
from nanokv.device.fabric.lines import field
from nanokv.device.fabric.locations import recall
from nanokv.device.fabric.records import (
    BROKEN,
    ENDED,
    F_DST,
    F_HEADER,
    F_KEY_CHECK,
    F_KEY_HASH,
    F_STATUS,
    F_WHAT,
    LATE,
    N_ADD,
    N_AGENT,
    N_CLEAR,
    N_CREATE,
    N_DESTROY,
    N_HERE,
    N_HERE_DEVICE,
    N_LOCK,
    N_OPTIONS,
    N_PEER,
    N_POST,
    N_RELEASE,
    N_REQUEST,
    N_STATUS,
    N_THERE,
    N_THERE_DEVICE,
    N_TIMEOUT,
    N_TRANSFERS,
    ROW_BYTES,
    ROW_HERE,
    ROW_NBYTES,
    ROW_THERE,
    W_BASE,
    W_ROWS,
)
from nanokv.device.fabric.rounds import (
    ask_again,
    ask_buckets,
    ask_bytes,
    ask_headers,
    ask_known,
    take_again,
    take_descriptors,
    take_headers,
    take_known,
)
from nanokv.device.memory.native_copy import memcpy
from nanokv.device.memory.triton import cas64, store64, word
from nanokv.device.native.c_calls import call1, call2, call3, call4, call7, give_way
from nanokv.device.native.clock import monotonic_ns
from nanokv.device.native.futex import relax
from nanokv.device.native.keys import digest_of
from nanokv.device.native.python_objects import release_lock, take_lock
from nanokv.device.native.tensors import described
from nanokv.device.protocol.status import MISS, OK, SIZE
from nanokv.device.segment.host_records import NOT_ALIKE
from nanokv.device.segment.layout import H_BYTES
from nanokv.device.segment.world_table import World

READ = tl.constexpr(0)  # nixl_capi_xfer_op_t
SUCCESS = tl.constexpr(0)  # nixl_capi_status_t
IN_PROGRESS = tl.constexpr(1)
LOOKS_A_TURN = tl.constexpr(32)  #: at a transfer, before other threads of this processor get a turn


@triton.jit
def lock(at: tl.int64) -> None:
    """Take a lock, a word."""
    tries = word(0)
    while cas64(at, 0, 1, "acquire") != 0:  # acquire: what the last holder did in NIXL
        relax()
        tries += 1
        if tries % LOOKS_A_TURN == 0:
            give_way()


@triton.jit
def unlock(at: tl.int64) -> None:
    """Give it back."""
    store64(at, word(0), "release")


@triton.jit
def begin(nixl: tl.int64, rows: tl.int64, count: tl.int64) -> Any:
    """Begin to read `count` ROWs: NIXL's status. The request is in the record, or 0."""
    here, there, add = field(nixl, N_HERE), field(nixl, N_THERE), field(nixl, N_ADD)
    store64(nixl + N_REQUEST, word(0), "relaxed")
    call1(field(nixl, N_CLEAR), here)
    call1(field(nixl, N_CLEAR), there)
    i = word(0)
    while i < count:
        row = rows + i * ROW_BYTES
        nbytes = field(row, ROW_NBYTES)
        call4(add, here, field(row, ROW_HERE), nbytes, field(nixl, N_HERE_DEVICE))
        call4(add, there, field(row, ROW_THERE), nbytes, field(nixl, N_THERE_DEVICE))
        i += 1
    agent, options, request = field(nixl, N_AGENT), field(nixl, N_OPTIONS), nixl + N_REQUEST
    lock(field(nixl, N_LOCK))
    status = call7(field(nixl, N_CREATE), agent, word(READ), here, there, field(nixl, N_PEER), request, options)
    if status == SUCCESS:
        store64(nixl + N_TRANSFERS, field(nixl, N_TRANSFERS) + 1, "relaxed")
        status = call3(field(nixl, N_POST), agent, field(nixl, N_REQUEST), word(0))
    unlock(field(nixl, N_LOCK))
    return status


@triton.jit
def let_go(nixl: tl.int64) -> None:
    """Free a request that has ended."""
    request = field(nixl, N_REQUEST)
    if request != 0:
        lock(field(nixl, N_LOCK))
        call2(field(nixl, N_RELEASE), field(nixl, N_AGENT), request)
        call1(field(nixl, N_DESTROY), request)
        unlock(field(nixl, N_LOCK))
        store64(nixl + N_REQUEST, word(0), "relaxed")


@triton.jit
def read_rows(nixl: tl.int64, rows: tl.int64, count: tl.int64) -> Any:
    """Read ROWs: ENDED, BROKEN or LATE."""
    answer = word(ENDED)
    if count > 0:
        status = begin(nixl, rows, count)
        if status == IN_PROGRESS:
            status = finish(nixl)
        if status == IN_PROGRESS:
            answer = word(LATE)
        else:
            let_go(nixl)
            if status != SUCCESS:
                answer = word(BROKEN)
    return answer


@triton.jit
def finish(nixl: tl.int64) -> Any:
    """Wait for the request of the record, for as long as it may take: NIXL's status."""
    agent, request, look = field(nixl, N_AGENT), field(nixl, N_REQUEST), field(nixl, N_STATUS)
    end = monotonic_ns() + field(nixl, N_TIMEOUT)
    status = word(IN_PROGRESS)
    looks = word(0)
    while status == IN_PROGRESS:
        lock(field(nixl, N_LOCK))
        status = call2(look, agent, request)
        unlock(field(nixl, N_LOCK))
        relax()
        looks += 1
        if looks % LOOKS_A_TURN == 0:
            give_way()
            if monotonic_ns() > end:
                return status
    return status


@triton.jit
def look_at(nixl: tl.int64, request: tl.int64, time: tl.int64) -> Any:
    """NIXL's status of a request, as soon as it has ended, at the latest after `time` ns. It is let go of then.

    The caller has the agent's lock. Over TCP each look moves some bytes, so several in a row pay.
    """
    agent, look = field(nixl, N_AGENT), field(nixl, N_STATUS)
    end = monotonic_ns() + time
    status = call2(look, agent, request)
    looks = word(1)
    while (status == IN_PROGRESS) and (monotonic_ns() < end):
        status = call2(look, agent, request)
        looks += 1
        if looks % LOOKS_A_TURN == 0:
            give_way()
    if status != IN_PROGRESS:
        call2(field(nixl, N_RELEASE), agent, request)
        call1(field(nixl, N_DESTROY), request)
    return status


@triton.jit
def locate(world: World, nixl: tl.int64, work: tl.int64, count: tl.int64, candidates: tl.int64) -> Any:
    """The first two rounds: where the object of each FETCH lies. ENDED, BROKEN or LATE."""
    rows = field(work, W_ROWS)
    answer = read_rows(nixl, rows, ask_buckets(world, work, count))
    if answer == ENDED:
        asked, found = ask_headers(world, work, count, candidates)
        answer = read_rows(nixl, rows, asked)
        if answer == ENDED:
            take_headers(world, work, candidates, found)
    return answer


@triton.jit
def look(world: World, nixl: tl.int64, work: tl.int64, count: tl.int64) -> Any:
    """One round: whether the object of each FETCH still lies where it is known to. ENDED, BROKEN or LATE."""
    answer = read_rows(nixl, field(work, W_ROWS), ask_known(world, work, count))
    if answer == ENDED:
        take_known(work, count)
    return answer


@triton.jit
def fetch(world: World, nixl: tl.int64, work: tl.int64, count: tl.int64) -> Any:
    """The last two rounds, for each FETCH that is OK: (ENDED, BROKEN or LATE; how many are OK)."""
    rows, good = field(work, W_ROWS), word(0)
    asked, _ = ask_bytes(world, work, count)
    answer = read_rows(nixl, rows, asked)
    if answer == ENDED:
        take_descriptors(work, count)
        answer = read_rows(nixl, rows, ask_again(world, work, count))
        if answer == ENDED:
            good = take_again(world, work, count)
    return answer, good


@triton.jit
def get_one(world: World, nixl: tl.int64, work: tl.int64, candidates: tl.int64, most: tl.int64) -> Any:
    """The rounds of a single FETCH, without a way back to the caller between them.

    Returns (ENDED, BROKEN or LATE; 1 if all four were made, 0 if there is no object, or one of more than `most` bytes).
    """
    whole = word(0)
    answer = locate(world, nixl, work, word(1), candidates)
    if answer == ENDED:
        one = fetch_at(work, word(0))
        if (field(one, F_STATUS) == OK) & (field(one, F_HEADER + H_BYTES) <= most):
            answer, _ = fetch(world, nixl, work, word(1))
            whole = word(1)
    return answer, whole


@triton.jit
def get_into(
    key: tl.int64,
    tensor: tl.int64,
    world: World,
    nixl: tl.int64,
    work: tl.int64,
    candidates: tl.int64,
    most: tl.int64,
    table: tl.int64,
    mask: tl.int64,
    number: tl.int64,
    hashing: tl.int64,
    look: tl.int64,
) -> Any:
    """Read an object of a tensor's dtype and shape into it: (ENDED, BROKEN or LATE; a Status).

    UNFIT, and nothing was read: Python must look at key and tensor, or it has more than `most` bytes. The object is
    looked for first where the table of locations says, if that has the world as `number`. The bytes come to the room of
    the WORK record, which is nobody else's, and are copied from there: what is given up may still write there.

    Args:
        hashing, look: addresses of a HASHING and a TENSOR record.
    """
    known, digest = digest_of(key, hashing)
    target, nbytes, descriptor = described(tensor, look)
    if (not known) | (target == NOT_ALIKE) | (nbytes > most):
        return word(ENDED), word(UNFIT)
    lock = release_lock()
    one, answer, status = fetch_at(work, word(0)), word(ENDED), word(MISS)
    store64(one + F_KEY_HASH, digest.hash, "relaxed")
    store64(one + F_KEY_CHECK, digest.check, "relaxed")
    store64(one + F_DST, word(0), "relaxed")
    if recall(world, table, mask, work, word(1), number) == 1:
        if field(one, F_HEADER + H_BYTES) == nbytes:
            answer, _ = fetch(world, nixl, work, word(1))
            status = field(one, F_STATUS)
    if (answer == ENDED) & (status != OK):
        store64(one + F_DST, word(0), "relaxed")
        answer, _ = get_one(world, nixl, work, candidates, most)
        status = field(one, F_STATUS)
    if (answer == ENDED) & (status == OK):
        if (field(one, F_HEADER + H_BYTES) == nbytes) & is_described_so(one + F_WHAT, descriptor):
            memcpy(target, field(work, W_BASE), nbytes)
        else:
            status = word(SIZE)
    take_lock(lock)
    return answer, status

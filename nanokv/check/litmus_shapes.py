"""Litmus tests: two threads, a few words, and an outcome that must never be seen, because the protocol relies on that.

Each shape is written once, over the memory vocabulary: it runs on a GPU (two CTAs), natively (two threads) and under
the simulated machine. A thread does many instances, each on words of its own, a line apart; before each instance the
two threads meet through relaxed additions, which order nothing.

    message passing   a payload word, then a flag by CAS with release; flag with acquire, then the payload.
                      Forbidden: the flag is there and the payload is not. `header.commit_state` and every reader.
    store buffering   each writes its word, passes one turnstile, and looks at the other's word.
                      Forbidden: both miss each other. `claim.claim_at`.
    validated read    a writer kills, rewrites two words and commits; a reader acquires the state, reads both words,
                      and validates by a read-modify-write. Forbidden: valid, and a word of the next object, or two
                      different ones. `header.still_ready`.

Why they are forbidden: C11 and PTX, release and acquire through a chain of read-modify-writes, and RMW atomicity;
validation as Boehm (2012). The `weak` variants leave an ordering out, and may show the outcome: the last one validates
by a relaxed load, as a seqlock must not.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, store64, word
from nanokv.device.segment.record import LINE

LINE_BYTES = tl.constexpr(LINE)
WORDS = tl.constexpr(4)  # lines per instance: X, Y, a flag or state, and the words that the second thread saw
SEEN = tl.constexpr(3 * LINE)
SECOND_SEEN = tl.constexpr(3 * LINE + 8)
FLAG = tl.constexpr(2 * LINE)
PATIENCE = tl.constexpr(1 << 14)  # looks for the other thread, which may have no core now, before going on without it


@triton.jit
def meet(gate: tl.int64, i: tl.int64) -> None:
    """Wait until both threads have come to instance `i`; orders nothing."""
    add64(gate, 1, "relaxed")
    waited = word(0)
    while (add64(gate, 0, "relaxed") < 2 * (i + 1)) & (waited < PATIENCE):
        waited += 1


@triton.jit
def message_passing(at: tl.int64, thread: tl.int64) -> None:
    if thread == 0:
        store64(at, word(1), "relaxed")
        cas64(at + FLAG, 0, 1, "release")
    else:
        store64(at + SEEN, load64(at + FLAG, "acquire"), "relaxed")
        store64(at + SECOND_SEEN, load64(at, "relaxed"), "relaxed")


@triton.jit
def message_passing_weak(at: tl.int64, thread: tl.int64) -> None:
    if thread == 0:
        store64(at, word(1), "relaxed")
        cas64(at + FLAG, 0, 1, "relaxed")
    else:
        store64(at + SEEN, load64(at + FLAG, "relaxed"), "relaxed")
        store64(at + SECOND_SEEN, load64(at, "relaxed"), "relaxed")


@triton.jit
def store_buffering(at: tl.int64, thread: tl.int64) -> None:
    store64(at + thread * LINE_BYTES, word(1), "relaxed")
    add64(at + FLAG, 1, "acq_rel")
    store64(at + SEEN + thread * 8, load64(at + (1 - thread) * LINE_BYTES, "relaxed"), "relaxed")


@triton.jit
def store_buffering_weak(at: tl.int64, thread: tl.int64) -> None:
    store64(at + thread * LINE_BYTES, word(1), "relaxed")
    store64(at + SEEN + thread * 8, load64(at + (1 - thread) * LINE_BYTES, "relaxed"), "relaxed")


@triton.jit
def validated_read(at: tl.int64, thread: tl.int64) -> None:
    if thread == 0:
        cas64(at + FLAG, 0, 1, "acquire")
        store64(at, word(1), "relaxed")
        store64(at + LINE_BYTES, word(1), "relaxed")
        cas64(at + FLAG, 1, 2, "release")
    else:
        before = load64(at + FLAG, "acquire")
        one = load64(at, "relaxed")
        two = load64(at + LINE_BYTES, "relaxed")
        valid = (add64(at + FLAG, 0, "release") == before) & (before != 1)
        store64(at + SEEN, word(1) * valid, "relaxed")
        store64(at + SECOND_SEEN, before + 4 * one + 8 * two, "relaxed")


@triton.jit
def validated_read_weak(at: tl.int64, thread: tl.int64) -> None:
    if thread == 0:
        cas64(at + FLAG, 0, 1, "acquire")
        store64(at, word(1), "relaxed")
        store64(at + LINE_BYTES, word(1), "relaxed")
        cas64(at + FLAG, 1, 2, "release")
    else:
        before = load64(at + FLAG, "acquire")
        one = load64(at, "relaxed")
        two = load64(at + LINE_BYTES, "relaxed")
        valid = (load64(at + FLAG, "relaxed") == before) & (before != 1)
        store64(at + SEEN, word(1) * valid, "relaxed")
        store64(at + SECOND_SEEN, before + 4 * one + 8 * two, "relaxed")


@triton.jit
def run_shape(shape: tl.constexpr, thread: tl.int64, base: tl.int64, count: tl.int64, gate: tl.int64) -> Any:
    """Do `count` instances of a shape as thread 0 or 1. `base`: zeroed, WORDS lines per instance. Returns `count`."""
    i = word(0)
    while i < count:
        at = base + i * (WORDS * LINE_BYTES)
        meet(gate, i)
        if shape == 0:
            message_passing(at, thread)
        elif shape == 1:
            message_passing_weak(at, thread)
        elif shape == 2:
            store_buffering(at, thread)
        elif shape == 3:
            store_buffering_weak(at, thread)
        elif shape == 4:
            validated_read(at, thread)
        else:
            validated_read_weak(at, thread)
        i += 1
    return i


@triton.jit
def litmus_kernel(base: tl.int64, count: tl.int64, gate: tl.int64, shape: tl.constexpr) -> None:
    """CTAs in pairs: each is one thread. `gate`: zeroed, one line per pair; each pair does `count` instances."""
    pair = word(tl.program_id(0) // 2)
    run_shape(
        shape, word(tl.program_id(0) % 2), base + pair * count * (WORDS * LINE_BYTES), count, gate + pair * LINE_BYTES
    )

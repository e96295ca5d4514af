"""Tickets: many CTAs work on one object, and one of them begins it, one ends it.

A ticket is a few words of the launching rank's own memory, zero before the launch. Whoever comes first claims it, does
what is done once (begins an object, or looks one up) and shares the answer; the others wait for the answer. Each CTA
arrives when it has done its part, and the last one ends the object and clears the ticket: the next launch, or the next
replay of a graph, finds it as it was.

Guarantees
- One CTA is first, one is last; who is not first sees the whole answer, and the last one all that the others stored.
- Nobody waits for a CTA that has not begun to run: whoever claims goes on by itself. So no order of launch is assumed,
  and the grid may be larger than what the GPU holds at a time.
- The waiting is bounded. Whoever gives up spoils the ticket, and the last one then undoes the object.

Why the orderings suffice: the answer is published by a release of STAGE and taken by an acquire; arriving acquires and
releases, so the chain of arrivals hands on every part. The claim itself orders nothing.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, store64, word
from nanokv.device.segment.layout import WORD_BYTES, Field, Record

TICKET = Record(
    "Ticket",
    8,
    [
        Field("stage", "<i8", "0: nobody came, 1: claimed, 2: the answer is there"),
        Field("arrivals", "<i8", "CTAs that have done their part"),
        Field("spoiled", "<i8", "1: somebody did not wait for the answer, and has not done its part"),
        Field("sum", "<i8", "over the payload, of all parts (`memory.checksum_bytes`)"),
        Field("answer", "<i8", "what the first one shares", repeat=6),
    ],
)
TICKET_BYTES = tl.constexpr(TICKET.size)
T_STAGE = TICKET.at("stage")
T_ARRIVALS = TICKET.at("arrivals")
T_SPOILED = TICKET.at("spoiled")
T_SUM = TICKET.at("sum")
T_ANSWER = TICKET.at("answer")

CLAIMED = tl.constexpr(1)
SHARED = tl.constexpr(2)
PATIENCE = tl.constexpr(1 << 22)  # looks for an answer that takes microseconds


@triton.jit
def is_first(ticket: tl.int64) -> Any:
    """True for one of all that come: it must `share` an answer."""
    return cas64(ticket + T_STAGE, 0, CLAIMED, "relaxed") == 0


@triton.jit
def share(ticket: tl.int64, a: tl.int64, b: tl.int64, c: tl.int64, d: tl.int64, e: tl.int64, f: tl.int64) -> None:
    """Publish the answer: six words."""
    store64(ticket + T_ANSWER, a, "relaxed")
    store64(ticket + T_ANSWER + 1 * WORD_BYTES, b, "relaxed")
    store64(ticket + T_ANSWER + 2 * WORD_BYTES, c, "relaxed")
    store64(ticket + T_ANSWER + 3 * WORD_BYTES, d, "relaxed")
    store64(ticket + T_ANSWER + 4 * WORD_BYTES, e, "relaxed")
    store64(ticket + T_ANSWER + 5 * WORD_BYTES, f, "relaxed")
    store64(ticket + T_STAGE, word(SHARED), "release")


@triton.jit
def await_answer(ticket: tl.int64) -> Any:
    """Wait until the answer is there. False, and the ticket is spoiled, if it does not come."""
    tries = word(0)
    stage = load64(ticket + T_STAGE, "acquire")
    while (stage != SHARED) & (tries < PATIENCE):
        stage = load64(ticket + T_STAGE, "acquire")
        tries += 1
    if stage != SHARED:
        store64(ticket + T_SPOILED, word(1), "relaxed")
    return stage == SHARED


@triton.jit
def shared(ticket: tl.int64, i: tl.int64) -> Any:
    """The i-th word of the answer, after `share` or `await_answer`."""
    return load64(ticket + T_ANSWER + i * WORD_BYTES, "relaxed")


@triton.jit
def add_part(ticket: tl.int64, part: tl.int64) -> None:
    """Add one's part of the sum over the payload, before one arrives."""
    add64(ticket + T_SUM, part, "relaxed")


@triton.jit
def whole_sum(ticket: tl.int64) -> Any:
    """For the last one: the sum of all parts."""
    return load64(ticket + T_SUM, "relaxed")


@triton.jit
def is_last(ticket: tl.int64, parts: tl.int64) -> Any:
    """Arrive, with one's part done; True for the last of `parts`, which has all that the others stored."""
    return add64(ticket + T_ARRIVALS, 1, "acq_rel") == parts - 1


@triton.jit
def is_spoiled(ticket: tl.int64) -> Any:
    """For the last one: whether some part was not done."""
    return load64(ticket + T_SPOILED, "relaxed") != 0


@triton.jit
def clear(ticket: tl.int64) -> None:
    """For the last one: as it was before the launch. The end of the launch makes it visible to the next."""
    store64(ticket + T_ARRIVALS, word(0), "relaxed")
    store64(ticket + T_SPOILED, word(0), "relaxed")
    store64(ticket + T_SUM, word(0), "relaxed")
    store64(ticket + T_STAGE, word(0), "relaxed")

"""Tickets: many CTAs work on one object; one of them begins it, and one ends it.

A ticket is a few words of the launching rank's own memory, zero before the first launch. The first CTA claims it, does
the step that is done once (begins an object, or looks one up) and shares the answer; the others wait for the answer.
Each CTA arrives when it has done its part. The last one ends the object and clears the ticket for the next launch, or
the next replay of a graph: all words except the answer, which nobody reads before the next first CTA has written it.

Source: the last CTA finishes, as in CUDA's sample threadFenceReduction; the first one begins, as in pthread_once.

Guarantees
- One CTA is first, one is last. Every other CTA sees the whole answer of the first, and the last one sees everything
  that the others stored.
- No CTA waits for one that has not begun to run: the CTA that claims goes on by itself. So no order of CTAs is assumed,
  and the grid may be larger than the number of CTAs that the GPU runs at a time.
- The wait is bounded. A CTA that gives up spoils the ticket, and the last one then undoes the object.
- A CTA that does the only part is first and last without an atomic. Who may not know the number of parts yet claims.

Why the orderings suffice: the first CTA publishes the answer by a release of STAGE, and the others acquire it. Arriving
acquires and releases, so the chain of arrivals hands every part on. The claim itself orders nothing.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, store64, word
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.record import Field, Record

TICKET = Record(
    "Ticket",
    8,
    [
        Field("stage", "<i8", "0: no CTA has come, 1: one has claimed it, 2: the answer is there"),
        Field("arrivals", "<i8", "CTAs that have done their part"),
        Field("spoiled", "<i8", "1: some CTA gave up its wait for the answer, and has not done its part"),
        Field("sum", "<i8", "the sum over the payload, of all parts (`memory.checksum_bytes`)"),
        Field("answer", "<i8", "the words that the first CTA shares; they stay after the launch", repeat=6),
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
PATIENCE = tl.constexpr(1 << 22)  # looks at most for an answer that takes microseconds


@triton.jit
def is_first(ticket: tl.int64, parts: tl.int64) -> Any:
    """True for exactly one of `parts` CTAs, which must `share` an answer."""
    first = parts == 1
    if parts > 1:
        first = cas64(ticket + T_STAGE, 0, CLAIMED, "relaxed") == 0  # relaxed: the claim hands nothing over
    return first


@triton.jit
def share(
    ticket: tl.int64,
    parts: tl.int64,
    a: tl.int64,
    b: tl.int64,
    c: tl.int64,
    d: tl.int64,
    e: tl.int64,
    f: tl.int64,
) -> None:
    """Publish the answer, six words, to the other CTAs of `parts`, if there are any."""
    if parts > 1:
        store64(ticket + T_ANSWER, a, "relaxed")
        store64(ticket + T_ANSWER + 1 * WORD_BYTES, b, "relaxed")
        store64(ticket + T_ANSWER + 2 * WORD_BYTES, c, "relaxed")
        store64(ticket + T_ANSWER + 3 * WORD_BYTES, d, "relaxed")
        store64(ticket + T_ANSWER + 4 * WORD_BYTES, e, "relaxed")
        store64(ticket + T_ANSWER + 5 * WORD_BYTES, f, "relaxed")
        store64(ticket + T_STAGE, word(SHARED), "release")  # release: the answer (scenario put-parts)


@triton.jit
def await_answer(ticket: tl.int64) -> Any:
    """Wait until the answer is there. False if it does not come; the ticket is then spoiled."""
    tries = word(0)
    stage = load64(ticket + T_STAGE, "acquire")  # acquire: the answer (scenario put-parts)
    while (stage != SHARED) & (tries < PATIENCE):
        stage = load64(ticket + T_STAGE, "acquire")  # acquire: the answer (scenario put-parts)
        tries += 1
    if stage != SHARED:
        store64(ticket + T_SPOILED, word(1), "relaxed")  # relaxed, as `add_part`: `is_last` orders it
    return stage == SHARED


@triton.jit
def shared(ticket: tl.int64, i: tl.int64) -> Any:
    """The i-th word of the answer, after `await_answer`, or in the last CTA."""
    return load64(ticket + T_ANSWER + i * WORD_BYTES, "relaxed")


@triton.jit
def add_part(ticket: tl.int64, part: tl.int64) -> None:
    """Add a CTA's part of the sum over the payload, before the CTA arrives."""
    add64(ticket + T_SUM, part, "relaxed")


@triton.jit
def whole_sum(ticket: tl.int64) -> Any:
    """The sum of all parts, for the last CTA."""
    return load64(ticket + T_SUM, "relaxed")


@triton.jit
def is_last(ticket: tl.int64, parts: tl.int64) -> Any:
    """Arrive after the CTA's part. True for the last of `parts` CTAs, which sees everything that the others stored."""
    last = parts == 1
    if parts > 1:
        # acq_rel: each arrival hands on the parts of those before it (scenario put-parts)
        last = add64(ticket + T_ARRIVALS, 1, "acq_rel") == parts - 1
    return last


@triton.jit
def is_spoiled(ticket: tl.int64, parts: tl.int64) -> Any:
    """Whether some part was not done, for the last of `parts` CTAs."""
    spoiled = parts > 1
    if spoiled:
        spoiled = load64(ticket + T_SPOILED, "relaxed") != 0
    return spoiled


@triton.jit
def clear(ticket: tl.int64, parts: tl.int64) -> None:
    """Make all words before the answer zero: the last CTA does. The end of the launch makes that visible to the next.

    One CTA alone has changed none of them, except the sum.
    """
    store64(ticket + T_SUM, word(0), "relaxed")
    if parts > 1:
        store64(ticket + T_ARRIVALS, word(0), "relaxed")
        store64(ticket + T_SPOILED, word(0), "relaxed")
        store64(ticket + T_STAGE, word(0), "relaxed")

"""The look of a poller at a ring in a GPU's memory, in native code: see `RingReader` in `machines.launch`."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.native.c_calls import call1, call4
from nanokv.device.native.clock import monotonic_ns, nap
from nanokv.device.segment.host_records import (
    WATCH_ASKED,
    WATCH_COPY,
    WATCH_END,
    WATCH_HERE,
    WATCH_MOST_PAUSE,
    WATCH_PAUSE,
    WATCH_SEEN,
    WATCH_STREAM,
    WATCH_SYNCHRONIZE,
    WATCH_THERE,
)
from nanokv.device.segment.layout import WORD

OVER = tl.constexpr(0)  #: the time is over, or somebody asks for the end
CHANGED = tl.constexpr(-1)  #: an error of the driver is its number, which is positive


@triton.jit
def watch(box: tl.int64) -> Any:
    """Copy a word of a GPU's memory to the host, again and again, until it is another one: CHANGED; or OVER, or the
    driver's error (WATCH record at `box`)."""
    pause = load64(box + WATCH_PAUSE, "relaxed")
    most = load64(box + WATCH_MOST_PAUSE, "relaxed")
    here = load64(box + WATCH_HERE, "relaxed")
    stream = load64(box + WATCH_STREAM, "relaxed")
    answer = word(OVER)
    more = word(1)
    while more != 0:
        nap(pause)
        pause = select(pause * 2 > most, most, pause * 2)
        there, copy = load64(box + WATCH_THERE, "relaxed"), load64(box + WATCH_COPY, "relaxed")
        answer = call4(copy, here, there, word(WORD), stream)
        if answer == 0:
            answer = call1(load64(box + WATCH_SYNCHRONIZE, "relaxed"), stream)
        if answer == 0:
            if load64(here, "relaxed") != load64(box + WATCH_SEEN, "relaxed"):
                answer = word(CHANGED)
        late = monotonic_ns() >= load64(box + WATCH_END, "relaxed")
        asked = load64(load64(box + WATCH_ASKED, "relaxed"), "relaxed") != 0
        more = select((answer != 0) | late | asked, word(0), word(1))
    return answer

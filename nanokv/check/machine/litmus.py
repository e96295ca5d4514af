"""Litmus tests on the memory of this machine: it never shows a forbidden outcome of `litmus_shapes`.

On a GPU many pairs of CTAs run each shape at once, on a CPU two threads of compiled code. The weak variants tell
whether this machine shows the outcomes that the orderings prevent (x86 shows only the store buffering).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.check.litmus_shapes import WORDS, litmus_kernel, run_shape
from nanokv.check.report import Row
from nanokv.device.machines.native_code import native_function
from nanokv.device.segment.record import LINE

BATCH = 20_480  #: instances of one run
PAIRS = 32  #: of CTAs in one run: few enough to be on a GPU at the same time, enough to keep its memory busy
_LINE_WORDS = LINE // 8

Seen = npt.NDArray[np.int64]
Forbidden = Callable[[Seen, Seen], Any]


def _flag_without_payload(flag: Seen, payload: Seen) -> Any:
    return (flag == 1) & (payload == 0)


def _both_miss(one: Seen, other: Seen) -> Any:
    return (one == 0) & (other == 0)


def _valid_and_wrong(valid: Seen, read: Seen) -> Any:
    state, one, two = read & 3, read >> 2 & 1, read >> 3 & 1
    return (valid == 1) & ((one != two) | (one != (state == 2)))


#: (shape, name, forbidden outcome, its weak variant)
SHAPES: tuple[tuple[int, str, Forbidden, int], ...] = (
    (0, "message passing", _flag_without_payload, 1),
    (2, "store buffering through the turnstile", _both_miss, 3),
    (4, "validated read", _valid_and_wrong, 5),
)


def run_litmus(instances: int, device: str = "cpu") -> list[Row]:
    """Run `instances` of each shape on a device: "cpu", or a GPU."""
    where = torch.device(device)
    return [_row(shape, name, forbidden, weak, instances, where) for shape, name, forbidden, weak in SHAPES]


def _row(shape: int, name: str, forbidden: Forbidden, weak: int, instances: int, device: torch.device) -> Row:
    row = Row("litmus", f"{name}, {device.type}", unit="instances")
    with row.timed():
        seen = 0
        for _ in range(-(-instances // BATCH)):
            row.tried += BATCH
            seen += int(forbidden(*outcomes(shape, BATCH, device)).sum())
        if seen:
            row.failures.append(f"the forbidden outcome came out {seen} times in {row.tried}")
        shown = int(forbidden(*outcomes(weak, BATCH, device)).sum())
        row.note = f"without the ordering: {shown} of {BATCH}"
    return row


def outcomes(shape: int, count: int, device: torch.device) -> tuple[Seen, Seen]:
    """The two words that the second thread of each instance wrote: int64 [count] each. `count`: a multiple of PAIRS."""
    pairs = 1 if device.type == "cpu" else PAIRS
    words = torch.zeros(count * WORDS.value * _LINE_WORDS, dtype=torch.int64, device=device)
    gate = torch.zeros(pairs * _LINE_WORDS, dtype=torch.int64, device=device)
    if device.type == "cpu":
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda thread: _native(shape)(thread, words.data_ptr(), count, gate.data_ptr()), range(2)))
    else:
        litmus_kernel[(2 * pairs,)](words.data_ptr(), count // pairs, gate.data_ptr(), shape, num_warps=1)
    seen = words.cpu().numpy().reshape(count, WORDS.value, _LINE_WORDS)[:, 3]
    return seen[:, 0], seen[:, 1]


@cache
def _native(shape: int) -> Any:
    """A shape, compiled; the shape is a constant of its own function, as a kernel's would be."""
    return partial(native_function(run_shape), shape)

"""The litmus shapes that the protocol relies on, compiled for gfx942, with late operations and caches."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from triton.runtime.jit import JITFunction

from nanokv.check.litmus import SHAPES, Seen
from nanokv.check.litmus_shapes import WORDS, litmus_kernel
from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.triton_driver import as_triton_driver
from nanokv.device.segment.record import LINE

COUNT, PAIRS = 32, 2
WORD = LINE // 8
ALWAYS = {name: forbidden for _, name, forbidden, _ in SHAPES}


class Edited(Machine):
    """A machine that runs another text than the compiler's."""

    def __init__(self, seed: int, edit: Callable[[str], str]) -> None:
        super().__init__(seed, weak=True)
        self._edit = edit

    def run(self, text: str, *args: object, **named: object) -> None:
        super().run(self._edit(text), *args, **named)  # type: ignore[arg-type]


def shown(
    shape: int, forbidden: Callable[[Seen, Seen], object], edit: Callable[[str], str] = str, seeds: int = 6
) -> int:
    """How often a forbidden outcome comes out."""
    assert isinstance(litmus_kernel, JITFunction)
    found = 0
    for seed in range(seeds):
        words = torch.zeros(COUNT * WORDS.value * WORD + WORD, dtype=torch.int64)
        words = words[-words.data_ptr() // 8 % WORD :][: COUNT * WORDS.value * WORD]
        gate = torch.zeros(PAIRS * WORD, dtype=torch.int64)
        with as_triton_driver(Edited(seed, edit)):
            litmus_kernel[(2 * PAIRS,)](words.data_ptr(), COUNT // PAIRS, gate.data_ptr(), shape, num_warps=1)
        seen = words.numpy().reshape(COUNT, WORDS.value, WORD)[:, 3]
        found += int(np.sum(forbidden(seen[:, 0], seen[:, 1])))
    return found


@pytest.mark.parametrize(("shape", "name"), [(shape, name) for shape, name, _, _ in SHAPES])
def test_no_forbidden_outcome(shape: int, name: str) -> None:
    assert shown(shape, ALWAYS[name]) == 0


@pytest.mark.parametrize("lost", ["buffer_wbl2 sc0 sc1", "buffer_inv sc0 sc1"])
def test_without_its_instructions_an_ordering_is_lost(lost: str) -> None:
    """Of message passing: the machine code is what is tested, not the source."""

    def without(text: str) -> str:
        edited = re.sub(rf"^\s*{lost}$", "\ts_nop 0", text, flags=re.M)
        assert edited != text
        return edited

    shape, _, forbidden, _ = SHAPES[0]
    assert shown(shape, forbidden, without, seeds=20) > 0

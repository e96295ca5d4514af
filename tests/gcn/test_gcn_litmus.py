"""The litmus shapes that the protocol relies on, compiled for gfx942, with late operations and caches."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from nanokv.check.litmus_shapes import WORDS, litmus_kernel
from nanokv.check.machine.litmus import SHAPES, Seen
from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.triton_driver import as_triton_driver
from nanokv.device.memory.triton import cas64, load64
from nanokv.device.segment.record import LINE

pytestmark = pytest.mark.proved

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
        found += int(np.sum(np.asarray(forbidden(seen[:, 0], seen[:, 1]))))
    return found


@pytest.mark.parametrize(("shape", "name"), [(shape, name) for shape, name, _, _ in SHAPES])
def test_no_forbidden_outcome(shape: int, name: str) -> None:
    assert shown(shape, ALWAYS[name]) == 0


def test_without_its_writeback_an_ordering_is_lost() -> None:
    """Of message passing: the machine code is what is tested, not the source.

    A missing `buffer_inv` does no harm here: the shapes load past the caches (in test_gcn_machine.py loads do not).
    """

    def without(text: str) -> str:
        edited = re.sub(r"^\s*buffer_wbl2 sc0 sc1$", "\ts_nop 0", text, flags=re.M)
        assert edited != text
        return edited

    shape, _, forbidden, _ = SHAPES[0]
    assert shown(shape, forbidden, without, seeds=20) > 0


@triton.jit
def tile_passing_kernel(tile: tl.tensor, out: tl.tensor, flag: tl.int64, BLOCK: tl.constexpr) -> None:
    """One CTA stores a tile and releases a flag; the other one acquires it and copies the tile."""
    lanes = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.store(tile + lanes, lanes + 1)
        cas64(flag, 0, 1, "release")
    else:
        while load64(flag, "acquire") == 0:
            pass
        tl.store(out + lanes, tl.load(tile + lanes))


def passed(seed: int, edit: Callable[[str], str]) -> bool:
    """Whether the second CTA copied all that the first one stored, by four waves each."""
    tile, out = (torch.zeros(512, dtype=torch.int32) for _ in range(2))
    flag = torch.zeros(1, dtype=torch.int64)
    with as_triton_driver(Edited(seed, edit)):
        tile_passing_kernel[(2,)](tile, out, flag.data_ptr(), BLOCK=512, num_warps=4)
    return torch.equal(out, torch.arange(1, 513, dtype=torch.int32))


def test_a_release_is_that_of_all_waves_because_each_one_drains() -> None:
    assert all(passed(seed, str) for seed in range(8))

    def undrained(text: str) -> str:
        edited = re.sub(r"(#ASMSTART\n\s*)s_waitcnt vmcnt\(0\)", r"\1s_nop 0", text)
        assert edited != text
        return edited

    assert not all(passed(seed, undrained) for seed in range(20))

"""Litmus tests: natively on this machine, under the simulated memory, and compiled for every GPU."""

from typing import Any

import numpy as np
import pytest
import torch

from nanokv.check.litmus_shapes import litmus_kernel
from nanokv.check.machine.litmus import SHAPES, outcomes, run_litmus
from nanokv.check.protocol.compiled.run import SHAPES as ROLES
from nanokv.check.protocol.compiled.run import all_outcomes
from nanokv.device.sim.memory import WeakMemory
from tests.support.compiling import Kernel, assembly
from tests.support.targets import every_target


def test_no_forbidden_outcome_on_this_machine() -> None:
    for row in run_litmus(20_000):
        assert row.held, row.failures


def test_both_threads_ran_every_instance() -> None:
    flag, payload = outcomes(0, 512, torch.device("cpu"))
    assert len(flag) == 512 and set(flag.tolist()) <= {0, 1} and set(payload.tolist()) <= {0, 1}
    assert flag.any() or payload.any()


@pytest.mark.parametrize("shape, name, forbidden, weak", SHAPES, ids=[shape[1] for shape in SHAPES])
def test_the_model_forbids_what_we_forbid(shape: int, name: str, forbidden: Any, weak: int) -> None:
    def bad(role: Any) -> list[tuple[int, int]]:
        return [
            pair for pair in all_outcomes(role, WeakMemory)[0] if forbidden(*(np.array([word]) for word in pair)).any()
        ]

    assert bad(ROLES[shape]) == []
    assert bad(ROLES[weak]) != []


@every_target
@pytest.mark.parametrize("shape", range(len(ROLES)))
def test_kernels_compile(target: str, shape: int) -> None:
    kernel = Kernel(litmus_kernel, False, {"base": "i64", "count": "i64", "gate": "i64"}, {"shape": shape})
    text = assembly(kernel, target)
    assert ("red.global" if target.startswith("sm") else "global_atomic_add") in text

"""The bodies of tests/gpu, compiled, on the PTX machine. By hand: `python -m tests.gpu --ptx sm_90 --only NAME`."""

import pytest
import torch

from tests.gpu.every_body import BODIES, GROUPS
from tests.gpu.on_ptx import CAPABILITIES, machine_for

BY_NAME = {body.__name__: body for body in BODIES}
QUICK = (  #: others compile other kernels, which takes time
    "many_ctas_allocate_at_once",
    "batches_answer_each_request",
    "runs_answer_each_request",
    "runs_into_a_small_heap",
)
SEEDS = range(1, 4)  #: other orders of warps, where CTAs compete


def run(name: str, target: str, seed: int) -> None:
    """One body."""
    with machine_for(target, seed):
        BY_NAME[name](torch.device("cpu"))


@pytest.mark.parametrize("name", QUICK)
def test_compiled(name: str) -> None:
    run(name, "sm_90", 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", CAPABILITIES)
@pytest.mark.parametrize("name", BY_NAME)
def test_compiled_for_every_gpu(name: str, target: str) -> None:
    run(name, target, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [body.__name__ for body in GROUPS["batches"]])
def test_other_orders_of_warps(name: str, seed: int) -> None:
    run(name, "sm_90", seed)

"""The bodies of tests/gpu, compiled, on the PTX machine. By hand: `python -m tests.gpu --ptx sm_90 --only NAME`."""

import pytest
import torch

from tests.gpu.every_body import BODIES
from tests.gpu.on_ptx import CAPABILITIES, machine_for

pytestmark = pytest.mark.proved

BY_NAME = {body.__name__: body for body in BODIES}
QUICK = (  #: others compile other kernels, which takes time
    "many_ctas_allocate_at_once",
    "batches_answer_each_request",
    "runs_answer_each_request",
    "runs_into_a_small_heap",
    "tokens_are_quantized",
    "a_block_goes_over_all_layers",
)
BY_HAND = ("wrong_calls_are_refused",)  #: compiles every function of the library again; test_library interprets it
#: what runs on other GPUs than sm_90 too: many objects, users' kernels, and a cache's writer
ON_OTHERS = (
    *("batches_answer_each_request", "pins_hold", "attention_kernels_publish"),
    "tokens_are_written_into_any_layout",
)
OTHERS = [target for target in CAPABILITIES if target != "sm_90"]
#: those where CTAs compete, so that the order of warps matters
COMPETING = (
    *("many_ctas_allocate_at_once", "batches_put_and_get", "batches_answer_each_request"),
    *("batches_of_many_small_objects", "an_exact_heap_refuses_nothing", "removers_of_one_bucket_end"),
    *("full_blocks_are_published_in_the_launch", "the_cache_is_written_whatever_becomes_of_an_object"),
)
SEEDS = range(1, 4)  #: of other orders


def run(name: str, target: str, seed: int) -> None:
    """One body."""
    with machine_for(target, seed):
        BY_NAME[name](torch.device("cpu"))


@pytest.mark.parametrize("name", QUICK)
def test_compiled(name: str) -> None:
    run(name, "sm_90", 0)


def test_removers_at_the_same_pace_end() -> None:
    """Random orders part them; in turns each passes the turnstile between two looks of every other one."""
    with machine_for("sm_90", 0, in_turns=True):
        BY_NAME["removers_of_one_bucket_end"](torch.device("cpu"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in (*QUICK, *BY_HAND)])
def test_every_body_compiled(name: str) -> None:
    run(name, "sm_90", 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("name", ON_OTHERS)
def test_compiled_for_other_gpus(name: str, target: str) -> None:
    run(name, target, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", COMPETING)
def test_other_orders_of_warps(name: str, seed: int) -> None:
    run(name, "sm_90", seed)

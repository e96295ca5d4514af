"""The examples with kernels, compiled for sm_90, on the PTX machine; interpreted: tests/tools/test_examples.py."""

import importlib

import pytest

from tests.gpu.on_ptx import machine_for

KERNELS = {
    "rope_prefill": {"rope_prefill_kernel"},
    "attention_prefill": {"attention_prefill_kernel"},
    "paged_decode": {"paged_decode_kernel", "validated_decode_kernel"},
    "write_in_kernel": {"prefill_kernel"},
    "producer_kernel": {"prefill_kernel"},
}  #: of each example
pytestmark = [
    pytest.mark.proved("nanokv.cache.virtual_world", *(f"examples.{name}" for name in KERNELS)),
    pytest.mark.exhaustive,
]


@pytest.mark.parametrize("name", KERNELS)
def test_an_example_runs_compiled(name: str) -> None:
    with machine_for("sm_90", 0) as machine:
        importlib.import_module(f"examples.{name}").main()
    assert machine.report().launches.keys() == KERNELS[name]

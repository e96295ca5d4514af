"""Random host calls on compiled kernels for gfx942 and on the native machine: the same answers, the same bytes."""

import pytest

from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.triton_driver import as_triton_driver
from tests.compiled.test_native_twin import KINDS
from tests.support.twins import Kind, Twins

pytestmark = [pytest.mark.proved, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("weak", [False, True], ids=["coherent", "weak"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_twin_has_the_same_bytes(kind: Kind, weak: bool) -> None:
    with as_triton_driver(Machine(seed=1, weak=weak)):
        Twins(kind, 1).run(100)

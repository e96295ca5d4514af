"""The launching machine, in Triton's interpreter: bodies that run on a GPU (tests/gpu), in another process.

Those that are slow there run only compiled: tests/compiled/test_bodies.py.
"""

import pytest
import torch

from nanokv.device.machines.lane import check_compiler
from nanokv.device.machines.launch import LaunchMachine
from nanokv.device.segment.geometry import Geometry
from tests.gpu.every_body import BODIES
from tests.gpu.interpreted import SLOW, interpreted, passed

pytestmark = [pytest.mark.proved, pytest.mark.timeout(1800)]  # the first test of a group pays for all of it


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(group, name, id=name)
        for group in ("objects", "batches", "caches", "writers")
        for name in interpreted(group)
    ],
)
def test_interpreted(group: str, name: str) -> None:
    assert passed(group, name)


def test_the_slow_bodies_are_bodies() -> None:
    assert {*SLOW} < {body.__name__ for body in BODIES}


def test_a_cpu_without_the_interpreter_is_refused() -> None:
    geometry = Geometry.plan(1 << 16, 4096, 1)
    segment = torch.zeros(geometry.segment_bytes, dtype=torch.uint8)
    table = geometry.world_table(0, 1, [segment.data_ptr()])
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        LaunchMachine(geometry, table, [segment], torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "hip", "version", "interpreted", "match"),
    [
        ("cuda", None, "3.9.0", True, "TRITON_INTERPRET=1 is set"),
        ("cpu", None, "3.9.0", False, "set TRITON_INTERPRET=1"),
        ("cuda", "6.4", "3.6.0", False, r"3\.6\.0 ignores the scope.* 3\.7 is needed"),
    ],
)
def test_what_cannot_run_is_refused(device: str, hip: str | None, version: str, interpreted: bool, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        check_compiler(torch.device(device), hip, version, interpreted=interpreted)


@pytest.mark.parametrize(("hip", "version"), [(None, "3.6.0"), ("6.4", "3.7.1"), ("7.0", "3.10.0+git1")])
def test_what_can_run_is_not_refused(hip: str | None, version: str) -> None:
    check_compiler(torch.device("cuda"), hip, version, interpreted=False)

"""The launching machine, in Triton's interpreter: the bodies that run on a GPU (tests/gpu), in another process."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from nanokv.device.geometry import Geometry
from nanokv.device.launch import LaunchMachine
from tests.gpu.bodies import BODIES


@cache
def interpreted() -> str:
    """What `python -m tests.gpu` prints; TRITON_INTERPRET is read when a kernel is decorated."""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.gpu", "--device", "cpu"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", [body.__name__ for body in BODIES])
def test_interpreted(name: str) -> None:
    said = interpreted()
    assert re.search(rf"^ok {name} ", said, re.M), said[-6000:]


def test_a_cpu_without_the_interpreter_is_refused() -> None:
    geometry = Geometry.plan(1 << 16, 4096, 1)
    segment = torch.zeros(geometry.segment_bytes, dtype=torch.uint8)
    table = geometry.world_table(0, 1, [segment.data_ptr()])
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        LaunchMachine(geometry, table, [segment], torch.device("cpu"))

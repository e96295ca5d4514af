"""The compiled kernels of NanoKV on the machine for gfx942: objects, batches, caches, the library, the examples."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.gpu.every_body import GROUPS
from tests.support.gcn_bodies import NOT_HERE

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

HERE = [
    pytest.param(group, body.__name__, id=body.__name__)
    for group, bodies in GROUPS.items()
    for body in bodies
    if body.__name__ not in NOT_HERE
]
#: of those that are run with caches: what has shared words, and not only layouts
WEAK = ("puts_gets_and_removes", "batches_put_and_get", "pins_hold", "evicts_what_is_old", "pollers_follow_kernels")


@cache
def run(*arguments: str) -> str:
    """The output of some bodies, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.gcn_bodies", *arguments],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(("group", "name"), HERE)
def test_a_body_passes(group: str, name: str) -> None:
    output = run(group)
    assert re.search(rf"^ok {name} ", output, re.M), output[-6000:]


@pytest.mark.parametrize("name", WEAK)
def test_a_body_passes_with_caches(name: str) -> None:
    output = run("--weak", *WEAK)
    assert re.search(rf"^ok {name} ", output, re.M), output[-6000:]

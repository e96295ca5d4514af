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

pytestmark = [pytest.mark.proved, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

#: what takes minutes to compile, or launches kernels that others launch too: by hand, tests/support/gcn_bodies.py
BY_HAND = (
    *("paged_caches_of_any_layout", "batches_put_and_get", "wrong_calls_are_refused", "every_step_is_answered"),
    *("wrong_requests_are_refused", "a_full_heap_makes_room_for_many", "a_dst_of_another_form_is_refused"),
    "in_and_out_of_inference_mode",
)
HERE = {
    group: [each.__name__ for each in bodies if each.__name__ not in (*NOT_HERE, *BY_HAND)]
    for group, bodies in GROUPS.items()
}
#: of those that are run with caches: what has shared words, and not only layouts
WEAK = ("puts_gets_and_removes", "batches_answer_each_request", "pins_hold", "evicts_what_is_old")


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


@pytest.mark.parametrize(
    ("group", "name"), [pytest.param(group, name, id=name) for group, names in HERE.items() for name in names]
)
def test_a_body_passes(group: str, name: str) -> None:
    output = run(*HERE[group])
    assert re.search(rf"^ok {name} ", output, re.M), output[-6000:]


@pytest.mark.parametrize("name", WEAK)
def test_a_body_passes_with_caches(name: str) -> None:
    output = run("--weak", *WEAK)
    assert re.search(rf"^ok {name} ", output, re.M), output[-6000:]

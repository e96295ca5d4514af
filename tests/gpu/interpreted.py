"""Bodies in Triton's interpreter, in another process: TRITON_INTERPRET is read when a kernel is decorated.

TRITON_INTERPRET=1 python -m tests.gpu.interpreted pins_hold v1_over_kernels
"""

import os
import re
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path

import torch

import tests.support.loaded  # noqa: F401 - for the stamps of tests
from tests.gpu.every_body import BODIES, GROUPS

#: bodies that take the interpreter long, and show nothing there that others do not; tests/compiled runs all
SLOW = (
    *("puts_gets_and_removes", "checksums", "many_ctas_allocate_at_once", "tiles_belong_to_requests"),
    *("batches_put_and_get", "prefixes_are_found", "batches_of_many_small_objects", "an_exact_heap_refuses_nothing"),
    *("a_batch_is_replayed_from_a_graph", "paged_caches_of_any_layout", "a_full_heap_makes_room_for_many"),
    *("in_and_out_of_inference_mode", "attention_kernels_publish", "a_step_that_ends_half_way_leaves_nothing"),
    *("runs_answer_each_request", "runs_into_a_small_heap", "prefill_kernels_publish"),
)


def interpreted(group: str) -> list[str]:
    """The names of those bodies of a group that tests interpret."""
    return [body.__name__ for body in GROUPS[group] if body.__name__ not in SLOW]


def passed(group: str, name: str) -> bool:
    """Whether a body of a group passed.

    Raises:
        AssertionError: it did not pass; with its output.
    """
    assert name in interpreted(group)
    output = _interpret(group)
    if not re.search(rf"^ok {name} ", output, re.M):
        raise AssertionError(output[-6000:])
    return True


@cache
def _interpret(group: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.gpu.interpreted", *interpreted(group)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    return done.stdout + done.stderr


def main(names: list[str]) -> None:
    """Run bodies on the CPU; a line for each: `ok NAME seconds`, or `FAILED NAME` and why."""
    by_name = {body.__name__: body for body in BODIES}
    for name in names:
        start = time.perf_counter()
        try:
            by_name[name](torch.device("cpu"))
        except Exception:
            print("FAILED", name, traceback.format_exc(), flush=True)
        else:
            print("ok", name, f"{time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Bodies in Triton's interpreter, in another process: TRITON_INTERPRET is read when a kernel is decorated."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.gpu.every_body import GROUPS


def passed(group: str, name: str) -> bool:
    """Whether a body of a group passed.

    Raises:
        AssertionError: it did not pass; with its output.
    """
    assert name in {body.__name__ for body in GROUPS[group]}
    output = _interpreted(group)
    if not re.search(rf"^ok {name} ", output, re.M):
        raise AssertionError(output[-6000:])
    return True


@cache
def _interpreted(group: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.gpu", "--device", "cpu", "--only", group],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    return done.stdout + done.stderr

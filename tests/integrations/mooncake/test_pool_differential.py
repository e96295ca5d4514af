"""The same calls of pools to the real Mooncake Store and to NanoKV's: the same arguments, answers, errors and bytes.

What the calls leave out, because the answers differ on purpose, is in docs/mooncake.md: where a piece lies, which
one is overflow, empty values for `put_from`, and calls of the store that need room in the local buffer of the real one.
"""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanokv.integrations.mooncake import BufferPool
from tests.integrations.mooncake import real_store

COUNT = 2000
SIGNATURES = """
import json
from mooncake.store import BufferPool
print(json.dumps({name: getattr(BufferPool, name).__doc__.splitlines()[0] for name in
                  ("__init__", "acquire", "buffer", "prewarm", "close")}))
"""


def test_every_call_has_the_real_ones_arguments() -> None:
    real_store.need()
    told = subprocess.run([sys.executable, "-c", SIGNATURES], check=True, capture_output=True, text=True, timeout=120)
    for name, line in json.loads(told.stdout).items():
        theirs = re.findall(r"(\w+): \w+(?: = (\w+))?[,)]", line[line.index(",") :]) if "," in line else []
        own = list(inspect.signature(getattr(BufferPool, name)).parameters.values())[1:]
        ours = [(each.name, "" if each.default is each.empty else str(each.default)) for each in own]
        assert ours == theirs, name


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_are_answered_alike(seed: int, tmp_path: Path) -> None:
    theirs, mine = real_store.both("pool_calls", seed, COUNT, tmp_path)
    for number, (one, other) in enumerate(zip(theirs, mine, strict=True)):
        assert one == other, f"call {number}"
    errors = {line["answer"] for line in theirs if str(line["answer"]).startswith("RuntimeError")}
    assert len(errors) > 7

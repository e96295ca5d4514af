"""The same calls of pools to the real Mooncake Store and to NanoKV's: the same arguments, answers, errors and bytes.

What the calls leave out, because the answers differ on purpose, is in docs/mooncake.md: where a piece lies, which
one is overflow, empty values for `put_from`, and calls of the store that need room in the local buffer of the real one.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanokv.integrations.mooncake import BufferPool
from nanokv.integrations.mooncake.shim import make
from tests.integrations.mooncake import real_store

ROOT = Path(__file__).parents[3]
CALLS = Path(__file__).with_name("pool_calls.py")
COUNT = 2000
LEASE_MS = 3_600_000  #: none ends during the calls
SIGNATURES = """
import json
from mooncake.store import BufferPool
print(json.dumps({name: getattr(BufferPool, name).__doc__.splitlines()[0] for name in
                  ("__init__", "acquire", "buffer", "prewarm", "close")}))
"""

no_real_store = pytest.mark.skipif(real_store.why_not() is not None, reason=f"no real store: {real_store.why_not()}")


@no_real_store
def test_every_call_has_the_real_ones_arguments() -> None:
    told = subprocess.run([sys.executable, "-c", SIGNATURES], check=True, capture_output=True, text=True, timeout=120)
    for name, line in json.loads(told.stdout).items():
        theirs = re.findall(r"(\w+): \w+(?: = (\w+))?[,)]", line[line.index(",") :]) if "," in line else []
        own = list(inspect.signature(getattr(BufferPool, name)).parameters.values())[1:]
        ours = [(each.name, "" if each.default is each.empty else str(each.default)) for each in own]
        assert ours == theirs, name


@no_real_store
@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_are_answered_alike(seed: int, tmp_path: Path) -> None:
    program = [sys.executable, str(CALLS), str(seed), str(COUNT)]
    real = real_store.run_beside_master(
        [*program, real_store.MASTER], tmp_path / "master.log", lease_ms=LEASE_MS, timeout=300
    )
    make(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "NANOKV_MOONCAKE_LEASE_MS": str(LEASE_MS),
        "NANOKV_SHM_DIR": str(tmp_path),
    }
    ours = subprocess.run(
        [*program, "ours:1"], check=True, env=environment, capture_output=True, text=True, timeout=300
    ).stdout
    theirs, mine = ([json.loads(line) for line in told.splitlines()] for told in (real, ours))
    assert len(theirs) == len(mine) == COUNT
    for number, (one, other) in enumerate(zip(theirs, mine, strict=True)):
        assert one == other, f"call {number}"
    errors = {line["answer"] for line in theirs if str(line["answer"]).startswith("RuntimeError")}
    assert len(errors) > 7

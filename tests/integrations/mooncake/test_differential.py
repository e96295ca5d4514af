"""The same random calls to the real Mooncake Store and to NanoKV's: the same answers, and the same bytes.

What the calls leave out, because the answers differ on purpose or the real ones are undefined, is in docs/mooncake.md:
a key twice in one call of `get_batch`, `batch_get_buffer` or `upsert_batch`; an upsert of a key whose session is open;
values of sessions that are not written whole; empty values for `upsert_from`; values with items of several bytes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanokv.integrations.mooncake.shim import make
from tests.integrations.mooncake import real_store

CALLS = Path(__file__).with_name("random_calls.py")
COUNT = 2000
LEASE_MS = 3_600_000  #: none ends during the calls


@pytest.mark.skipif(real_store.why_not() is not None, reason=f"no real store: {real_store.why_not()}")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_calls_are_answered_alike(seed: int, tmp_path: Path) -> None:
    arguments = [str(seed), str(COUNT)]
    program = [sys.executable, str(CALLS), *arguments]
    real = real_store.run_beside_master(
        [*program, real_store.MASTER], tmp_path / "master.log", lease_ms=LEASE_MS, timeout=300
    )
    make(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]),
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
    assert len({line["call"] for line in theirs}) > 20

"""LMCache's Mooncake connector, unchanged, on NanoKV."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanokv.integrations.mooncake.shim import make

pytest.importorskip("lmcache", reason="needs LMCache: make test-integrations")
PROGRAM = Path(__file__).with_name("lmcache_program.py")


@pytest.mark.surface("Programs of Mooncake Store", "LMCache: MooncakestoreConnector")
@pytest.mark.parametrize("meta", [True, False])
def test_lmcache_stores_its_chunks(meta: bool, tmp_path: Path) -> None:
    make(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    environment = os.environ | {"PYTHONPATH": path, "NANOKV_SHM_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), "lmcache:1", str(int(meta))],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert told == {"before": [0] * 3, "after": [1] * 3, "equal": [True] * 3, "missing": True}

"""The real Mooncake Store in a network namespace of its own: its servers listen on all interfaces.

A command runs beside a master there. Needs root, and the package `mooncake-transfer-engine-non-cuda` with the libraries
that it loads (Debian: libibverbs1, libnuma1, libcurl4).
"""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from nanokv.integrations.mooncake.shim import make
from tests.support.needed import leave_out

ROOT = Path(__file__).parents[3]
MASTER = "127.0.0.1:50051"
LEASE_MS = 3_600_000  #: none ends during the calls
SECONDS = 300.0  #: for all calls to one store
METADATA = "http://127.0.0.1:8080/metadata"
_SCRIPT = """
set -e
ip link set lo up
ip link add v0 type veth peer name v1
ip addr add 10.77.0.1/24 dev v0
ip link set v0 up
ip link set v1 up
{master} --default_kv_lease_ttl={lease} --rpc_address=127.0.0.1 --metrics_host=127.0.0.1 \
  --enable_http_metadata_server=true --http_metadata_server_host=127.0.0.1 --http_metadata_server_port=8080 \
  >{log} 2>&1 &
master=$!
trap 'kill $master' EXIT
for _ in $(seq 100); do
  (echo >/dev/tcp/127.0.0.1/50051) 2>/dev/null && break
  sleep 0.1
done
{command}
"""


@cache
def why_not() -> str | None:
    """None if the real store can run here, else why not."""
    if os.geteuid():
        return "a network namespace needs root"
    if importlib.util.find_spec("mooncake") is None:
        return "mooncake-transfer-engine-non-cuda is not installed"
    probe = subprocess.run([sys.executable, "-c", "import mooncake.store"], check=False, capture_output=True, text=True)
    return probe.stderr.strip().splitlines()[-1] if probe.returncode else None


def need() -> None:
    """Leave a test out where the real store cannot run, or fail it where that must be there."""
    why = why_not()
    if why is not None:
        leave_out("mooncake", f"no real store: {why}")


def both(calls: str, seed: int, count: int, folder: Path) -> tuple[list[Any], list[Any]]:
    """What a program of random calls, a module here, prints over the real store, and over NanoKV's: lines of JSON."""
    need()
    program = [sys.executable, "-m", f"tests.integrations.mooncake.{calls}", str(seed), str(count)]
    real = run_beside_master([*program, MASTER], folder / "master.log", lease_ms=LEASE_MS, timeout=SECONDS)
    make(folder)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "NANOKV_MOONCAKE_LEASE_MS": str(LEASE_MS),
        "NANOKV_SHM_DIR": str(folder),
    }
    ours = subprocess.run(
        [*program, "ours:1"], check=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
    ).stdout
    theirs, mine = ([json.loads(line) for line in told.splitlines()] for told in (real, ours))
    assert len(theirs) == len(mine) == count
    return theirs, mine


def run_beside_master(command: list[str], log: Path, *, lease_ms: int, timeout: float) -> str:
    """What a command prints that runs beside a master of this lease.

    Raises:
        CalledProcessError, TimeoutExpired: it failed, or took too long.
    """
    spec = importlib.util.find_spec("mooncake")
    assert spec is not None and spec.origin is not None
    master = Path(spec.origin).parent / "mooncake_master"
    script = _SCRIPT.format(
        master=shlex.quote(str(master)), lease=lease_ms, log=shlex.quote(str(log)), command=shlex.join(command)
    )
    environment = os.environ | {"MC_FORCE_TCP": "true", "MC_METADATA_SERVER": METADATA}
    return subprocess.run(
        ["unshare", "--net", "bash", "-c", script],
        check=True,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    ).stdout

"""Runs the tests of the drop-ins, and the tests of others against them, and tells how many of each passed.

    python -m tests.integrations.run [--mooncake FOLDER] [--table FILE]

Two environments: the one that runs this (SGLang, LMCache, the real Mooncake), and that of vLLM (`--vllm PYTHON`).
`--mooncake` is a clone of Mooncake's repository (kvcache-ai/Mooncake), from which its own tests are run, unmodified;
without it they are left out, and the run says so. `--table` puts what each drop-in's methods do into a page, after
`surfaces.MARK`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nanokv.integrations.mooncake.shim import make
from nanokv.tools.cli.output import console
from tests.integrations.surfaces import put_into

ROOT = Path(__file__).parents[2]
HERE = "tests/integrations"
SECONDS = 1800.0
LEASE_MS = 500
#: per file of Mooncake's repository the tests that pass against the real store
MOONCAKE = {
    "mooncake-wheel/tests/test_distributed_object_store.py": 16,
    "mooncake-wheel/tests/test_replicated_distributed_object_store.py": 5,
    "mooncake-wheel/tests/test_put_get_tensor.py": 31,
    "mooncake-wheel/tests/test_safetensor_functions.py": 6,
    "mooncake-wheel/tests/test_buffer_pool_native.py": 16,
    "scripts/test_upsert_api.py": 41,
    "scripts/test_tensor_api.py": 59,
    "scripts/test_copy_move_api.py": 10,
    "scripts/test_async_store.py": 14,
}
SGLANG = "sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store"
_COUNTS = re.compile(r"(\d+) (passed|failed|error)")


class Ran(NamedTuple):
    """What came of a command: tests that passed and that did not, and those that have to pass."""

    what: str
    passed: int
    failed: int
    wanted: int
    output: str

    @property
    def good(self) -> bool:
        """Whether all passed that have to."""
        return not self.failed and self.passed >= self.wanted


def main() -> int:
    """Run all, print a table; 1 if something did not pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.integrations.run", description=__doc__)
    parser.add_argument("--mooncake", type=Path, metavar="FOLDER", help="a clone of kvcache-ai/Mooncake")
    parser.add_argument("--vllm", metavar="PYTHON", help="the Python of the environment that has vLLM")
    parser.add_argument("--table", type=Path, metavar="FILE", help="put the table of methods there, after the mark")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nanokv-integrations-") as folder:
        ran = list(_all(given, Path(folder)))
        if given.table:
            put_into(given.table, Path(folder).glob("surfaces-*.json*"))
    _show(ran, given)
    return int(not all(each.good for each in ran))


def _all(given: argparse.Namespace, folder: Path) -> Iterable[Ran]:
    yield _ours(
        "NanoKV's own, with SGLang, LMCache, Mooncake", sys.executable, folder, HERE, "tests/blocks", "tests/sequences"
    )
    if given.vllm:
        yield _ours(
            "NanoKV's own, with vLLM", given.vllm, folder, f"{HERE}/vllm_offload", f"{HERE}/mooncake/test_vllm.py"
        )
    shim = folder / "shim"
    make(shim)
    environment = _environment(shim)
    if given.mooncake:
        for file, wanted in MOONCAKE.items():
            path = given.mooncake / file
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", path.name]
            yield _pytest(f"Mooncake's {path.name}", command, path.parent, environment, wanted)
    yield _sglang(environment)


def _ours(what: str, python: str, folder: Path, *paths: str) -> Ran:
    names = {"NANOKV_SURFACES": str(folder / f"surfaces-{len(list(folder.iterdir()))}.json")}
    there = [path for path in paths if (ROOT / path).exists()]
    plugins = ["-p", "tests.integrations.surface_rows", "-p", "no:cacheprovider"]
    command = [python, "-m", "pytest", "-q", "-rs", *plugins, "-W", "default", *there]
    return _pytest(what, command, ROOT, os.environ | names, 1)


def _environment(shim: Path) -> dict[str, str]:
    address = {"MASTER_SERVER": f"run-{os.getpid()}:1", "MOONCAKE_MASTER": f"run-{os.getpid()}:1"}
    return (
        os.environ
        | address
        | {
            "PYTHONPATH": os.pathsep.join([str(shim), str(ROOT)]),
            "DEFAULT_KV_LEASE_TTL": str(LEASE_MS),
            "NANOKV_MOONCAKE_LEASE_MS": str(LEASE_MS),
            "MC_METADATA_SERVER": "P2PHANDSHAKE",
            "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
            "MOONCAKE_PROTOCOL": "tcp",
            "MOONCAKE_DEVICE": "",
            "MOONCAKE_LOCAL_HOSTNAME": "localhost",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(3200 << 20),
            "MOONCAKE_LOCAL_BUFFER_SIZE": str(512 << 20),
        }
    )


def _sglang(environment: dict[str, str]) -> Ran:
    command = [sys.executable, "-m", "tests.integrations.without_torchvision", SGLANG]
    code, output, log = _run(command, ROOT, environment)
    passed = "All tests passed" in log and not code
    return Ran("SGLang's test_mooncake_store", int(passed), int(not passed), 1, output + log)


def _pytest(what: str, command: list[str], folder: Path, environment: dict[str, str], wanted: int) -> Ran:
    code, output, log = _run(command, folder, environment)
    counts = {kind: int(number) for number, kind in _COUNTS.findall(output.strip().splitlines()[-1] if output else "")}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return Ran(what, counts.get("passed", 0), failed or int(code != 0), wanted, output + log if code else output)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    try:
        ran = subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        return 1, said.decode(errors="replace") if isinstance(said, bytes) else said, f"over {SECONDS:.0f} s\n"
    return ran.returncode, ran.stdout, ran.stderr


def _show(ran: list[Ran], given: argparse.Namespace) -> None:
    screen = console()
    for each in ran:
        if not each.good:
            screen.print(each.output[-6000:], markup=False, highlight=False)
    for each in ran:
        verdict = "" if each.good else "  NOT GOOD"
        screen.print(f"{each.what}: {each.passed} passed, {each.failed} not, of {each.wanted}{verdict}", markup=False)
    if not given.mooncake:
        screen.print("Mooncake's own tests were left out: name a clone of its repository by --mooncake")
    if not given.vllm:
        screen.print("vLLM's were left out: name the Python of its environment by --vllm")


if __name__ == "__main__":
    sys.exit(main())

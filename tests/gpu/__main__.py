"""`python -m tests.gpu`: the bodies and the litmus tests on the first GPU, without pytest.

With TRITON_INTERPRET=1 and `--device cpu` the bodies are interpreted, and the litmus tests run natively. Prints a line
each, writes what `--json` names, and ends with 1 if one failed.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bench.environment import machine, versions
from nanokv.check.litmus import run_litmus
from tests.gpu.every_body import BODIES

INSTANCES = 2_000_000  #: of each litmus shape on a GPU
INSTANCES_ON_CPU = 100_000


def main() -> int:
    """Run them; 0 if all passed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", help="one body, or litmus")
    parser.add_argument("--json", type=Path, help="write the results there")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 1
    device = torch.device(chosen.device)
    results = []
    for result in _results(device, chosen.only):
        results.append(result)
        print("ok" if result["ok"] else "FAILED", result["name"], f"{result['seconds']} s", result["note"], flush=True)
        if chosen.json:  # at once: whatever was run is there, also if a later one hangs
            said = {"device": _name(device), "machine": machine(), "versions": versions(), "results": results}
            chosen.json.write_text(json.dumps(said, indent=1) + "\n")
    return 0 if results and all(result["ok"] for result in results) else 1


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu, interpreted"


def _results(device: torch.device, only: str | None) -> Iterator[dict[str, Any]]:
    for body in BODIES:
        if only in (None, body.__name__):
            yield _body(body, device)
    if only in (None, "litmus"):
        for row in run_litmus(INSTANCES_ON_CPU if device.type == "cpu" else INSTANCES, str(device)):
            note = f"{row.tried} instances; {row.note}" if row.held else "; ".join(row.failures)
            yield {"name": f"litmus: {row.name}", "ok": row.held, "seconds": round(row.seconds, 1), "note": note}


def _body(body: Callable[[torch.device], None], device: torch.device) -> dict[str, Any]:
    start, why = time.perf_counter(), ""
    try:
        body(device)
    except Exception:
        why = traceback.format_exc()
    return {"name": body.__name__, "ok": not why, "seconds": round(time.perf_counter() - start, 1), "note": why}


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.gpu`: the bodies, the litmus tests and the benchmarks on the first GPU, without pytest.

Each group of bodies is a process of its own with a time limit, and so are the litmus tests and each benchmark
(`bench/gpu/plan.py`): a kernel that hangs or faults takes nothing else with it.

With `--ptx sm_90` the bodies are compiled for that GPU, and run on the PTX machine, which needs none (`on_ptx`).

With TRITON_INTERPRET=1 and `--device cpu` the bodies are interpreted, the litmus tests run natively, and benchmarks run
only with `--bench`, so small that they just show that they work. Prints a line per check, writes the file that `--json`
names after each, goes on after a failure, and ends with 1 if there was one. Targets are not judged here.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from nanokv.bench.gpu.plan import BODIES_SECONDS, LIMITS, LITMUS_SECONDS
from nanokv.bench.gpu.runner import about, append_row, judged, rows_of, run_all
from nanokv.check.litmus import run_litmus
from tests.gpu.every_body import GROUPS
from tests.gpu.on_ptx import CAPABILITIES, machine_for

INSTANCES = 2_000_000  #: instances of each litmus shape on a GPU
INSTANCES_ON_CPU = 100_000
BENCH = "bench"
LITMUS = "litmus"


def main() -> int:
    """Run the chosen checks; 0 if all passed."""
    chosen = _parser().parse_args()
    if chosen.ptx:
        with machine_for(chosen.ptx, chosen.seed, split=chosen.split) as machine:
            failed = _report(chosen, torch.device("cpu"), f"PTX machine, {chosen.ptx}, seed {chosen.seed}")
            print(machine.report())
        return failed
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 1
    device = torch.device(chosen.device)
    if chosen.child:
        return _child(chosen.only, device, chosen.child)
    return _report(chosen, device, torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu, interpreted")


def _report(chosen: argparse.Namespace, device: torch.device, name: str) -> int:
    where = {"device": name} | about(device.type, is_toy=device.type == "cpu", at=chosen.commit)
    results = []
    for result in _results(device, chosen.only, bench=chosen.bench or device.type == "cuda"):
        results.append(result)
        print("ok" if result["ok"] else "FAILED", result["name"], f"{result['seconds']} s", result["note"], flush=True)
        if chosen.json:  # at once, so that the results so far are kept if a later check hangs
            done = where | {"results": results, "targets": judged(results)}
            chosen.json.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    return 0 if results and all(result["ok"] for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ptx", choices=CAPABILITIES, help="the GPU of which the PTX machine takes the place")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which that machine lets warps go on")
    parser.add_argument("--split", type=float, default=0.0, help="the chance that it cuts a load of 32 lanes in two")
    names = ", ".join(GROUPS), ", ".join(LIMITS)
    parser.add_argument(
        "--only",
        help=f"one body, a group of them ({names[0]}), {LITMUS}, {BENCH} (all benchmarks), or one of {names[1]}",
    )
    parser.add_argument("--bench", action="store_true", help="benchmarks on a CPU too")
    parser.add_argument("--commit", help="of this checkout, where there is no git")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser


def _results(device: torch.device, only: str | None, *, bench: bool) -> Iterator[dict[str, Any]]:
    parts = [name for name in (*GROUPS, LITMUS) if _chosen(name, only)]
    if device.type == "cuda":
        groups = [name for name in parts if name != LITMUS]
        with ThreadPoolExecutor(len(GROUPS)) as pool:  # of processes that compile, mostly
            for results in pool.map(lambda name: _in_child(name, only, device, BODIES_SECONDS), groups):
                yield from results
        if LITMUS in parts:
            yield from _in_child(LITMUS, only, device, LITMUS_SECONDS)
    else:
        for name in parts:
            yield from _part(name, only, device)
    if bench and (only in (None, BENCH) or only in LIMITS):
        yield from run_all(device.type, [only] if only in LIMITS else None, is_toy=device.type == "cpu")


def _chosen(part: str, only: str | None) -> bool:
    return only in (None, part) or any(body.__name__ == only for body in GROUPS.get(part, ()))


def _part(name: str, only: str | None, device: torch.device) -> Iterator[dict[str, Any]]:
    if name == LITMUS:
        yield from _litmus(device)
    for body in GROUPS.get(name, ()):
        if only in (None, name, body.__name__):
            yield _body(body, device)


def _in_child(name: str, only: str | None, device: torch.device, limit: float) -> list[dict[str, Any]]:
    start = time.perf_counter()
    results, why = rows_of(["tests.gpu", "--device", str(device), "--only", only or name], limit)
    done = {result["name"] for result in results}
    left = [body.__name__ for body in GROUPS.get(name, ()) if only in (None, name, body.__name__)]
    left = [body for body in left if body not in done] or ([LITMUS] if name == LITMUS and not done else [])
    if left:  # the child was killed, or died, in the first of them
        note = f"{why}\nnot run: {', '.join(left[1:]) or 'nothing else'}"
        results.append({"name": left[0], "ok": False, "seconds": round(time.perf_counter() - start, 1), "note": note})
    return results


def _child(only: str, device: torch.device, file: Path) -> int:
    ok = True
    for part in (*GROUPS, LITMUS):
        if _chosen(part, only):
            for result in _part(part, only, device):
                append_row(file, result)
                ok &= result["ok"]
    return 0 if ok else 1


def _litmus(device: torch.device) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    try:
        rows = run_litmus(INSTANCES_ON_CPU if device.type == "cpu" else INSTANCES, str(device))
    except Exception:
        seconds = round(time.perf_counter() - start, 1)
        yield {"name": "litmus", "ok": False, "seconds": seconds, "note": traceback.format_exc()}
        return
    for row in rows:
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

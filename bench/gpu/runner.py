"""Runs each benchmark in a child process of its own, with a time limit.

A kernel that hangs cannot be stopped from inside, and one that faults ends the use of the GPU for its whole process. In
a child neither takes the other benchmarks with it. A child writes its rows as they come, and they stay if it is
stopped.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nanokv.bench.gpu.about import gpu
from nanokv.bench.gpu.plan import ALL_SECONDS, LEAST_SECONDS, LIMITS, TOY_SECONDS
from nanokv.bench.gpu.settings import GpuSettings, toy
from nanokv.bench.gpu.targets import targets
from nanokv.bench.suite.environment import child_environment, commit, machine, versions


def run_all(device: str, names: Sequence[str] | None = None, *, is_toy: bool = False) -> Iterator[dict[str, Any]]:
    """Run benchmarks; yields {name, ok, seconds, note, rows} for each when it is done.

    Args:
        device: "cuda", or "cpu" for Triton's interpreter, which needs `is_toy` and TRITON_INTERPRET=1.
        names: of LIMITS; default: all.
    """
    end = time.monotonic() + (ALL_SECONDS if not is_toy else TOY_SECONDS * len(LIMITS))
    for name in names or LIMITS:
        limit = min(TOY_SECONDS if is_toy else LIMITS[name], end - time.monotonic())
        if limit < LEAST_SECONDS:
            note = f"skipped: the {ALL_SECONDS} s of all benchmarks were over"
            yield {"name": f"bench: {name}", "ok": False, "seconds": 0.0, "note": note, "rows": []}
        else:
            yield _child(name, device, limit, is_toy=is_toy)


def _child(name: str, device: str, limit: float, *, is_toy: bool) -> dict[str, Any]:
    start = time.perf_counter()
    rows, why = rows_of(["nanokv.bench.gpu", name, "--device", device, *(["--toy"] if is_toy else [])], limit)
    return {
        "name": f"bench: {name}",
        "ok": not why,
        "seconds": round(time.perf_counter() - start, 1),
        "note": why,
        "rows": rows,
    }


def rows_of(module: Sequence[str], limit: float) -> tuple[list[dict[str, Any]], str]:
    """Run a module with arguments and `--child FILE`: (the rows that it wrote to FILE, why it failed or "").

    Args:
        limit: seconds, after which the child is killed. The rows so far stay.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.touch()
        why = _ended([sys.executable, "-P", "-m", *module, "--child", str(file)], limit)
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]], why


def append_row(file: Path, row: dict[str, Any]) -> None:
    """In a child: write a row, at once, so that it stays if the child is killed."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def _ended(command: list[str], limit: float) -> str:
    """Run a child to its end, or stop it: why it failed, or "". A file takes its output, which may be long."""
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, env=child_environment(), stdout=said, stderr=subprocess.STDOUT) as child:
            try:
                child.wait(limit)
                why = f"ended with {child.returncode}" if child.returncode else ""
            except subprocess.TimeoutExpired:
                child.kill()
                why = f"stopped after {limit:.0f} s"
        said.seek(0)
        text = said.read().decode(errors="replace")
    return f"{why}:\n{text[-6000:]}" if why else ""


def run_child(name: str, device: str, file: Path, *, is_toy: bool) -> int:
    """Run one benchmark in a child, and write one line of JSON per row. 1 if it failed."""
    settings = toy() if is_toy else GpuSettings()
    try:
        importlib.import_module(f"nanokv.bench.gpu.{name}").run(
            torch.device(device), settings, partial(append_row, file)
        )
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def about(device: str, *, is_toy: bool = False, at: str | None = None) -> dict[str, Any]:
    """The machine, versions and settings of a run, for the JSON. `at`: the commit, where there is no git."""
    settings = toy() if is_toy else GpuSettings()
    return {
        "gpu": gpu(torch.device(device)),
        "machine": machine(),
        "versions": versions(),
        "commit": at or commit(),
        "settings": asdict(settings),
    }


def judged(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets that the results of `run_all` can judge."""
    rows = {result["name"].removeprefix("bench: "): result["rows"] for result in results if "rows" in result}
    return [target._asdict() | {"reached": target.reached} for target in targets(rows)]

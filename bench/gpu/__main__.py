"""`python -m bench.gpu NAME...`: benchmarks in this process, their rows as JSON. `bench.gpu.plan` runs all of them."""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from nanokv.bench.gpu.children import Keep, work_through
from nanokv.bench.gpu.plan import BENCHMARKS
from nanokv.bench.gpu.settings import GpuSettings, toy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks, one after the other. 1 if one failed, 2 if the arguments are wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="NanoKV's benchmarks on a GPU.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true", help="little, with TRITON_INTERPRET=1 and --device cpu")
    parser.add_argument("--items", type=json.loads, default=(), help=argparse.SUPPRESS)  # of the plan
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append each row there, as a line of JSON")
    given = parser.parse_args(arguments)
    names = [*given.names, *given.items]
    wrong = [name for name in names if name not in BENCHMARKS]
    if wrong or not names:
        parser.error(f"no benchmark is called {', '.join(wrong) or 'nothing'}; there are {', '.join(BENCHMARKS)}")
    device, settings = torch.device(given.device), toy() if given.toy else GpuSettings()

    def run(name: str, keep: Keep) -> None:
        importlib.import_module(f"nanokv.bench.gpu.{name}").run(device, settings, keep)

    with tempfile.TemporaryDirectory() as folder:
        file = given.rows or Path(folder) / "rows.jsonl"
        code = work_through(file, [(name, partial(run, name)) for name in names], device)
        if not given.rows:
            print(file.read_text(encoding="utf-8"), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.gpu`: the bodies and the litmus tests, on the first GPU, without pytest, all in this process.

`python -m bench.gpu.plan` runs them in children, each of which it ends and replaces if a kernel hangs or faults.

With `--ptx sm_90` the bodies are compiled for that GPU, and run on the PTX machine, which needs none (`on_ptx`). With
TRITON_INTERPRET=1 and `--device cpu` they are interpreted, and the litmus tests run natively. Prints a line per check,
goes on after a failure unless the GPU is of no more use, and ends with 1 if there was one.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from nanokv.bench.gpu.children import Keep, work_through
from nanokv.check.machine.litmus import run_litmus
from tests.gpu.every_body import BODIES, GROUPS
from tests.gpu.impatience import make_impatient
from tests.gpu.interpreted import interpreted
from tests.gpu.on_ptx import CAPABILITIES, machine_for

INSTANCES = 2_000_000  #: instances of each litmus shape on a GPU
INSTANCES_ON_CPU = 100_000
LITMUS = "litmus"
CHECKS = {body.__name__: body for body in BODIES}


def main() -> int:
    """Run the chosen checks; 0 if all passed."""
    chosen = _parser().parse_args()
    if chosen.list:
        print(json.dumps({group: interpreted(group) if chosen.toy else _names(group) for group in GROUPS}))
        return 0
    if chosen.ptx:
        with machine_for(chosen.ptx, chosen.seed, split=chosen.split, in_turns=chosen.in_turns) as machine:
            failed = _run(chosen, torch.device("cpu"))
            print(machine.report())
        return failed
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 1
    return _run(chosen, torch.device(chosen.device))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ptx", choices=CAPABILITIES, help="the GPU of which the PTX machine takes the place")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which that machine lets warps go on")
    parser.add_argument("--split", type=float, default=0.0, help="the chance that it cuts a load of 32 lanes in two")
    parser.add_argument("--in-turns", action="store_true", help="it lets warps go on one after the other, a step each")
    parser.add_argument("--only", help=f"one body, a group of them ({', '.join(GROUPS)}), or {LITMUS}")
    # of the plan
    parser.add_argument("--items", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--toy", action="store_true", help=argparse.SUPPRESS)
    return parser


def _names(group: str) -> list[str]:
    return [body.__name__ for body in GROUPS[group]]


def _run(chosen: argparse.Namespace, device: torch.device) -> int:
    names = chosen.items or [name for group in GROUPS for name in _names(group) if chosen.only in (None, group, name)]
    if not chosen.items and chosen.only in (None, LITMUS):
        names.insert(0, LITMUS)
    if not names:
        print(f"there is no {chosen.only}")
        return 1
    if chosen.rows:
        make_impatient()
    with tempfile.TemporaryDirectory() as folder:
        file = chosen.rows or Path(folder) / "rows.jsonl"
        return work_through(file, [(name, _check(name, device)) for name in names], device)


def _check(name: str, device: torch.device) -> Callable[[Keep], str | None]:
    """A check of the name, which passes its rows on, and raises if it fails."""
    return partial(_litmus, device) if name == LITMUS else lambda keep: CHECKS[name](device)


def _litmus(device: torch.device, keep: Keep) -> str:
    rows = run_litmus(INSTANCES_ON_CPU if device.type == "cpu" else INSTANCES, str(device))
    for row in rows:
        keep({"name": row.name, "held": row.held, "instances": row.tried, "seconds": row.seconds, "note": row.note})
    broken = [f"{row.name}: {'; '.join(row.failures)}" for row in rows if not row.held]
    if broken:
        raise AssertionError("\n".join(broken))
    return "; ".join(f"{row.name}: {row.tried} instances; {row.note}" for row in rows)


if __name__ == "__main__":
    sys.exit(main())

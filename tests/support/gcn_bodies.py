"""The bodies of tests/gpu on the machine for gfx942: compiled as for a GPU, run without one.

python -m tests.support.gcn_bodies [--weak] [--seed 1] [objects ... | puts_gets_and_removes ...]
"""

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

import tests.support.loaded  # noqa: F401 - for the stamps of tests
from examples import paged_decode
from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.triton_driver import as_triton_driver
from tests.gpu.every_body import GROUPS

NOT_HERE = {
    "blocks_that_move_are_not_used": "it replaces Python functions that interpreted kernels call",
    "a_prefill_is_replayed_from_a_graph": "it captures graphs of a GPU",
    "tokens_are_quantized": "the machine has no conversions to fp8; the PTX machine has",
    "tiles_belong_to_requests": "two million instructions; the PTX machine runs it in four seconds",
}


class Narrow:
    """A kernel of examples/paged_decode.py, with WIDE as on a GPU."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **named: self._kernel[grid](*args, **(named | {"WIDE": False}))


def main() -> int:
    """Run the chosen bodies; a line for each, `ok NAME` or `FAILED NAME`; 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.gcn_bodies")
    parser.add_argument("names", nargs="*", help="bodies, or groups of them; none: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weak", action="store_true", help="late operations, and caches")
    parser.add_argument("--narrow", action="store_true", help="bfloat16 in tl.dot, as on a GPU")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*TRITON_DEFAULT_FP_FUSION.*")
    if chosen.narrow:
        for name in ("paged_decode_kernel", "validated_decode_kernel"):
            setattr(paged_decode, name, Narrow(getattr(paged_decode, name)))
    machine, failed = Machine(chosen.seed, weak=chosen.weak), 0
    with as_triton_driver(machine):
        for group, bodies in GROUPS.items():
            for body in bodies:
                name = body.__name__
                if name not in NOT_HERE and (not chosen.names or {group, name} & set(chosen.names)):
                    failed += not passed(name, body, machine)
    return 1 if failed else 0


def passed(name: str, body: Callable[[torch.device], None], machine: Machine) -> bool:
    """Run one body."""
    start, before = time.perf_counter(), machine.instructions
    try:
        body(torch.device("cpu"))
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print("FAILED", name, flush=True)
        return False
    print("ok", name, f"{time.perf_counter() - start:.1f} s, {machine.instructions - before} instructions", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())

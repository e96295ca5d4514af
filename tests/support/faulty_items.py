"""A child of the GPU plan whose items go wrong, on a CPU (`tests/tools/test_gpu_plan.py`)."""

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from nanokv.bench.gpu.children import UNUSABLE, Keep, work_through, write


def right(keep: Keep) -> str:
    keep({"figure": 1.5})
    return "fine"


def raises(keep: Keep) -> None:
    keep({"figure": 2.5})
    raise RuntimeError("no such luck")


def dies(keep: Keep) -> None:
    keep({"figure": 3.5})
    ctypes.string_at(0)


def hangs(keep: Keep) -> None:
    keep({"figure": 4.5})
    signal.pause()


def ends(keep: Keep) -> None:
    os._exit(7)


ITEMS: dict[str, Callable[[Keep], str | None]] = {each.__name__: each for each in (right, raises, dies, hangs, ends)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=json.loads, default=[])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list:
        print(json.dumps({"one": ["right of one", "dies of one"], "two": ["right of two"]}))
        return 0
    if given.items[0] == "never begins":
        return 5
    if given.items[0] == "spoils":  # as if its kernel had faulted: it failed, and the device is of no more use
        write(given.rows, {"began": "spoils"})
        write(given.rows, {"name": "spoils", "ok": False, "seconds": 0.0, "note": "an illegal address"})
        return UNUSABLE
    items = [(name, ITEMS[name.split()[0]]) for name in given.items]
    return work_through(given.rows, items, torch.device("cpu"))


if __name__ == "__main__":
    sys.exit(main())

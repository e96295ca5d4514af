"""The command line of `python -m bench`, and the settings that it asks for."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanokv.bench.suite import catalogue
from nanokv.bench.suite.settings import MAX_SIZE, Settings, parse_size, quick

EPILOG = "`%(prog)s compare A.json B.json` judges a change between two runs; `%(prog)s compare -h` says how."


def parser(prog: str) -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog=prog, description="NanoKV's benchmarks.", epilog=EPILOG)
    made.add_argument("names", nargs="*", metavar="NAME", help="questions; all by default: see --list")
    made.add_argument("--list", action="store_true", help="name all questions, and end")
    made.add_argument("--quick", action="store_true", help="small counts: shows that everything works")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    made.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots there")
    made.add_argument("--sizes", help="payload sizes, such as 64,1K,8M; default: 64 B to 8 MiB")
    made.add_argument("--rounds", type=int, help="samples of each call in a repetition, at most; default: 100000")
    made.add_argument("--repeats", type=int, help="repetitions of every figure; default: 5")
    made.add_argument("--heap", choices=("local", "shm", "both"), default="both", help="one process, two, or both")
    made.add_argument("--alloc", choices=("device", "host", "both"), default="both", help="v2, v1, or both")
    made.add_argument("--ring", help="bytes of objects in the heap; default: 256M")
    made.add_argument("--threads", type=int, help="torch's threads, for NanoKV and plain copies alike; default: 1")
    made.add_argument("--objects", type=int, help="in the segment with many objects; default: 1000000")
    made.add_argument("--pages", type=int, help="of the segments that are filled; default: 8192")
    return made


def parse(arguments: Sequence[str] | None, prog: str) -> tuple[argparse.Namespace, Settings]:
    """What was given, and the settings.

    Raises:
        SystemExit: with code 2 and a message, if it cannot be; with code 0 after --help.
    """
    made = parser(prog)
    given = made.parse_args(arguments)
    wrong = [name for name in given.names if name not in catalogue.names()]
    if wrong:
        made.error(f"no question is called {', '.join(wrong)}; there are {', '.join(catalogue.names())}")
    given.names = list(dict.fromkeys(given.names)) or catalogue.names()
    for file in (given.json, given.html):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            made.error(f"{file} cannot be written: {'it is a folder' if file.is_dir() else 'there is no such folder'}")
    try:
        return given, settings_of(given)
    except ValueError as error:
        made.error(str(error))


def settings_of(given: argparse.Namespace) -> Settings:
    """Raises ValueError: a size or a count that cannot be."""
    chosen = quick(Settings()) if given.quick else Settings()
    counts = {name: getattr(given, name) for name in ("rounds", "repeats", "threads", "objects", "pages")}
    changes: dict[str, Any] = {name: count for name, count in counts.items() if count is not None}
    for name, count in changes.items():
        if count < 1:
            raise ValueError(f"--{name} must be positive, not {count}")
    if given.heap != "both":
        changes["heaps"] = (given.heap,)
    if given.alloc != "both":
        changes["allocs"] = (given.alloc,)
    if given.sizes:
        changes["sizes"] = tuple(dict.fromkeys(parse_size(text) for text in given.sizes.split(",")))
    if given.ring:
        changes["ring_bytes"] = parse_size(given.ring)
    chosen = replace(chosen, **changes)
    if max(chosen.sizes) > MAX_SIZE:
        raise ValueError(f"a size is at most {MAX_SIZE} bytes, not {max(chosen.sizes)}")
    return chosen

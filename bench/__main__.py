"""`python -m bench`: run the benchmarks, print tables, write JSON."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nanokv.bench import report, targets
from nanokv.bench.questions import announce, freelist, imports, objects, wait
from nanokv.bench.suite import environment, timing
from nanokv.bench.suite.settings import Settings, parse_size, quick
from nanokv.bench.suite.worlds import Worlds
from nanokv.heap import shm

NAMES = ("objects", "freelist", "imports", "announce", "wait")
WIDTH = 150  #: of the output where there is no terminal
Say = Callable[[str], None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="NanoKV's benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--sizes", help="payload sizes, such as 64,1K,8M; default: 64 B to 8 MiB")
    parser.add_argument("--rounds", type=int, help="measurements of each operation for each size")
    parser.add_argument("--heap", choices=("local", "shm", "both"), default="both")
    parser.add_argument("--alloc", choices=("device", "host", "both"), default="both", help="v2, v1, or both")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, for NanoKV and plain copies alike")
    parser.add_argument("--ring", help="bytes of objects in the heap, such as 256M")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that everything works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    return parser


def _settings(given: argparse.Namespace) -> Settings:
    """Raises ValueError: a size or a count that cannot be."""
    chosen = quick(Settings()) if given.quick else Settings()
    changes: dict[str, Any] = {"threads": given.threads}
    if given.heap != "both":
        changes["heaps"] = (given.heap,)
    if given.alloc != "both":
        changes["allocs"] = (given.alloc,)
    if given.sizes:
        changes["sizes"] = tuple(parse_size(text) for text in given.sizes.split(","))
    if given.ring:
        changes["ring_bytes"] = parse_size(given.ring)
    if given.rounds is not None:
        changes["rounds"] = given.rounds
    chosen = replace(chosen, **changes)
    if min(chosen.rounds, chosen.threads) < 1:
        raise ValueError(f"--rounds and --threads must be positive, not {chosen.rounds} and {chosen.threads}")
    for size in chosen.sizes:
        objects.Plan(size, chosen.ring_bytes)
    return chosen


def run(names: Sequence[str], settings: Settings, say: Say) -> dict[str, Any]:
    """Run benchmarks by name. Returns their results, and all that is known about the run, ready for JSON."""
    about = {
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "settings": asdict(settings),
        "timer_overhead_us": timing.overhead(),
    }
    results: dict[str, Any] = {}
    with Worlds() as worlds:
        for name in names:
            if name == "objects":
                results[name] = objects.run(settings, worlds, say)
            elif name == "announce":
                results[name] = announce.run(settings, worlds, say)
            elif name == "wait":
                results[name] = wait.run(settings, worlds, say)
            else:
                results[name] = (freelist if name == "freelist" else imports).run(settings, say)
    found = [target._asdict() | {"reached": target.reached} for target in targets.targets(results)]
    return about | {"results": results, "targets": found}


def _heading(done: dict[str, Any]) -> list[str]:
    machine, versions, settings = done["machine"], done["versions"], done["settings"]
    timer = done["timer_overhead_us"]
    return [
        f"{machine['cpu']}, {machine['usable_cores']} cores, load {machine['load_average']:.1f}, {machine['system']}",
        ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        f"commit {done['commit'] or 'unknown'}",
        f"Each call is timed by itself. Timing an empty call: p50 {timer['p50']:.2f} µs, p99 {timer['p99']:.2f} µs; "
        "it is in every figure.",
        f"torch copies with {settings['threads']} thread(s), in NanoKV and in the plain copies alike.",
        f"{settings['rounds']} rounds a size" + (": p99.9 is the slowest one." if settings["rounds"] < 1000 else "."),
    ]


def _without_shm(settings: Settings, say: Say) -> Settings:
    """Leave worlds of processes out on a machine where they do not work, and say so."""
    why = shm.why_not() if "shm" in settings.heaps else None
    if why is None:
        return settings
    say(f"heap=shm is left out: {why}")
    return replace(settings, heaps=tuple(heap for heap in settings.heaps if heap != "shm"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write. Exit code 2 if the arguments are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    wrong = [name for name in given.names if name not in NAMES]
    if wrong:
        parser.error(f"no benchmark is called {', '.join(wrong)}; there are {', '.join(NAMES)}")
    try:
        settings = _settings(given)
    except ValueError as error:
        parser.error(str(error))
    progress = Console(stderr=True)
    settings = _without_shm(settings, progress.print)
    done = run(given.names or NAMES, settings, lambda text: progress.print(text, style="dim", highlight=False))
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    for line in _heading(done):
        console.print(line, highlight=False, markup=False)
    for table in report.tables(done["results"], targets.targets(done["results"])):
        console.print(table)
    if given.json:
        given.json.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

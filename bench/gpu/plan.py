"""The whole run on a GPU that is at hand for a quarter of an hour: `python -m bench.gpu.plan --out FOLDER`.

A GPU is scarce, and a first run on silicon fails somewhere. So the order is: what all rests on, what must be right,
what is measured, what is only of interest. Nothing waits for a person, an item that hangs or faults costs itself
(`children`), and all that is known lies in FOLDER at any moment: results.json, and the lines and output of each child.

One command fits ten minutes (`--seconds`). What would not end in time is not begun, and is said to be left; called
again with the same folder, the plan goes on with that. `--again` also repeats what failed, after it was mended.
Without `--out` the parts are printed. With `--toy` everything runs on a CPU, interpreted, with little to do: that shows
that the harness works, and its figures mean nothing.

The machine of a lent GPU keeps nothing: give it the commit (`--commit`), and bring FOLDER back. Then
`python -m bench.gpu.report FOLDER` writes the figures into the documents.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nanokv.bench.gpu.children import Items, Result
from nanokv.bench.gpu.settings import GpuSettings, toy
from nanokv.bench.suite.environment import child_environment, commit, machine, versions
from nanokv.bench.suite.settings import show_size

# --- the targets on a GPU, and whether a run reached them; each is within one run on one machine ---
Rows = dict[str, list[dict[str, Any]]]  #: name of a benchmark -> its rows

OF_COPY = 0.9
SINGLE_US = 6.0
PUT_US, TAIL = 5.0, 3.0
PAIRS = 20e6
PAIRED = ("put and remove", "extent", "header slot", "list")
ANNOUNCE_US = 100.0


class PlanTarget(NamedTuple):
    """One target. `at_least`: more is better."""

    what: str
    limit: float
    measured: float
    unit: str
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure reaches the limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def targets(rows: Rows) -> list[PlanTarget]:
    """Every target that the rows can judge."""
    return [
        *_many(rows.get("many", [])),
        *_single(rows.get("single", [])),
        *_produce(rows.get("produce", [])),
        *_announce(rows.get("announce", [])),
    ]


def _many(rows: list[dict[str, Any]]) -> list[PlanTarget]:
    return [
        PlanTarget(
            f"{name} of {row['objects']} x {show_size(row['size'])} from a graph, of copy_'s bandwidth",
            OF_COPY,
            part,
            "x",
            at_least=True,
        )
        for row in rows
        for name, part in row["of_copy"].items()
        if name.startswith(("put_many", "get_many"))
    ]


def _single(rows: list[dict[str, Any]]) -> list[PlanTarget]:
    return [
        PlanTarget(f"put of {show_size(row['size'])} from a graph, more than copy_, p50", SINGLE_US, over, "µs")
        for row in rows
        for over in (row["put_minus_copy_us"],)
    ]


def _produce(rows: list[dict[str, Any]]) -> list[PlanTarget]:
    found = []
    puts = [row for row in rows if row["what"] == "put and remove"]
    for row in puts:
        where = f"in a kernel, {row['ctas']} CTAs at once, {row['classes']} size{'s' * (row['classes'] == 'many')}"
        us = row["us"]["put"]
        found.append(PlanTarget(f"allocate to announce, {where}, p50", PUT_US, us["p50"], "µs"))
        found.append(PlanTarget(f"allocate to announce, {where}, p99 of p50", TAIL, us["p99"] / us["p50"], "x"))
    paired = [row for row in rows if "pairs_per_s" in row and row["what"] in PAIRED]
    for what in dict.fromkeys(row["what"] for row in paired):
        best = max((row for row in paired if row["what"] == what), key=lambda row: row["pairs_per_s"]["p50"])
        rate = best["pairs_per_s"]["p50"] / 1e6
        found.append(
            PlanTarget(f"{what}, pairs, best of all CTAs ({best['ctas']})", PAIRS / 1e6, rate, "M/s", at_least=True)
        )
    return found


def _announce(rows: list[dict[str, Any]]) -> list[PlanTarget]:
    return [
        PlanTarget(
            f"commit to listener, poller {row['poller']}, GPU {row['gpu']}, p50", ANNOUNCE_US, row["us"]["p50"], "µs"
        )
        for row in rows
        if "poller" in row
    ]


# --- the plan ---------------------------------------------------------------------------------
SECONDS = 560  #: of one call: a command on a lent GPU may take 600, and Python itself begins and ends
TOY_LIMIT = 600  #: seconds for each item, interpreted
LIST_SECONDS = 120


class Part(NamedTuple):
    """Some items, which children work through.

    Attributes:
        module: of the child.
        items: their names; (): the module lists them in groups (`--list`), and each group has a child, all at once.
        usual: seconds that the part takes on a GPU; it is not begun with less.
        limit: seconds that one of its items may take, compilation included.
    """

    name: str
    module: str
    items: tuple[str, ...]
    usual: int
    limit: int
    what: str


def _benchmark(name: str, usual: int, limit: int, what: str) -> Part:
    return Part(name, "nanokv.bench.gpu", (name,), usual, limit, what)


BODIES = "tests.gpu"
SMOKE = "smoke"
PARTS = (
    Part(
        "litmus", BODIES, ("litmus",), 20, 60, "the orderings on which the protocol rests, two million instances each"
    ),
    Part(
        SMOKE, BODIES, ("pins_hold",), 20, 90, "one body: imports, compiler, launcher. If it fails, nothing else begins"
    ),
    _benchmark("probe", 35, 90, "both ceilings; what the design assumes about CUDA: orders, looks, graph captures"),
    Part("bodies", BODIES, (), 100, 90, "every device function and kernel, on real segments; all groups at once"),
    _benchmark("many", 65, 110, "put_many and get_many of hundreds of objects, beside plain copies"),
    _benchmark("produce", 40, 90, "put, get and their steps inside a kernel; up to 1,056 CTAs at once; free lists"),
    _benchmark("announce", 60, 100, "from a commit in a kernel to the listener; hints taken and missed at full speed"),
    _benchmark("single", 20, 60, "one put from a graph, a thousand times"),
    _benchmark("engine_write", 25, 60, "the engine's write into its cache, publishing or not, beside vLLM's kernel"),
    _benchmark("lookups", 15, 50, "find_many and remove_many"),
    _benchmark("versions", 35, 80, "put, get and exists of v1 and v2, as a caller sees them"),
    _benchmark("two_processes", 30, 80, "put by one process, get by another, on one GPU"),
    _benchmark("sweep", 40, 80, "CTAs of put_many and get_many; tile and warps of a plain copy"),
    _benchmark("symmetric", 20, 50, "torch's own copy into its symmetric memory"),
    Part("tests", "tests.gpu.marked", (), 60, 100, "the tests marked `gpu` that fit one GPU, in six processes at once"),
)
BENCHMARKS = tuple(part.name for part in PARTS if part.module == "nanokv.bench.gpu")
NAMED = {name for part in PARTS for name in part.items}  #: items that need not be listed
#: for children: torch makes a multicast object that NanoKV never uses, and fails where there is no NVSwitch; NCCL alike
ENVIRONMENT = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}
QUERY = (
    *("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw"),
    *("power.limit", "temperature.gpu", "memory.used"),
)
CHANGING = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "memory.used")  #: asked around each benchmark


class OtherGpu(Exception):
    """The folder has figures of another GPU: they would stand in one table."""


class Run:
    """One call of the plan.

    Args:
        folder: gets everything; it may have the results of calls before.
        seconds: until when something is at work.
        at: the commit, where there is no git.
        is_toy: on the CPU, interpreted.

    Raises:
        OtherGpu: see there.
    """

    def __init__(self, folder: Path, seconds: float, *, at: str | None = None, is_toy: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / "results.json"
        self._is_toy = is_toy
        self._device = torch.device("cpu" if is_toy else "cuda")
        self._start = time.monotonic()
        self.end = self._start + seconds
        self._lock = threading.Lock()
        settings = toy() if is_toy else GpuSettings()
        about: dict[str, Any] = {
            "gpu": gpu(self._device),
            "machine": machine(),
            "versions": versions(),
            "commit": at or commit(),
        }
        self.report: dict[str, Any] = {"calls": [], "results": [], "left": []}
        if self._file.exists():
            self.report |= json.loads(self._file.read_text(encoding="utf-8"))
            if self.report["gpu"]["name"] != about["gpu"]["name"]:
                raise OtherGpu(f"{folder} is of {self.report['gpu']['name']}, and this is {about['gpu']['name']}")
        self.report |= about | {"settings": asdict(settings)}
        self.report["calls"].append(about | {"seconds": 0.0})
        self._save()

    def results(self) -> list[Result]:
        """All results so far, of this call and those before."""
        return list(self.report["results"])

    def do(self, parts: Sequence[Part], *, only: Sequence[str] = (), again: bool = False) -> bool:
        """Do what is left of the parts, in their order. False if the smoke body failed: then the rest is not begun.

        Args:
            only: names of parts or items; these are done in any case.
            again: also what has failed.
        """
        for part in parts:
            groups = self._groups(part, only, again=again)
            if not groups:
                continue
            names = [name for group in groups.values() for name in group]
            if self.end - time.monotonic() < (0 if self._is_toy else part.usual):
                self._leave(part, names)
                continue
            self._leave(part, self._worked_through(part, groups))
            if part.name == SMOKE and not all(result["ok"] for result in self.results() if result["name"] in names):
                return False
        return True

    def _worked_through(self, part: Part, groups: dict[str, list[str]]) -> list[str]:
        """Do the items of a part, each group by a child, all at once. Returns those that are left."""
        before = clocks(self._device) if part.name in BENCHMARKS else {}
        limit = TOY_LIMIT if self._is_toy else part.limit
        module = [part.module, "--device", self._device.type, *(["--toy"] if self._is_toy else [])]
        work = [Items(module, group, limit, self._folder, key) for key, group in groups.items()]
        with ThreadPoolExecutor(len(work)) as pool:  # of threads that wait for processes
            followed = [pool.submit(self._follow, part, items, before) for items in work]
            try:
                for each in followed:
                    each.result()
            except BaseException:
                self.end = 0.0  # the children are ended, before the pool is waited for
                raise
        return [name for items in work for name in items.left]

    def _groups(self, part: Part, only: Sequence[str], *, again: bool) -> dict[str, list[str]]:
        """The items of a part that are to be done, by the name of the group that has a child."""
        done = {each["name"] for each in self.results() if not each.get("cut") and (each["ok"] or not again)}
        if only and not part.items and set(only) <= NAMED:
            return {}
        groups = {part.name: list(part.items)} if part.items else self._listed(part)
        chosen = {}
        for key, names in groups.items():
            if only:
                chosen[key] = names if {key, part.name} & {*only} else [name for name in names if name in only]
            else:
                chosen[key] = [name for name in names if name not in done]
        return {key: names for key, names in chosen.items() if names}

    def _listed(self, part: Part) -> dict[str, list[str]]:
        """The items that a module lists. If it cannot, that is a result."""
        command = [sys.executable, "-P", "-m", part.module, "--list", *(["--toy"] if self._is_toy else [])]
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, timeout=LIST_SECONDS, check=False
        )
        if done.returncode:
            note = f"{part.module} --list ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}"
            self._keep({"name": part.name, "ok": False, "seconds": 0.0, "note": note}, part)
            return {}
        listed: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        return listed

    def _follow(self, part: Part, items: Items, before: dict[str, str]) -> None:
        for result in items.run(lambda: self.end):
            around = {"clocks": [before, clocks(self._device)]} if before else {}
            self._keep(result | around, part)

    def _keep(self, result: Result, part: Part) -> None:
        """Print a result, and write all."""
        with self._lock:
            seen = [each for each in self.report["results"] if each["name"] != result["name"]]
            self.report["results"] = [*seen, result | {"part": part.name, "call": len(self.report["calls"]) - 1}]
            at, word = time.monotonic() - self._start, "ok" if result["ok"] else "FAILED"
            print(
                f"{at:5.0f} s  {word} {part.name}: {result['name']}, {result['seconds']} s {result['note']}", flush=True
            )
            self.report["left"] = [name for name in self.report["left"] if name != result["name"] or result.get("cut")]
            self._save()

    def _leave(self, part: Part, names: Sequence[str]) -> None:
        """Say that items are left for another call."""
        with self._lock:
            left = [name for name in self.report["left"] if name not in names]
            self.report["left"] = [*left, *names]
            if names:
                some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                over = max(self.end - time.monotonic(), 0)
                print(
                    f"LEFT {part.name} ({some}): it takes about {part.usual} s, and {over:.0f} s are there", flush=True
                )
            self._save()

    def _save(self) -> None:
        self.report["calls"][-1]["seconds"] = round(time.monotonic() - self._start, 1)
        self.report["targets"] = judged(self.report["results"])
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        new.replace(self._file)  # whole at any moment


def gpu(device: torch.device) -> dict[str, Any]:
    """The GPU, its driver and its clocks; for a CPU, a note that the figures mean nothing."""
    if device.type == "cpu":
        return {"name": "none: Triton's interpreter on a CPU; the figures mean nothing"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": list(torch.cuda.get_device_capability(device)),
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "driver": asked(QUERY),
    }


def clocks(device: torch.device) -> dict[str, str]:
    """What changes during a run: clocks, power, temperature. They are read and never set."""
    return asked(CHANGING) if device.type == "cuda" else {"none": "a CPU"}


def asked(query: Sequence[str]) -> dict[str, str]:
    """The answers of the driver's own tool for the first GPU; or why it gave none."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(query)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20.0, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"unknown": str(error)}
    values = (value.strip() for value in done.stdout.strip().splitlines()[0].split(","))
    return dict(zip(query, values, strict=False))


def judged(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The targets that results can judge."""
    rows = {result["name"]: result["rows"] for result in results if result.get("rows")}
    return [target._asdict() | {"reached": target.reached} for target in targets(rows)]


def table() -> Iterator[str]:
    """The parts, as text."""
    for part in PARTS:
        yield f"{part.name:14} {part.usual:4} s  {part.what}"
    yield f"{'all':14} {sum(part.usual for part in PARTS):4} s, of which one call takes {SECONDS}; then --out again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write. 0: all is done and right; 1: something failed; 2: nothing was done; 4: something is left."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.plan", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for everything; without it the plan is printed")
    parser.add_argument("--commit", metavar="HASH", help="of this checkout, where there is no git")
    parser.add_argument("--toy", action="store_true", help="on the CPU, interpreted, with little to do")
    parser.add_argument("--seconds", type=float, help=f"of this call; default: {SECONDS}, with --toy no end")
    parser.add_argument("--again", action="store_true", help="also what has failed")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="parts, groups of bodies, or items")
    given = parser.parse_args(arguments)
    if given.out is None:
        print("\n".join(table()))
        return 0
    if not given.toy and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 2
    os.environ.update(ENVIRONMENT | ({"TRITON_INTERPRET": "1"} if given.toy else {}))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # they take seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the children are ended, too
    try:
        run = Run(given.out, given.seconds or (1e9 if given.toy else SECONDS), at=given.commit, is_toy=given.toy)
    except OtherGpu as error:
        print(error)
        return 2
    if not run.do(PARTS, only=given.only, again=given.again):
        print(f"the {SMOKE} body failed: nothing else was begun. Mend it, and call again with --again")
    results = run.results()
    for target in judged(results):
        sign, mark = ("≥" if target["at_least"] else "≤"), ("reached" if target["reached"] else "NOT REACHED")
        print(f"{mark}: {target['what']}: {target['measured']:.2f} {sign} {target['limit']:g} {target['unit']}")
    failed = [result["name"] for result in results if not result["ok"] and not result.get("cut")]
    left = run.report["left"]
    print(f"{len(results)} results in {given.out}; failed: {', '.join(failed) or 'none'}")
    print(f"left: {', '.join(left) or 'none'}")
    return 1 if failed else 4 if left else 0


if __name__ == "__main__":
    sys.exit(main())

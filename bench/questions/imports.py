"""The time of a fresh process to import, and to its first put, with all compiled code and bytecode on disk."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from time import perf_counter

from nanokv.bench.suite.environment import child_environment
from nanokv.bench.suite.figure import Figure, quantity
from nanokv.bench.suite.question import Question, Run

FIRST_PUT = """\
import json, time, torch, nanokv.cache.cache
tensor, began = torch.ones(256), time.perf_counter()
world = nanokv.local_world(2, 16 << 20)
opened = time.perf_counter()
world[0].put("k", tensor)
ended = time.perf_counter()
for cache in world:
    cache.close()
print(json.dumps([opened - began, ended - opened, ended - began]))
"""

PROGRAMS = {
    "python": "pass",
    "import torch": "import torch",
    "import nanokv": "import nanokv",
    "import nanokv.cache.cache": "import nanokv.cache.cache",
    "first put": FIRST_PUT,
}
BEYOND_TORCH = "import nanokv.cache.cache, beyond import torch"
INSIDE = ("a world", "the first put", "a world and the first put")  #: what FIRST_PUT prints the seconds of
SECONDS = 300.0  #: a bound, for a first run that must compile


def environment(bytecode: str) -> dict[str, str]:
    """The environment of programs whose modules are compiled once, into the folder `bytecode`, as by an installer."""
    mine = child_environment() | {"PYTHONPYCACHEPREFIX": bytecode}
    mine.pop("PYTHONDONTWRITEBYTECODE", None)
    return mine


def run_program(program: str, env: dict[str, str]) -> tuple[float, str]:
    """Seconds of a process that runs `program`, from its start to its end, and what it printed.

    Raises:
        CalledProcessError, TimeoutExpired: the program failed, or did not end.
    """
    command = [sys.executable, "-P", "-c", program]
    start = perf_counter()
    done = subprocess.run(command, env=env, check=True, timeout=SECONDS, stdout=subprocess.PIPE, text=True)
    return perf_counter() - start, done.stdout


def measure(run: Run) -> Iterator[Figure]:
    """All programs in turns."""
    with TemporaryDirectory() as bytecode:
        ways = {name: partial(run_program, program, environment(bytecode)) for name, program in PROGRAMS.items()}
        found = run.in_turns(ways, warm_up=1)
    seconds = {name: [took for took, _ in runs] for name, runs in found.items()}
    for name, values in seconds.items():
        yield quantity("imports", {"process": name}, "s", "lower", values)
    pairs = zip(seconds["import nanokv.cache.cache"], seconds["import torch"], strict=True)
    yield quantity("imports", {"process": BEYOND_TORCH}, "s", "lower", [mine - torch for mine, torch in pairs])
    inside = [json.loads(printed) for _, printed in found["first put"]]
    for name, all_seconds in zip(INSIDE, zip(*inside, strict=True), strict=True):
        yield quantity("imports", {"step": name}, "ms", "lower", [1e3 * one for one in all_seconds])


QUESTION = Question(
    "imports",
    "How long do an import and a first put take in a fresh process?",
    measure,
    "Wall time of whole processes, in turns, after one lap that does not count: files are in the page cache, "
    "compiled code and Python's bytecode on disk. `import nanokv` is lazy, `import nanokv.cache.cache` is not. "
    "`first put` is what a program pays: the interpreter, torch, the compiled code, a world of two ranks, one put, "
    "and the end; the steps are taken by the clock of that process.",
)

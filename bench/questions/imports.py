"""The time of a fresh process to import, and to its first put. Compiled code is cached, as after any first run."""

import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from nanokv.bench.suite.environment import child_environment
from nanokv.bench.suite.settings import Settings

FIRST_PUT = """\
import torch, nanokv
world = nanokv.local_world(2, 16 << 20)
world[0].put("k", torch.ones(256))
for cache in world:
    cache.close()
"""

PROGRAMS = {
    "python": "pass",
    "import torch": "import torch",
    "import nanokv": "import nanokv",
    "import nanokv.cache": "import nanokv.cache",
    "first put": FIRST_PUT,
}
SECONDS = 300.0  #: a bound, for a first run that must compile


def seconds(program: str) -> float:
    """Wall time of a process that runs `program`, from its start to its end."""
    start = perf_counter()
    subprocess.run([sys.executable, "-P", "-c", program], env=child_environment(), check=True, timeout=SECONDS)
    return perf_counter() - start


def run(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Time each program several times, in turns. The first lap warms caches and does not count."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for lap in range(settings.repeats + 1):
        say(f"imports: lap {lap} of {settings.repeats}")
        for name, program in PROGRAMS.items():
            took = seconds(program)
            if lap:
                times[name].append(took)
    rows = [{"program": name, "seconds": statistics.median(all_), "runs": all_} for name, all_ in times.items()]
    return {"repeats": settings.repeats, "rows": rows}

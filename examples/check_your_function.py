"""Check a device function of your own under the simulated machine: all executions that differ, with weak memory.

The function is a try-lock around a counter. With `acquire` and `release` no execution loses an addition; with a relaxed
unlock some do, and the program prints a schedule that shows it.

    python examples/check_your_function.py
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, store64, word
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import SHARED, WeakMemory
from nanokv.device.sim.mutants import rewrite
from nanokv.device.sim.schedule import Schedule
from nanokv.device.sim.simulation import Simulation

LOCK, COUNT = SHARED, SHARED + 8
TRIES = tl.constexpr(3)


@triton.jit
def add_locked(lock: tl.int64, count: tl.int64) -> Any:
    """Add one to the counter, under the lock: 1, or 0 if the lock was not free within a few tries."""
    mine = word(0)
    tries = word(0)
    while (mine == 0) & (tries < TRIES):
        if load64(lock, "relaxed") == 0:
            if add64(lock, 1, "acquire") == 0:
                mine = word(1)
            else:
                add64(lock, -1, "relaxed")
        tries += 1
    if mine == 1:
        store64(count, load64(count, "relaxed") + 1, "relaxed")
        add64(lock, -1, "release")
    return mine


def lost_update(replaced: dict[Any, Any] | None = None) -> Schedule | None:
    """The first schedule of two tasks in which an addition is lost, or None if no execution loses one."""
    simulation = Simulation(WeakMemory, replaced)
    add = simulation.function(add_locked)
    scheduler = Exhaustive()
    while (execution := scheduler.new_execution()) is not None:
        simulation.reset([0, 0])
        tasks = [simulation.spawn(name, lambda: add(LOCK, COUNT)) for name in ("one", "two")]
        try:
            simulation.run(execution)
        except Redundant:
            continue
        if simulation.memory.newest(COUNT) != sum(task.result for task in tasks):
            return Schedule(tuple(simulation.taken))
    print(f"{scheduler.executions} executions, none left")
    return None


def main() -> None:
    """Check the lock, then the lock with a relaxed unlock."""
    print("as it is:", lost_update() or "no addition is lost")
    relaxed = rewrite(add_locked, 'add64(lock, -1, "release")', 'add64(lock, -1, "relaxed")')
    print("with a relaxed unlock, an addition is lost in:", lost_update(relaxed))


if __name__ == "__main__":
    main()

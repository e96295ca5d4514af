"""Random calls on compiled kernels for gfx942 and on the native machine: the same answers, the same bytes.

python -m tests.support.gcn_difference [--calls 150] [--seed 1] [--weak]
"""

import argparse
import random
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch

from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.triton_driver import as_triton_driver
from nanokv.device.machines import launch
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun
from nanokv.device.segment.layout import FLAG_PLAN
from nanokv.device.segment.views import SegmentView
from tests.gpu.bodies import OK, PAGE, World, flat, key

SIZES = (0, 1, 7, 8, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 8193, 20000)
CALLS = (
    *("put",) * 5, "get", "get", "lookup", "find", "read", "remove", "remove", "begin", "begin", "end", "end",
    "pin", "unpin", "drain", "marks", "touch", "lease", "push",
)  # fmt: skip


class Pair:
    """Two worlds of equal segments, and calls that do the same to both."""

    def __init__(self, dice: random.Random, seed: int) -> None:
        options: dict[str, Any] = {
            "may_evict": dice.random() < 0.5,
            "checksum": dice.random() < 0.5,
            "slots": dice.choice((6, 20, 64)),
        }
        self.dice, self.bytes = dice, np.random.default_rng(seed)
        self.worlds = [World(torch.device("cpu"), dice.choice((8, 24, 64)), **options)]
        pages = self.worlds[0].geometry.n_pages
        self.worlds.append(World(torch.device("cpu"), pages, **options))
        geometry, segments = self.worlds[1].geometry, self.worlds[1].segments
        table = geometry.world_table(0, 1, [each.data_ptr() for each in segments], checksum=options["checksum"])
        views = [SegmentView(each.numpy(), geometry) for each in segments]
        self.launched, self.native = self.worlds[0].machine, NativeMachine(geometry, table, views, lambda rank: None)
        self.begun: list[Begun] = []
        self.pins: list[tuple[Any, int]] = []
        self.tails = [0, 0]

    def both(self, name: str, *args: Any) -> Any:
        """One call of both machines; they must answer alike."""
        answers = [getattr(machine, name)(*args) for machine in (self.launched, self.native)]
        same(*answers, (name, args))
        return answers[0]

    def step(self, now: int) -> str:
        """One random call; then the segments are equal."""
        name, k, owner = self.dice.choice(CALLS), key(self.dice.randrange(12)), self.dice.randrange(2)
        getattr(self, f"_{name}")(k, owner, now)
        for rank in range(2):
            one, two = (world.segments[rank] for world in self.worlds)
            assert torch.equal(one, two), (name, now, rank, hex(int((one != two).nonzero()[0])))
        return name

    def _put(self, k: Any, owner: int, now: int) -> None:
        size, shift = self.dice.choice(SIZES), self.dice.choice((0, 8, 3))
        data = torch.from_numpy(self.bytes.integers(0, 256, size + 16, np.uint8))[shift:][:size]
        self.both("put", owner, k, data.data_ptr(), size, flat(size), now)

    def _get(self, k: Any, owner: int, now: int) -> None:
        found = self.native.lookup(k)
        size = found.place.nbytes if found.status == OK else 8
        rooms = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        machines = (self.launched, self.native)
        same(*[m.get(k, r.data_ptr(), size, (0,) * 8, now) for m, r in zip(machines, rooms, strict=True)], "get")
        assert torch.equal(*rooms)

    def _lookup(self, k: Any, owner: int, now: int) -> None:
        self.both("lookup", k)

    def _find(self, k: Any, owner: int, now: int) -> None:
        self.both("find", k)

    def _read(self, k: Any, owner: int, now: int) -> None:
        found = self.both("lookup", k)
        if found.status == OK:
            room = torch.zeros(found.place.nbytes, dtype=torch.uint8)
            self.both("read", k, found.place, room.data_ptr(), now)

    def _remove(self, k: Any, owner: int, now: int) -> None:
        self.both("remove", k)

    def _begin(self, k: Any, owner: int, now: int) -> None:
        size = self.dice.choice(SIZES)
        flags = FLAG_PLAN.value if self.dice.random() < 0.3 else 0
        made = self.both("begin", owner, k, size, flags, flat(size), now)
        if made.status == OK:
            self.begun.append(made)

    def _end(self, k: Any, owner: int, now: int) -> None:
        if self.begun:
            made = self.begun.pop(self.dice.randrange(len(self.begun)))
            if self.dice.random() < 0.6:
                self.both("finish", made.place, made.phase)
            else:
                self.both("abort", made.place)
                self.both("leave", made.place.owner, made.phase)

    def _pin(self, k: Any, owner: int, now: int) -> None:
        found = self.both("lookup", k)
        if found.status == OK:
            status, line = self.both("pin", found.place)
            if status == OK:
                self.pins.append((found.place, line))

    def _unpin(self, k: Any, owner: int, now: int) -> None:
        if self.pins:
            self.both("unpin", *self.pins.pop(self.dice.randrange(len(self.pins))))

    def _drain(self, k: Any, owner: int, now: int) -> None:
        answers = [m.drain(owner, self.tails[owner], 200) for m in (self.launched, self.native)]
        assert answers[0].head == answers[1].head
        self.tails[owner] = answers[0].head

    def _marks(self, k: Any, owner: int, now: int) -> None:
        for name in ("page_marks", "slot_marks", "page_stamps", "pin_ledger"):
            self.both(name, owner)

    def _touch(self, k: Any, owner: int, now: int) -> None:
        found = self.both("lookup", k)
        if found.status == OK:
            self.both("touch", found.place, now)
            self.both("validate", found.place)

    def _lease(self, k: Any, owner: int, now: int) -> None:
        found = self.both("lookup", k)
        if found.status == OK:
            self.both("lease", found.place, now + 50)

    def _push(self, k: Any, owner: int, now: int) -> None:
        """Free lists pass through the host."""
        for size_class in range(4):
            pages = self.both("detach", owner, size_class)
            if len(pages):
                self.both("push_extents", owner, pages, np.full(len(pages), size_class, np.int64))


def same(one: Any, two: Any, what: Any) -> None:
    """Equal answers: numbers, arrays, or tuples of them."""
    if isinstance(one, np.ndarray):
        assert np.array_equal(one, two), (what, one, two)
    else:
        assert one == two, (what, one, two)


def main() -> int:
    """Compare some calls of one world."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.gcn_difference")
    parser.add_argument("--calls", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weak", action="store_true", help="late operations, and caches")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*TRITON_DEFAULT_FP_FUSION.*")
    launch.check_compiler = lambda *_, **__: None  # type: ignore[assignment]  # it refuses a CPU
    machine = Machine(chosen.seed, weak=chosen.weak)
    with as_triton_driver(machine):
        pair = Pair(random.Random(chosen.seed), chosen.seed)
        counts = Counter(pair.step(1000 + n) for n in range(chosen.calls))
    print(f"equal after {chosen.calls} calls: {dict(counts)}, {machine.instructions} instructions")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The machine: launches, whose warps it lets go on in an order that its seed decides."""

import random
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nanokv.device.emulation.arguments import Grid
from nanokv.device.emulation.errors import EmulatorError, NoProgress, Unsupported
from nanokv.device.ptx.access import Memory
from nanokv.device.ptx.blocks import Style
from nanokv.device.ptx.counting import Price, one_per_access
from nanokv.device.ptx.host_memory import TensorMemory
from nanokv.device.ptx.launch import Cta, Launch
from nanokv.device.ptx.report import Finding, LaunchCounts, Report
from nanokv.device.ptx.warp import Warp


class Machine:
    """Runs launches, one after the other. Not for several threads at a time.

    Args:
        seed: of the order of warps.
        memory: what kernels access; by default only the tensors of each launch.
        resident: CTAs that run at a time, at most; the others wait for one to end. None: all.
        burst: steps of a warp until another one may go on, on average.
        in_turns: warps go on one after the other, a step each, as those of a GPU that began together nearly do.
        limit: steps of one launch, at most.
        split_lanes: the chance that a load by all lanes is cut in two, with other warps in between: shows where a
            kernel relies on one value for all lanes, which PTX does not promise.
        count: count instructions and accesses, which is several times slower.
        price: what an instruction adds to the chains that are counted. Default: 1 for an access to global memory.
        one_lane_atomics: find atomics by more than one lane.
        system_scope: find atomics of a scope below the system.

    Attributes:
        findings: (what, kernel, where) -> how often.
        steps: blocks that were done.
        divergences: how often lanes parted.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        memory: Memory | None = None,
        resident: int | None = None,
        burst: float = 3.0,
        in_turns: bool = False,
        limit: int = 50_000_000,
        split_lanes: float = 0.0,
        count: bool = False,
        price: Price = one_per_access,
        one_lane_atomics: bool = False,
        system_scope: bool = False,
    ) -> None:
        self.dice = random.Random(seed)
        self.seed = seed
        self.memory = memory if memory is not None else TensorMemory()
        self.resident, self.burst, self.limit, self.split_lanes = resident, burst, limit, split_lanes
        self.in_turns = in_turns
        self.price = price
        self.count, self.one_lane_atomics, self.system_scope = count, one_lane_atomics, system_scope
        self.findings: Tally[tuple[str, str, str]] = Tally()
        self.launches: Tally[str] = Tally()
        self.counts: list[LaunchCounts] = []
        self.steps = self.divergences = 0
        self._operation = ""

    def report(self) -> Report:
        """What was found and counted so far."""
        findings = [Finding(*key, times) for key, times in sorted(self.findings.items())]
        return Report(self.seed, tuple(findings), dict(self.launches), self.steps, self.divergences, tuple(self.counts))

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Launches within are counted under a name."""
        before, self._operation = self._operation, name
        try:
            yield
        finally:
            self._operation = before

    def prepare(self, ptx: str, grid: Grid, arguments: Sequence[tuple[str, Any]], shared: int = 0) -> Launch:
        """A launch that the caller runs: `Cta(launch, place)` makes the warps, `Warp.step` does a block of one."""
        style = Style(single=self.count, split=self.split_lanes > 0, late=self.memory.late)
        return Launch(self, ptx, grid, arguments, shared, style)

    def launch(self, ptx: str, grid: Grid, arguments: Sequence[tuple[str, Any]], shared: int = 0) -> None:
        """Run a kernel to its end.

        Args:
            ptx: a module with one entry.
            arguments, shared: see `Launch`.

        Raises:
            PtxError: see `emulation.errors`.
        """
        launch = self.prepare(ptx, grid, arguments, shared)
        self.launches[launch.program.name] += 1
        with np.errstate(all="ignore"):
            done = self._run(launch)
        if self.count:
            self.counts.append(LaunchCounts.of(self._operation or launch.program.name, launch.program.name, done))

    def _run(self, launch: Launch) -> list[Warp]:
        """Let warps go on until all have ended; returns those that count."""
        places, ready = launch.ctas()[::-1], launch.ready
        running: list[Cta] = []
        done: list[Warp] = []
        most, steps, turn = self.resident or len(places), 0, 0
        while places or running:
            while places and len(running) < most:
                running.append(Cta(launch, places.pop()))
            if not ready:
                raise launch.stuck([warp for cta in running for warp in cta.warps])
            turn = (turn + 1) % len(ready) if self.in_turns else int(self.dice.random() * len(ready))
            warp = ready[turn]
            steps += self._burst(warp, len(ready) == 1 and len(running) == 1 and not places)
            if warp.done:
                warp.cta.ended(warp)
                if not warp.cta.warps:
                    running.remove(warp.cta)
                if launch.style.single:
                    done.append(warp)
            if steps > self.limit:
                raise NoProgress(f"{warp.where()}: more than {self.limit} steps of {launch.program.name}")
        self.steps += steps
        return done

    def _burst(self, warp: Warp, alone: bool) -> int:
        """Some steps of a warp; how many."""
        steps, dice, burst = 0, self.dice.random, self.burst
        try:
            while True:
                steps += 1
                if not warp.step() or warp.waiting is not None or steps > self.limit:
                    return steps
                if not alone and (self.in_turns or dice() * burst < 1.0):
                    return steps
        except EmulatorError as error:
            if not isinstance(error, Unsupported) and not str(error).startswith("CTA "):
                raise type(error)(f"{warp.where()}: {error}") from error
            raise

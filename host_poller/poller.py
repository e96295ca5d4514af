"""The poller thread of one rank: it drains the announce ring, keeps the index, tells listeners, and sweeps.

`step` does one round and never waits; the thread is a thin loop around it. While hints keep coming, the thread pauses
for a fraction of a millisecond between two rounds, so that it takes a stream of puts in batches and no producer has to
wake it. Otherwise it sleeps on the ring's head, and the first announcement wakes it; it sweeps a few times a second, or
less often when nothing can have changed.

A round looks at one slice of the headers, so that the ring does not wait for a pass over all of them. The more slots
were ever used, the less often a pass begins (`SLOT_REST`), so that passes take no more of a core.
"""

import ctypes
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.outbox import Outbox
from nanokv.device.segment.clock import now_ns
from nanokv.errors import HeapUnavailable, InvalidArgument, WaitTimeout
from nanokv.heap.base import Heap
from nanokv.host_poller.events import Event, Listener, Listeners
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.intake import Intake
from nanokv.host_poller.members import Members
from nanokv.host_poller.orphans import Orphans
from nanokv.host_poller.removal import Removal
from nanokv.host_poller.sweeper import Sweeper

# --- how the system schedules the poller's thread: its sleeps end on time, and it interrupts nobody ---
_SET_TIMERSLACK = 29  # prctl's number


def end_sleeps_on_time() -> bool:
    """Let the sleeps of the calling thread end within about a microsecond. False where the system cannot.

    Linux lets each end up to 50 µs late, to wake processors less often.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        done: int = ctypes.CDLL(None).prctl(_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
    except (OSError, AttributeError):  # no such library, or function
        return False
    return done == 0


def interrupt_nobody() -> bool:
    """Let the calling thread wait when it wakes up on a processor that works. False where the system cannot.

    A thread that sleeps for microseconds is mostly woken where it ran last, also beside an idle processor. If a
    producer runs there, each of its pauses costs that producer two changes of threads. One of the policy for batches
    waits instead, until an idle processor takes it over, or the producer's time is up; then it stays where it does not
    disturb.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):  # refused, for instance to a real-time process; or no such system
        return False
    return True


# --- the poller -------------------------------------------------------------------------------
_log = logging.getLogger("nanokv.poller")

SWEEP_SECONDS = 0.25
HOUSEKEEPING = 0.05  #: seconds of native rounds, at most, before the thread looks at all else
QUIET_SWEEP_SECONDS = 2.0  #: while HeapCtl does not change
SLOT_REST = 2.5e-6  #: seconds per slot from one pass to the next, at least: about 100 times what the pass takes


class Pace(NamedTuple):
    """How often a poller looks."""

    pause: float  #: seconds between two rounds while hints keep coming
    idle_rounds: int  #: empty rounds before it goes to sleep


WOKEN = Pace(0.0005, 20)  #: where the segment lies in host memory, and the first announcement wakes the poller
LOOKING = Pace(0.00002, 1000)  #: nothing wakes the poller of a segment on a GPU: it goes on looking for about 0.1 s


class Poller:
    """Keeps one rank's index. `start` starts its thread, `stop` ends it.

    Args:
        write_timeout, reclaims, removal: of the `Sweeper`.
        each_round: called by the thread in each of its rounds.
    """

    def __init__(
        self,
        machine: Machine,
        heap: Heap,
        *,
        write_timeout: float,
        reclaims: bool,
        removal: Removal | None = None,
        each_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._each_round = each_round
        self._machine = machine
        self._heap = heap
        self._rank = heap.rank
        self._reclaims = reclaims
        self.index = HeaderIndex(machine.geometry, self._rank)
        self.listeners = Listeners[Event]()
        self.sweeper = Sweeper(machine, heap, self.index, write_timeout, reclaims, removal)
        self.intake = Intake(machine, self._rank, self.index, self.listeners)
        self.evicted = 0
        self.failures = 0
        self.orphans = 0
        self._orphans = Orphans(machine, heap)
        self._fingerprint = b""
        self._swept = self._pass_began = -math.inf
        self._pass_due = False  # and waits for its time
        self._stop = threading.Event()
        self._between_rounds = threading.Lock()
        self._sweep_now = threading.Event()
        self._round = threading.Condition()
        self._rounds = 0
        self._thread: threading.Thread | None = None
        self._took = 0.0  # seconds of the last round
        self._pace = WOKEN if machine.wakes else LOOKING

    # one round
    def step(self, now: float) -> int:
        """Take hints from the ring once, and sweep what is due. Returns how many hints were taken."""
        taken = self.drain(now)
        self.tend(now)
        return taken

    def drain(self, now: float) -> int:
        """Take at most BATCH hints from the ring. Returns how many."""
        taken = self.intake.take(now)
        self._join_if_wanted()
        return taken

    def tend(self, now: float) -> None:
        """Sweep what is due, and evict what is too much."""
        if self._sweep_now.is_set():
            self._sweep_now.clear()
            self.sweep(now)
        else:
            self._sweep_some(now)
        if self._reclaims:
            self.evicted += self.sweeper.water.evict()
        self.evicted += self.sweeper.quotas.evict()

    def _join_if_wanted(self) -> None:
        size_class, self.intake.wanted = self.intake.wanted, -1
        if self._reclaims and size_class >= 0:
            self.sweeper.join_for(size_class)

    # the sweep
    def sweep(self, now: float) -> None:
        """Look at all headers now, and tend, whether or not that is due."""
        self._swept = self._pass_began = now
        for change in self.sweeper.step(now):
            self.intake.tell(change)

    def _sweep_some(self, now: float) -> None:
        """Look at a slice if a pass is under way or due. Tend if a sweep is due, or the pass has ended."""
        due = self._sweep_due(now)
        self._pass_due |= due
        if self._pass_due and now - self._pass_began >= SLOT_REST * self.sweeper.pass_slots:
            self._pass_began, self._pass_due = now, False
            self.sweeper.begin_pass()
        looks = self.sweeper.passing
        if looks:
            for change in self.sweeper.look(now):
                self.intake.tell(change)
        if due:
            self._swept = now
        if due or (looks and not self.sweeper.passing):
            self.sweeper.tend()

    def _sweep_due(self, now: float) -> bool:
        since = now - self._swept
        if since < SWEEP_SECONDS:
            return False
        if since >= QUIET_SWEEP_SECONDS or self.sweeper.pending or self.sweeper.labels.is_due(now_ns()):
            return True
        control = self._machine.control(self._rank)[0]
        names = ("bump_ptr", "hdr_head", "hdr_free", "ann_head", "missed", "refused")
        words = b"".join(np.asarray(control[name]).tobytes() for name in names)
        changed, self._fingerprint = words != self._fingerprint, words
        return changed or self.sweeper.somebody_died()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell a listener of all that happens from now on; returns the function that ends that."""
        drop = self.listeners.add(listener)
        with self.index.turn:  # native rounds that began without a listener end
            return drop

    def tell_to(self, outbox: Outbox) -> Callable[[], None]:
        """Write all that happens to objects from now on to an outbox; returns the function that ends that."""
        return self.intake.tell_to(outbox)

    # the thread
    def start(self) -> None:
        """Start the thread. It is a daemon: a process that forgets to close does not hang.

        Raises:
            HeapUnavailable: the system gives no thread, as where a container has used up its processes.
        """
        thread = threading.Thread(target=self._run, name=f"nanokv-poller-{self._rank}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise HeapUnavailable(
                f"rank {self._rank} cannot have its poller: {error}. The limit of processes and threads (ulimit -u, or "
                "pids.max of the container) may be reached"
            ) from None
        self._thread = thread

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread and wait for it, at most `timeout` seconds. Idempotent."""
        self._stop.set()
        self._heap.wake(self._rank)
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            with self.index.turn.asking():
                thread.join(timeout)

    @property
    def is_this_thread(self) -> bool:
        """Whether the poller's thread asks: listeners run there, and finalizers may."""
        return self._thread is threading.current_thread()

    def refuse_own_thread(self, call: str) -> None:
        """Raise InvalidArgument if the poller's thread asks: `call` waits, for what this thread does or for others."""
        if self.is_this_thread:
            why = "it is its thread that calls, as a listener of events does. Let another thread call"
            raise InvalidArgument(f"{call} would stop the poller of rank {self._rank}: {why}")

    def at_rest(self, do: Callable[[], bool]) -> bool:
        """Call `do` between two rounds. If it returns True no further round comes: `stop` joins the thread.

        Raises:
            InvalidArgument: this is the poller's thread.
        """
        self.refuse_own_thread("this")
        with self.index.turn.asking(), self._between_rounds:
            ends = do()
            if ends:
                self._stop.set()
            return ends

    def flush(self, timeout: float) -> None:
        """Wait until the index has every object that was committed in this segment before the call.

        Raises:
            WaitTimeout: after `timeout` seconds.
            InvalidArgument: this is the poller's thread.
        """
        self.refuse_own_thread("flush")
        deadline = time.monotonic() + timeout
        with self.index.turn.asking(), self._round:
            aim = self._rounds + 2  # the round under way may have looked already
            while self._rounds < aim:
                self._sweep_now.set()
                self._heap.wake(self._rank)
                left = max(deadline - time.monotonic(), 0)
                if not self._round.wait(min(0.05, left)) and time.monotonic() >= deadline:
                    raise WaitTimeout(f"the poller of rank {self._rank} did not come round in {timeout} s")

    def as_dict(self) -> dict[str, int]:
        """What the poller has done, for `stats`."""
        sweeps = {f"sweeper_{name}": value for name, value in asdict(self.sweeper.counts).items()}
        return {
            "indexed": len(self.index),
            "hints": self.intake.drained,
            "corrupt_hints": self.intake.corrupt,
            "removed": self.intake.removed,
            "evicted_ahead": self.evicted,
            "orphans": self.orphans,
            "poller_failures": self.failures,
        } | sweeps

    def _run(self) -> None:
        end_sleeps_on_time()  # else a pause of 20 µs takes 75
        interrupt_nobody()  # else one call of a hundred beside it takes 30 µs more
        self._machine.enter_owner()
        members, met = Members(self._machine, self._heap), -math.inf
        idle, is_first = 0, True  # rounds without hints
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                if not is_first:
                    idle = self._rest(idle)
                    if self._stop.is_set():
                        return
                is_first, begun = False, time.monotonic()
                taken = self._round_of_thread()
                self._each_round()
                if time.monotonic() - met >= SWEEP_SECONDS:
                    met = time.monotonic()
                    self.listeners.tell(members.events())
                    self.orphans += self._orphans.look() if self._reclaims else 0
            except Exception:  # a corrupt word must not end the service; `stats` shows the failure
                if self._stop.is_set():
                    return
                self.failures += 1
                _log.exception("a round of the poller of rank %d failed", self._rank)
                taken = True
                self._stop.wait(SWEEP_SECONDS)
            self._took = time.monotonic() - begun
            with self._round:
                self._rounds += 1
                self._round.notify_all()
            idle = 0 if taken else idle + 1

    def _round_of_thread(self) -> bool:
        """One round, or native rounds until something else is due. False if there were no hints (lately)."""
        with self._between_rounds:
            if self._stop.is_set():
                return False
            if not self.intake.is_native:
                return self.step(time.monotonic()) > 0
            hints = self.intake.stay(self._pace.pause if self._hurries() else HOUSEKEEPING)
            self._join_if_wanted()
            self.tend(time.monotonic())  # right after the ring: a sweep that sees an eviction first calls it a removal
            return hints

    def _hurries(self) -> bool:
        """Whether there is more to do than to take hints."""
        return self.sweeper.passing or self.sweeper.evicting or self._sweep_now.is_set()

    def _rest(self, idle: int) -> int:
        """Pause before the next round, or sleep until the next hint if `idle` rounds had none. Returns `idle` anew."""
        if not self._hurries() and not self.index.turn.asked[0]:
            limit = 0.02 if self.sweeper.pending or self.intake.waits else HOUSEKEEPING
            # as long as the round before took: so half of the time, at least, the interpreter's lock is free
            if self._machine.watch(self._rank, self.intake.head, limit, self.index.turn.asked, self._took) is not None:
                return idle
        if self._hurries() or idle < (1 if self.intake.is_native else self._pace.idle_rounds):
            if not self.intake.is_native or self.index.turn.asked[0]:  # let them have their turn
                self._stop.wait(self._pace.pause)
            return idle
        pending = self.sweeper.pending or self.intake.waits
        self._heap.wait_for_hint(0.02 if pending else SWEEP_SECONDS, self.intake.head)
        return self._pace.idle_rounds - 2  # a wait that ends at once must not become a loop without a pause

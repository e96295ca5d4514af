"""Bugs of the protocol and of the host that the simulated machine found, with the code of that time.

Each has a string that replays it on the old code (`docs/verification.md`). After a change of the protocol a string may
show nothing any more: `python -m tests.support.known_bugs` finds new ones, in some minutes.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from nanokv.check.protocol.model import audit_search
from nanokv.check.protocol.model.explore import SCHEDULERS, named, replay
from nanokv.check.protocol.model.mutants import MUTANTS
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.device.protocol import evict, reclaim, retire
from nanokv.device.segment.layout import PIN_HELD, unpack
from nanokv.device.sim.mutants import rewrite
from nanokv.host_poller import audit, sweeper
from nanokv.host_poller.audit import Audit
from nanokv.host_poller.quarantine import Quarantine
from nanokv.host_poller.sweeper import Sweeper

Patch = tuple[Any, str, Any]


class Bug(NamedTuple):
    """One bug: the old code, and an execution that shows it."""

    replay: str
    host: tuple[Patch, ...] = ()  #: (class or module, name, old value)
    device: Callable[[], dict[Any, Any]] = dict

    def shown_by(self, text: str) -> str | None:
        """The failure of an execution of the old code, or None."""
        with self._patched():
            return replay(text, self.device())

    def find(self, seconds: float) -> str | None:
        """A new execution that shows the bug, or None."""
        name = self.replay.partition("/")[0]
        with self._patched():
            if SCENARIOS[name].audited:
                return audit_search.find(SCENARIOS[name], self.device())
            explorer, schedule = named(self.replay, self.device())
            if explorer.execute(schedule) is not None:
                return self.replay
            near = explorer.near(schedule)
            if near is not None:
                return explorer.smallest(near).replay
            found = explorer.kill_everywhere(1, 4)
            for kind in SCHEDULERS:
                if found.failure is None:
                    found = explorer.draw(kind, 1 << 30, 3, seconds=seconds)
            return explorer.smallest(found.failure).replay if found.failure is not None else None

    def _patched(self) -> ExitStack:
        stack = ExitStack()
        for where, name, old in self.host:
            stack.enter_context(mock.patch.object(where, name, old))
        return stack


def _watch_those_seen_alive(self: Any) -> None:
    incarnations = self._machine.activity(self._rank)["incarnation"].tolist()
    living = {(rank, inc) for rank, inc in enumerate(incarnations) if inc and self._heap.alive(rank, inc)}
    if getattr(self, "living", set()) - living:
        self._audit.start()
    self.living = living


def _clear_intents(machine: Any, owner: int, alive: Any) -> int:
    ledger = machine.pin_ledger(owner)
    for line in np.flatnonzero(ledger).tolist():
        word = int(ledger[line])
        reader = int(unpack("PIN", "producer", word))
        if alive(unpack("PRODUCER", "rank", reader), unpack("PRODUCER", "incarnation", reader)):
            continue
        if unpack("PIN", "phase", word) == PIN_HELD.value:
            slot = int(unpack("PIN", "header", word))
            machine.drop_pin(owner, line, word, int(machine.headers(owner, slot, 1)[0]["epoch"]))
        else:
            machine.clear_intent(owner, line, word)
    return 0


def _start_once(self: Any) -> None:
    """One audit, without a grace period before its first look."""
    self._audits = 1
    if not self._looks:
        self._ticket = 0


def _all_slots(self: Any) -> set[int]:
    return {life.slot for life in {*self._unacknowledged, *self._tickets}}


BUGS = {
    "a torn look hid a leaked slot": Bug(
        "swept/weak: producer@26 0.1 2.2 5.2 9.1 10.2 16.1 18.2 21.2 25.2 30.1 36.2 39.1 40.2 44.2 55.2 "
        "60.2 61.1 64.1 104.1 113.1 120.1 127.1 130.1 152.1 159.1 160.1 189.1 201.1 222.1",
        host=((Audit, "start", _start_once), (Quarantine, "given_up_slots", property(_all_slots)), (audit, "LOOKS", 3)),
    ),
    "a rank that died before any sweep saw it alive was not audited": Bug(
        "swept/sc: producer@10 0.2 10.2", host=((Sweeper, "_audit_after_deaths", _watch_those_seen_alive),)
    ),
    "the pin of a reader that died between two steps stayed for ever": Bug(
        "swept-pins/sc: reader@24", host=((sweeper, "drop_dead_pins", _clear_intents),)
    ),
    "a slot was released by an old look at its state, while it was READY again": Bug(
        "release/weak: 1.1 3.1 48.1 50.1 54.3 58.3",
        device=lambda: (
            rewrite(
                reclaim.release,
                'state = add64(header + H_STATE, 0, "acq_rel")',
                'state = load64(header + H_STATE, "acquire")',
            )
            | rewrite(
                retire.take_out, "wild = not is_held(world, seg, page, size_class, slot)", "wild = size_class < 0"
            )
        ),
    ),
    "a disturbed look hid a leaked page": Bug(
        "leaked/sc: 13.1 22.1 24.1 25.1 28.1 45.1 48.1 49.1 50.1 52.1 53.1 54.1 57.1 59.1 63.1 66.1 69.1 "
        "71.1 74.1 78.1 83.1 85.1 86.1 88.1 89.1 90.1 94.1 103.1 113.1 123.1 124.1 133.1 135.1 136.1 137.1 "
        "138.1 143.1 144.1 145.1 152.1 155.1 160.1 173.1 174.1 179.1 183.1 184.1 188.1 194.1 196.1 206.1 "
        "212.1 213.1 216.1 218.1 221.1 222.1 223.1 226.1 230.1",
        host=((Audit, "start", _start_once),),
    ),
    "a living producer was given up for the dead one that had the slot before": Bug(
        "heir/weak: 1.1 59.1 71.1",
        host=((sweeper, "names_producer", lambda header: True),),
    ),
    "a late plan's bytes landed in the next object of its page": Bug(
        "acknowledge/weak: 0.1 64.1 76.1",
        device=lambda: rewrite(
            reclaim.release,
            'state = add64(header + H_STATE, 0, "acq_rel")\n    load64(header + H_FLAGS, "acquire")',
            'state = load64(header + H_STATE, "relaxed")\n    load64(header + H_FLAGS, "relaxed")',
        ),
    ),
    "a reader on another host took two equal looks at a header, both torn, for looks at one object": Bug(
        "remote-fresh/sc: 18.3 20.1 44.1 70.1 75.1", device=MUTANTS["remote-two-looks"].replaced
    ),
    "a reader on another host took a torn header for a corrupt one": Bug(
        "remote-fresh/sc: 0.1 6.1 19.1 37.1 42.5 47.1 75.1",
        device=MUTANTS["remote-doubt-is-corrupt"].replaced,
    ),
    "a reader on another host looked in the flags of the slot's next object for its checksum": Bug(
        "remote-checksum/sc: 0.1 7.1 67.1 119.1", device=MUTANTS["remote-flags-late"].replaced
    ),
    "three looks saw a page in three passages, and gave it to a second owner": Bug(
        "audited/sc: 10.1 90.1 127.1 166.1 194.1 234.1", host=((audit, "LOOKS", 3),)
    ),
    "a page that went from object to object by eviction seemed to be in no place": Bug(
        "audited-evict/sc: 10.1 46.1 91.1 201.1 238.1 344.1 381.1 464.1",
        device=lambda: rewrite(
            evict.evict_for,
            "                        stamp(page_links(world, seg), page, class_pages(world, size_class))\n",
            "",
        ),
    ),
}


def main(seconds: float = 90.0) -> None:
    """Print an execution for each bug: the known one if it still shows the bug."""
    for about, bug in BUGS.items():
        known = bug.shown_by(bug.replay) is not None
        print(f"{about}\n    {bug.replay if known else bug.find(seconds)}", flush=True)


if __name__ == "__main__":
    main()

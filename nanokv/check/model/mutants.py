"""The protocol and its host, broken on purpose: a checker that does not notice them checks nothing.

Each mutant is a change of source text (`device/sim/mutants.py`), or of a method of the host, and names the scenarios
that should notice it. A mutant that survives them all fails `nanokv check mutants`: then a scenario is missing, or an
oracle, or what was broken is not needed. Orderings are in `orderings`.
"""

from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from os import cpu_count
from typing import Any, NamedTuple
from unittest import mock

from nanokv.check.model.explore import MEMORIES, SCHEDULERS, Explorer, Failure
from nanokv.check.model.suite import SCENARIOS
from nanokv.check.report import Row
from nanokv.device import activity, directory, evict, extent, freelist, header, object, pins, reclaim, retire, ring
from nanokv.device.sim.mutants import rewrite
from nanokv.host_poller import audit, grace, sweeper

NOTICED = ("CheckFailure", "MemoryFault", "NoProgress")  #: anything else is an error of the mutant itself

Change = tuple[Any, str, str]  #: (device function, old text, new text)
Patch = tuple[Any, str, Any]  #: (class or module, name, what stands there instead)


class Mutant(NamedTuple):
    """One broken variant."""

    name: str
    about: str  #: what is broken
    scenarios: tuple[str, ...]  #: which should notice
    changes: tuple[Change, ...] = ()
    patches: tuple[Patch, ...] = ()

    def replaced(self) -> dict[Any, Any]:
        """For `Simulation`."""
        found: dict[Any, Any] = {}
        for function, old, new in self.changes:
            found |= rewrite(function, old, new)
        return found

    def patched(self) -> ExitStack:
        """The host's part of it, for as long as the context lasts."""
        stack = ExitStack()
        for where, name, instead in self.patches:
            stack.enter_context(mock.patch.object(where, name, instead))
        return stack


def _no_wait(self: Any) -> bool:
    return True


def _hold_without_grace(self: Any, key: tuple[int, int], header: Any) -> None:
    self._quarantine[key] = 0


def _hold_without_word(self: Any, key: tuple[int, int], header: Any) -> None:
    self._quarantine[key] = self.grace.request()


def _nothing(self: Any, *args: Any) -> None:
    return None


_LIST = "(((old >> TAG_SHIFT) + 1) << TAG_SHIFT)"
_SAME_TAG = "((old >> TAG_SHIFT) << TAG_SHIFT)"

LISTS = (
    Mutant(
        "no-tag",
        "the head of a list has no tag: a node that came back is taken for the same list (ABA)",
        ("list-aba", "list-detach"),
        ((freelist.pop, _LIST, _SAME_TAG), (freelist.push_chain, _LIST, _SAME_TAG)),
    ),
    Mutant(
        "pop-by-exchange",
        "the head is exchanged, whatever it is by now",
        ("list",),
        ((freelist.pop, "cas64(head, old, ", "xchg64(head, "),),
    ),
    Mutant(
        "push-by-exchange",
        "the head is exchanged, whatever it is by now: nodes are lost",
        ("list",),
        ((freelist.push_chain, "cas64(head, old, ", "xchg64(head, "),),
    ),
    Mutant(
        "link-once",
        "the link is written before the first try alone: a second try links to an old list",
        ("list", "list-aba"),
        (
            (
                freelist.push_chain,
                '        store64(link, mark | (old & LOW32), "relaxed")\n',
                '        if tries == 0:\n            store64(link, mark | (old & LOW32), "relaxed")\n',
            ),
        ),
    ),
    Mutant(
        "bump-overshoots",
        "the bound is not looked at again after a failed try",
        ("bump", "exhaust"),
        ((extent.bump, "more = more & fits", "more = more & (tries < SPIN_LIMIT)"),),
    ),
    Mutant(
        "bump-by-store",
        "the pointer is moved by a store",
        ("bump",),
        (
            (
                extent.bump,
                'got = cas64(seg + BUMP_PTR, old, old + n_pages * size, "relaxed")',
                'store64(seg + BUMP_PTR, old + n_pages * size, "relaxed")\n        got = old',
            ),
        ),
    ),
    Mutant(
        "slots-overshoot",
        "more header slots are taken than there are",
        ("slots", "full"),
        ((header.take_slot, "more = more & fits", "more = more & (tries < SPIN_LIMIT)"),),
    ),
    Mutant(
        "carve-keeps-too-much",
        "a split gives back the piece that it keeps",
        ("split",),
        ((extent.carve, "piece = word(1)", "piece = word(0)"),),
    ),
    Mutant(
        "carve-forgets",
        "a split gives back all pieces but the last",
        ("split",),
        ((extent.carve, "piece < pieces", "piece < pieces - 1"),),
    ),
    Mutant(
        "join-unannounced",
        "a host joins free extents without saying so: a producer is answered FULL by accident",
        ("join-full",),
        ((reclaim.joining, "if change > 0:", "if change > 1:"),),
    ),
)

HEADERS = (
    Mutant(
        "no-new-epoch",
        "a slot is taken again in the same epoch",
        ("replace", "slots"),
        ((header.reserve, "+ 1) & EPOCH_MASK", "+ 0) & EPOCH_MASK"),),
    ),
    Mutant(
        "commit-by-exchange",
        "a commit raises an object from the dead that was given up",
        ("commit", "late"),
        (
            (
                header.commit_state,
                "cas64(header + H_STATE, state_word(WRITING, epoch), state_word(READY, epoch), ",
                "xchg64(header + H_STATE, state_word(READY, epoch), ",
            ),
        ),
    ),
    Mutant(
        "give-up-by-exchange",
        "the sweeper takes an object away that was committed meanwhile",
        ("commit", "publish"),
        (
            (
                header.kill,
                "cas64(header + H_STATE, state_word(state, epoch), state_word(DEAD, epoch), ",
                "xchg64(header + H_STATE, state_word(DEAD, epoch), ",
            ),
        ),
    ),
    Mutant(
        "validate-by-load",
        "the validation is a plain acquire load",
        ("reuse", "replace"),
        ((header.still_ready, 'add64(header + H_STATE, 0, "release")', 'load64(header + H_STATE, "acquire")'),),
    ),
    Mutant(
        "never-validate",
        "a reader believes what it copied",
        ("reuse", "replace"),
        ((header.still_ready, "(seen & ~PIN_BITS) == state_word(READY, epoch)", "seen == seen"),),
    ),
    Mutant(
        "validate-any-epoch",
        "a reader accepts bytes of the slot's next object",
        ("replace", "reuse"),
        (
            (
                header.still_ready,
                "(seen & ~PIN_BITS) == state_word(READY, epoch)",
                "(seen & STATE_MASK) == READY",
            ),
        ),
    ),
    Mutant(
        "keep-the-pages",
        "a removal leaves the pages in the header: they are freed once more",
        ("remove-dies", "replace", "host-evicts"),
        ((retire.take_out, '        store64(header + H_PAGES, word(0), "relaxed")\n', ""),),
    ),
    Mutant(
        "forget-the-pages",
        "a removal does not give the pages back",
        ("put-remove-get",),
        ((retire.retire, "give(world, seg, page, size_class)", "word(page)"),),
    ),
    Mutant(
        "slot-before-entry",
        "a removal frees the slot before it takes the entry out",
        ("remove-late", "same-key-busy", "put-remove-get", "replace", "polled"),
        (
            (
                retire.retire,
                "    erase(world, owner, index, epoch, key_hash, key_check)\n"
                "    page, size_class = take_out(world, seg, index)\n"
                "    if page >= 0:\n"
                "        give(world, seg, page, size_class)\n"
                "    give_slot(world, seg, index)\n",
                "    page, size_class = take_out(world, seg, index)\n"
                "    if page >= 0:\n"
                "        give(world, seg, page, size_class)\n"
                "    give_slot(world, seg, index)\n"
                "    erase(world, owner, index, epoch, key_hash, key_check)\n",
            ),
        ),
    ),
    Mutant(
        "double-free-on-lost",
        "a producer whose object was given up frees it, and the sweeper frees it too",
        ("late", "late-plan"),
        ((object.commit, "        acknowledge(header, epoch)\n", "        retire(world, seg, owner, index, epoch)\n"),),
    ),
    Mutant(
        "undo-whatever",
        "a put that fails frees its slot also if the sweeper has given it up",
        ("late", "abort", "full"),
        ((object.undo, "    if mine:\n", "    if mine == mine:\n"),),
    ),
    Mutant(
        "undo-nothing",
        "a put that fails keeps its slot",
        ("full", "same-key"),
        ((object.undo, "        give_slot(world, seg, index)\n", "        word(0)\n"),),
    ),
    Mutant(
        "full-keeps-the-key",
        "a put that is answered FULL leaves its entry behind",
        ("full", "exhaust", "late"),
        (
            (
                object.begin,
                "                    erase(world, owner, index, epoch, key_hash, key_check)\n",
                "                    word(0)\n",
            ),
        ),
    ),
    Mutant(
        "release-any-state",
        "the sweeper frees a slot without looking whether it moved on",
        ("release", "swept"),
        ((reclaim.release, "    if same:\n", "    if same == same:\n"),),
    ),
    Mutant(
        "give-up-any-producer",
        "the sweeper believes a torn look about whose slot it is",
        ("heir",),
        ((reclaim.give_up, ' & (((load64(header + H_FLAGS, "relaxed") >> 32) & LOW32) == producer)', ""),),
    ),
)

KEYS = (
    Mutant(
        "no-turnstile",
        "two producers of one key can both look past each other",
        ("same-key-busy", "claim"),
        ((directory.claim, '        add64(turn, 1, "acq_rel")\n', ""),),
    ),
    Mutant(
        "turnstile-by-load",
        "the turnstile is passed by a load",
        ("same-key-busy",),
        ((directory.claim, 'add64(turn, 1, "acq_rel")', 'load64(turn, "acquire")'),),
    ),
    Mutant(
        "one-phase",
        "an entry is FINAL at once",
        ("same-key-busy", "claim", "same-key-3"),
        ((directory.claim, "entry_word(ENTRY_TENTATIVE, ", "entry_word(ENTRY_FINAL, "),),
    ),
    Mutant(
        "never-look",
        "a producer does not look whether another one claims its key",
        ("same-key-busy", "claim"),
        ((directory.settle, "look = has_tag(seen, key_check)\n    tries", "look = i != i\n    tries"),),
    ),
    Mutant(
        "remove-final",
        "a producer removes a FINAL entry of its key",
        ("same-key-busy", "claim", "same-key-3"),
        ((directory.settle, "live & (not final) & (mine < i)", "live & (mine < i)"),),
    ),
    Mutant(
        "all-withdraw",
        "two that meet both withdraw: nobody stores the object",
        ("same-key-busy", "claim"),
        ((directory.settle, "live & (not final) & (mine < i)", "live & (mine != mine)"),),
    ),
    Mutant(
        "lost-claim",
        "a producer does not notice that its entry was removed",
        ("same-key-busy", "claim"),
        (
            (
                directory.claim,
                "!= tentative:\n            status = word(DUPLICATE)",
                "!= tentative:\n            status = status + 0",
            ),
        ),
    ),
    Mutant(
        "erase-final-alone",
        "an entry that its dead producer left TENTATIVE stays for ever",
        ("swept", "late", "abort", "put-dies"),
        ((directory.erase, "(seen == final) | (seen == tentative)", "seen == final"),),
    ),
    Mutant(
        "any-key",
        "a reader does not compare the key in the header",
        ("twins",),
        (
            (directory.judge, " & is_key(header, key_hash, key_check)", ""),
            (object.lookup, "is_key(header, key_hash, key_check) & ", ""),
        ),
    ),
    Mutant(
        "remove-any-key",
        "a removal does not compare the key in the header",
        ("remove-late",),
        ((object.remove, "if mine & (phase_of(state) == READY):", "if phase_of(state) == READY:"),),
    ),
)

READERS = (
    Mutant(
        "pin-any-state",
        "a pin does not look whether the object is still there",
        ("pin", "pin-evict"),
        ((pins.add_pin, "(phase_of(old) == READY) & ", ""),),
    ),
    Mutant(
        "pin-any-epoch",
        "a pin holds the slot's next object",
        ("pin-evict", "swept-pins", "pin-dies"),
        ((pins.add_pin, "(epoch_of(old) == epoch) & ", ""),),
    ),
    Mutant(
        "unpin-forgets",
        "unpinning does not take the pin away",
        ("pin", "pin-evict"),
        ((pins.unpin, "add_pin(header_at(world, seg, index), epoch, word(0) - ONE_PIN)", "word(0)"),),
    ),
    Mutant(
        "line-before-pin",
        "unpinning clears the ledger before it takes the pin away",
        ("recount", "swept-pins"),
        (
            (
                pins.unpin,
                "        add_pin(header_at(world, seg, index), epoch, word(0) - ONE_PIN)\n",
                '        store64(ledger_at(world, seg, line), word(0), "relaxed")\n'
                "        add_pin(header_at(world, seg, index), epoch, word(0) - ONE_PIN)\n",
            ),
        ),
    ),
    Mutant(
        "recount-moving",
        "pins are counted anew while a living reader is just pinning",
        ("recount",),
        ((pins.recount, "select(moving == dead, pins, seen & PIN_COUNT)", "pins"),),
    ),
    Mutant(
        "recount-unwatched",
        "pins are counted anew without noticing that they changed meanwhile",
        ("recount",),
        ((pins.recount, "watched = seen | WATCHED", "watched = seen + 0"),),
    ),
    Mutant(
        "evict-pinned",
        "a producer takes the page of an object that somebody reads in place",
        ("pin-evict",),
        (
            (
                evict.evict_for,
                "if kill(header, READY, epoch) == state_word(READY, epoch):",
                "if phase_of(kill(header, READY, epoch)) == READY:",
            ),
            (evict.oldest, " & ((state & PIN_BITS) == 0)", ""),
        ),
    ),
)

HINTS = (
    Mutant(
        "hint-stays",
        "a hint is read and not taken: it is taken again",
        ("ring",),
        ((ring.drain, 'xchg64(slot, 0, "acquire")', 'load64(slot, "acquire")'),),
    ),
    Mutant(
        "hint-by-store",
        "a hint is stored over another one, and may be older than what it is about",
        ("ring",),
        (
            (
                ring.announce,
                'got = cas64(ring_slot(world, seg, ticket), 0, said, "release")',
                'got = xchg64(ring_slot(world, seg, ticket), said, "relaxed")',
            ),
        ),
    ),
    Mutant(
        "snapshot-unvalidated",
        "the index takes in a header that changed while it was copied",
        ("swept", "polled"),
        ((reclaim.snapshot, "select(still_ready(header, epoch), word(1), word(0))", "word(1)"),),
    ),
)

GRACE = (
    Mutant(
        "uncounted",
        "operations do not count themselves: nothing waits for them",
        ("late", "abort", "polled"),
        (
            (activity.enter, 'add64(activity_at(seg, table64(world + W_RANK), phase), 1, "acquire")', "word(0)"),
            (activity.leave, 'add64(activity_at(seg, table64(world + W_RANK), phase), -1, "release")', "word(0)"),
        ),
    ),
    Mutant(
        "no-grace",
        "a grace period ends at once",
        ("late", "abort", "polled", "swept"),
        patches=((grace.Grace, "_drained", _no_wait),),
    ),
    Mutant(
        "no-quarantine",
        "what was given up is freed at the next sweep",
        ("late", "acknowledge", "abort"),
        patches=((sweeper.Sweeper, "_hold", _hold_without_grace),),
    ),
    Mutant(
        "no-word",
        "the pages of a plan do not wait for its producer's word",
        ("acknowledge", "late-plan"),
        patches=((sweeper.Sweeper, "_hold", _hold_without_word),),
    ),
    Mutant(
        "one-look",
        "the audit takes one look: what passes from hand to hand is given away",
        ("swept", "polled", "late", "put-dies"),
        patches=((audit, "LOOKS", 1),),
    ),
    Mutant(
        "no-audit",
        "nobody looks for what the dead had in their hands",
        ("swept", "polled"),
        patches=((sweeper.Sweeper, "_watch_ranks", _nothing),),
    ),
    Mutant(
        "pins-of-the-dead",
        "pins of dead readers stay",
        ("swept-pins", "pin-dies"),
        patches=((sweeper, "drop_dead_pins", lambda machine, owner, alive: 0),),
    ),
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for group in (LISTS, HEADERS, KEYS, READERS, HINTS, GRACE) for mutant in group
}


def kill_mutants(schedules: int, seed: int) -> Row:
    """Every mutant must be noticed.

    Args:
        schedules: executions of each scenario, memory and scheduler, as long as none fails.
    """
    row = Row("mutants", "broken on purpose", unit="mutants")
    with row.timed(), ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        kills = list(pool.map(partial(kill, schedules=schedules, seed=seed), MUTANTS))
        for mutant, failure in zip(MUTANTS.values(), kills, strict=True):
            row.tried += 1
            if failure is None:
                row.failures.append(f"{mutant.name} survives: {mutant.about}")
            elif not failure.why.startswith(NOTICED):
                row.failures.append(f"{mutant.name} is no mutant, it cannot run: {failure.why}")
    row.note = "all noticed" if not row.failures else ""
    return row


def kill(name: str, schedules: int, seed: int) -> Failure | None:
    """The first failure of a mutant, in the scenarios that should notice it and then in all others."""
    mutant = MUTANTS[name]
    with mutant.patched():
        for scenario in dict.fromkeys([*mutant.scenarios, *SCENARIOS]):
            for memory in MEMORIES:
                explorer = Explorer(SCENARIOS[scenario], memory, mutant.replaced())
                found = explorer.kill_everywhere(seed)
                for scheduler in SCHEDULERS:
                    if found.failure is None:
                        found = explorer.draw(scheduler, schedules, seed)
                if found.failure is not None:
                    return explorer.smallest(found.failure)
    return None

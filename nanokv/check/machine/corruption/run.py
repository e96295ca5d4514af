"""Corruption: random and adversarial words in every region of a segment, before and while it is used.

With any words in a segment, every operation ends, with a result or a NanoKVError; no process crashes or hangs; and no
caller gets bytes of another key. The cases run in a child process, which announces each operation before it begins, so
that a crash or a hang of native code is seen and named.

Without a checksum, one wrong word anywhere in lists, control words, directory, ring, pins or a header's key, place,
pages, flags or producer does not lead to wrong bytes ("one wrong word"). Only a checksum finds
- a wrong descriptor (dtype and shape), and a wrong size of an object that has none (a plan's);
- a state that is READY although the bytes are not there yet;
- several wrong words that fit together, such as a header and a link that name the same page of another object;
- payload that was changed itself.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from nanokv.check.machine.corruption.case import CaseResult, Kind, run_case
from nanokv.check.machine.rank_process import PROCESSES, warm
from nanokv.check.report import CheckFailure, Row

PATIENCE = 30.0  #: seconds for one operation, on a busy machine: then it hangs
BATCH = 200  #: cases per process

KINDS = {
    "one wrong word": Kind("device", checksum=False, one_word=True),
    "several, also meanwhile": Kind("device", checksum=False, one_word=False),
    "several, with checksums": Kind("device", checksum=True, one_word=False),
    "several, v1": Kind("host", checksum=False, one_word=False),
    "several, v1, with checksums": Kind("host", checksum=True, one_word=False),
    "found by the next owner": Kind("device", checksum=True, one_word=False, recover=True),
}


@dataclass
class _Tally:
    cases: int = 0
    totals: list[int] = field(default_factory=lambda: [0] * len(CaseResult._fields))
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: CaseResult) -> None:
        self.cases += 1
        self.totals = [have + more for have, more in zip(self.totals, outcome, strict=True)]


def run_corruption(tries: int, seed: int, *, only: str | None = None, first: int = 0) -> list[Row]:
    """Try `tries` cases of each kind: a row for each.

    Args:
        seed: of all cases.
        only: one of KINDS.
        first: the number of the first case; with `tries=1` one case is seen again.
    """
    warm()
    return [_row(name, first, tries, seed) for name in KINDS if only in (None, name)]


def _row(name: str, first: int, tries: int, seed: int) -> Row:
    row = Row("corruption", name, unit="cases")
    tally = _Tally()
    with row.timed():
        at = first
        while at < first + tries:
            at = _batch(name, at, min(at + BATCH, first + tries), seed, tally)
    row.tried, row.failures = tally.cases + len(tally.failures), tally.failures
    operations, refused, corrupt, wrong = tally.totals
    row.note = f"{operations} operations, {refused} refused, {corrupt} of them as SegmentCorrupt"
    if not KINDS[name].exact:
        row.note += f"; {wrong} gets came back wrong, which only a checksum finds"
    return row


def _batch(name: str, start: int, end: int, seed: int, tally: _Tally) -> int:
    """Run cases in a child until one of them fails; returns the number of the next case."""
    child, connection = _child(name, start, end, seed)
    doing: list[str] = []
    at = start
    try:
        for event, content in _messages(connection):
            if event == "done":
                tally.add(CaseResult(*content))
                at, doing = at + 1, []
            elif event == "failed":
                raise CheckFailure(content)
            else:
                doing = [*doing, content] if not content.startswith("do_") else [*doing[:2], content]
        if at < end:
            child.join(PATIENCE)
            raise CheckFailure(f"the process ended with {child.exitcode}")
    except CheckFailure as failure:
        again = f"run_corruption(1, {seed}, only={name!r}, first={at})"
        tally.failures.append(f"{failure} ({', '.join(doing)}; see it again: {again})")
        at += 1
    finally:
        connection.close()
        child.kill()
        child.join(PATIENCE)
    return at


def _child(name: str, start: int, end: int, seed: int) -> tuple[Any, Connection]:
    ours, theirs = PROCESSES.Pipe()
    child = PROCESSES.Process(target=_serve, args=(name, start, end, seed, theirs), daemon=True)
    child.start()
    theirs.close()
    return child, ours


def _messages(connection: Connection) -> Iterator[tuple[str, Any]]:
    while True:
        if not connection.poll(PATIENCE):
            raise CheckFailure(f"nothing for {PATIENCE:.0f} s: it hangs")
        try:
            yield connection.recv()
        except EOFError:
            return


def _serve(name: str, start: int, end: int, seed: int, connection: Connection) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["NANOKV_SHM_DIR"] = directory
        for case in range(start, end):
            try:
                outcome = run_case(KINDS[name], f"{seed}/{name}/{case}", lambda what: connection.send(("doing", what)))
            except CheckFailure as failure:
                connection.send(("failed", str(failure)))
                return
            connection.send(("done", tuple(outcome)))

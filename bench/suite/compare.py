"""`python -m bench compare A.json B.json`: what a change has made faster or slower, beyond the noise.

A figure of B is faster or slower than the same one of A if the ranges of their repetitions do not overlap, and their
medians differ by more than 5 %. Everything else is no difference that this measurement shows. The headline is judged:
p50 of a latency; with `--tails` p99 and p99.9 too.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rich.console import Console
from rich.text import Text

from nanokv.bench.suite.cells import UNITS, cell, ratio, show_axis
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.record import BadRecord, Record, key_of, read
from nanokv.bench.suite.tables import plain_table

OK, SLOWER, BAD = 0, 1, 2  #: exit codes
ENOUGH = 0.05  #: the least difference of two medians that counts, as a part of the one of A
TAILS = ("p99", "p99.9")

SPEEDS = ("us", "ns", "ms", "s", "M/s", "GB/s")  #: units; of others we say better and worse
OURS = "NanoKV"  #: how the systems are called whose change is judged; the others show how the machine has changed

Verdict = Literal["faster", "slower", "changed", "no difference"]


class Comparison(NamedTuple):
    """A value of a figure in both runs."""

    before: Figure
    after: Figure
    name: str
    verdict: Verdict

    @property
    def ours(self) -> bool:
        """Whether NanoKV is measured, and not a plain copy or a peer beside it."""
        return str(self.before.case.get("system", OURS)).startswith(OURS)

    @property
    def shown(self) -> str:
        """The verdict, for people."""
        words = {"faster": "better", "slower": "worse"}
        return self.verdict if self.before.unit in SPEEDS else words.get(self.verdict, self.verdict)


def judge(before: Figure, after: Figure, name: str) -> Verdict:
    """What the repetitions say about a change of one value. "faster" is better, also where it is not a time."""
    old, new = before.median(name), after.median(name)
    (old_low, old_high), (new_low, new_high) = before.spread(name), after.spread(name)
    overlap = old_low <= new_high and new_low <= old_high
    if overlap or abs(new - old) <= ENOUGH * abs(old):
        return "no difference"
    if before.better == "neither":
        return "changed"
    return "faster" if (new < old) == (before.better == "lower") else "slower"


def judge_all(before: Record, after: Record, tails: bool) -> Iterator[Comparison]:
    """All values that both runs have."""
    new = {key_of(figure): figure for figure in after.figures}
    for old in before.figures:
        other = new.get(key_of(old))
        if other is None:
            continue
        for name in (old.headline, *(TAILS if tails else ())):
            if name in old.names and name in other.names:
                yield Comparison(old, other, name, judge(old, other, name))


def warnings(before: Record, after: Record) -> Iterator[str]:
    """What makes two runs hard to compare."""
    for part in ("machine", "versions", "settings"):
        old, new = before.about[part], after.about[part]
        for name in sorted(old.keys() | new.keys()):
            if name != "load_average" and old.get(name) != new.get(name):
                yield f"{part} differs: {name} {old.get(name)} and {new.get(name)}"
    for which, record in (("A", before), ("B", after)):
        load, cores = record.about["machine"]["load_average"], record.about["machine"]["usable_cores"]
        if load > cores / 2:
            yield f"{which} began on a busy machine: load {load:.1f}, {cores} cores"
        for outcome in record.outcomes:
            if outcome.state in ("failed", "stopped"):
                yield f"{which}: {outcome.name} {outcome.state}"
    for figure in before.figures:
        if len(figure.repetitions) == 1:
            yield "A has figures with one repetition: nothing is known about their spread"
            break


def main(arguments: Sequence[str], prog: str) -> int:
    """Compare and print. Returns 1 if something is slower, 2 if a file cannot be read, and otherwise 0."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Judge a change: B beside A, figure by figure.",
        epilog="Faster or slower: the ranges of the repetitions do not overlap, and the medians differ by more than "
        "5 %. Exit code 1 if something is slower, 2 if a file cannot be read.",
    )
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    parser.add_argument("--tails", action="store_true", help="judge p99 and p99.9 too")
    parser.add_argument("--all", action="store_true", help="print figures without a difference too")
    given = parser.parse_args(arguments)
    try:
        before, after = read(given.before), read(given.after)
    except BadRecord as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return BAD
    found = list(judge_all(before, after, given.tails))
    if not found:
        print(f"{prog}: error: the files have no figure in common", file=sys.stderr)
        return BAD
    _print(before, after, found, given.all)
    return SLOWER if any(one.verdict == "slower" and one.ours for one in found) else OK


def _print(before: Record, after: Record, found: list[Comparison], everything: bool) -> None:
    console = Console(highlight=False)
    for which, record in (("A", before), ("B", after)):
        console.print(Text(f"{which}: {record.about['began']}, commit {record.about['commit'] or 'unknown'}"))
    changed = sum(one.verdict != "no difference" and not one.ours for one in found)
    machine = [f"{changed} figures of plain copies and peers changed too: it may be the machine"] if changed else []
    for warning in (*warnings(before, after), *machine):
        console.print(Text(f"warning: {warning}", style="yellow"))
    for question in dict.fromkeys(one.before.question for one in found):
        here = [one for one in found if one.before.question == question]
        rows = [_row(one) for one in here if everything or one.verdict != "no difference"]
        if rows:
            console.print()
            console.print(plain_table(f"{question}: medians", ["", "A", "B", "B / A", ""], rows))
    console.print()
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in get_args(Verdict)}
    console.print(Text(", ".join(f"{verdict}: {count}" for verdict, count in counts.items() if count)))
    for which, one, other in (("A", before, after), ("B", after, before)):
        for line in _only(one, other):
            console.print(Text(f"only {which}: {line}"))


def _only(one: Record, other: Record) -> Iterator[str]:
    """The figures that only one of the runs has; a line for all of a question that the other one lacks."""
    keys = {key_of(figure) for figure in other.figures}
    for question in dict.fromkeys(figure.question for figure in one.figures):
        figures = one.of(question)
        if not other.of(question):
            yield f"{question}, all {len(figures)} figures"
            continue
        for figure in figures:
            if key_of(figure) not in keys:
                yield f"{question}, {_text(figure)}"


def _row(one: Comparison) -> list[str]:
    old, new = one.before.median(one.name), one.after.median(one.name)
    unit = UNITS.get(one.before.unit, one.before.unit)
    what = f"{_text(one.before)}, {unit if one.name == 'value' else f'{one.name}, {unit}'}"
    return [what, cell(one.before, one.name), cell(one.after, one.name), ratio(new / old) if old else "", one.shown]


def _text(figure: Figure) -> str:
    """The case of a figure, without the names of axes whose values say enough."""
    shown = [(axis, show_axis(axis, value)) for axis, value in figure.case.items()]
    return ", ".join(value if not value[0].isdigit() or axis == "size" else f"{axis} {value}" for axis, value in shown)

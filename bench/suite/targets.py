"""The targets, and whether the figures of a run reach them; ratios are those of one run, repetition by repetition."""

import operator
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nanokv.bench.suite.figure import AnyCase, Case, Figure
from nanokv.bench.suite.settings import KIB, MIB

V1, V2 = "NanoKV v1", "NanoKV v2"
LEVEL = 0.95  #: a ratio that is called level
PUT_GET = ("put", "get")


@dataclass(frozen=True, slots=True)
class Figures:
    """Some figures of one question: those whose case has all of these values."""

    question: str
    case: AnyCase

    def of(self, figures: Sequence[Figure]) -> list[Figure]:
        """The figures that are meant."""
        return [one for one in figures if one.question == self.question and self.case.items() <= one.case.items()]


@dataclass(frozen=True, slots=True)
class Target:
    """One target, and what was measured.

    Attributes:
        what: is to reach the limit.
        limit: a value in `unit`; `sign` says on which side of it the value is to be.
        sign: "≤", "≥" or ">".
        values: per repetition, of the figure that is furthest from the limit if several are meant; empty: not measured.
        question: whose figures it judges.
    """

    what: str
    limit: float
    sign: str
    unit: str
    values: list[float]
    question: str

    @property
    def median(self) -> float | None:
        """What was measured, if it was."""
        return statistics.median(self.values) if self.values else None

    @property
    def reached(self) -> bool | None:
        """Whether the median reaches the limit; None if it was not measured."""
        compare = {"≤": operator.le, "≥": operator.ge, ">": operator.gt}[self.sign]
        return None if self.median is None else bool(compare(self.median, self.limit))

    def as_dict(self) -> dict[str, Any]:
        """The target as JSON has it."""
        return {
            "what": self.what,
            "limit": self.limit,
            "sign": self.sign,
            "unit": self.unit,
            "measured": self.median,
            "values": self.values,
            "reached": self.reached,
            "question": self.question,
        }


def targets(figures: Sequence[Figure]) -> list[Target]:
    """All targets, also those that no figure judges."""
    return [*_calls(figures), *_peers(figures), *_copies(figures), *_host(figures), *_start_and_memory(figures)]


def _calls(figures: Sequence[Figure]) -> Iterator[Target]:
    for operation in PUT_GET:
        ours = Figures("latency", {"heap": "shm", "size": KIB, "operation": operation, "system": V2})
        for name, limit in (("p50", 2.5), ("p99", 5.0), ("p99.9", 25.0)):
            yield _value(figures, f"{operation}, 1 KiB, two processes, {name}", "≤", limit, "us", ours, name)
    for operation in PUT_GET:
        ours = Figures("burst", {"operation": operation, "size": KIB, "poller": "same process"})
        what = f"{operation}, 1 KiB, bursts, poller in the process, p99"
        yield _value(figures, what, "≤", 15.0, "us", ours, "p99")


def _peers(figures: Sequence[Figure]) -> Iterator[Target]:
    for peer in ("Mooncake TCP", "Mooncake shared memory"):
        for size, limit in ((KIB, 80.0), (64 * KIB, 30.0)):
            what = f"{peer} / NanoKV, {size // KIB} KiB, p50"
            yield _against(figures, what, "≥", limit, peer, "p50", (size, size))
        yield _against(figures, f"{peer} / NanoKV, every size, p50", ">", 1.0, peer, "p50", (KIB, 8 * MIB))
    for name in ("p50", "p99"):
        yield _against(figures, f"Redis / NanoKV, every size, {name}", ">", 1.0, "Redis", name, (0, 1 << 40))
    for peer in ("NIXL, reused handle", "NIXL, new handle"):
        for name in ("p50", "p99"):
            yield _against(figures, f"{peer} / NanoKV, 1 KiB, {name}", "≥", LEVEL, peer, name, (KIB, KIB))
            what = f"{peer} / NanoKV, from 64 KiB, {name}"
            yield _against(figures, what, ">", 1.0, peer, name, (64 * KIB, 1 << 40))


def _copies(figures: Sequence[Figure]) -> Iterator[Target]:
    for operation in PUT_GET:
        case: Case = {"heap": "shm", "size": 8 * MIB, "operation": operation}
        ours, copy = (Figures("latency", case | {"system": system}) for system in (V2, "copy_"))
        yield _ratio(figures, f"{operation} / copy_, 8 MiB, two processes, p50", "≤", 1.05, ours, copy, "p50")
    rows: Case = {"keys": "Digests, rows"}
    for operation in ("put_many", "get_many"):
        what = "per object, above the copy"
        case = rows | {"operation": operation, "objects": 256, "size": 4 * KIB, "what": what}
        ours = Figures("many", case)
        yield _value(figures, f"{operation}, 256 rows of 4 KiB, {what}", "≤", 0.5, "us", ours)
    ours = Figures("many", rows | {"operation": "exists_many", "objects": 1000})
    yield _value(figures, "exists_many, 1,000 Digests, per key", "≤", 0.06, "us", ours)


def _host(figures: Sequence[Figure]) -> Iterator[Target]:
    for what in ("free list", "extent"):
        for threads in (1, 2):
            ours = Figures("alloc", {"what": what, "threads": threads})
            yield _value(figures, f"allocate + free: {what}, threads: {threads}", "≥", 20.0, "M/s", ours)
    for name in ("p50", "p99"):
        new, old = (Figures("plan", {"alloc": alloc, "what": "t_plan"}) for alloc in ("device", "host"))
        yield _ratio(figures, f"t_plan, v1 / v2, {name}", "≥", 50.0, old, new, name)
    ours = Figures("ingest", {"what": "announcements", "rounds": "native"})
    yield _value(figures, "ingestion of announcements", "≥", 2.0, "M/s", ours)
    ours = Figures("announce", {"heap": "shm", "poller": "busy", "system": V2})
    yield _value(figures, "announce to index, two processes, busy, p50", "≤", 50.0, "us", ours, "p50")
    ours = Figures("wait", {"heap": "shm", "system": V2})
    yield _value(figures, "put to waiter awake, two processes, p50", "≤", 15.0, "us", ours, "p50")


def _start_and_memory(figures: Sequence[Figure]) -> Iterator[Target]:
    beyond = Figures("imports", {"process": "import nanokv.cache.cache, beyond import torch"})
    yield _value(figures, "import nanokv.cache.cache, beyond import torch", "≤", 0.3, "s", beyond)
    for what in ("the first put", "a world and the first put"):
        yield _value(figures, f"{what}, fresh process", "≤", 50.0, "ms", Figures("imports", {"step": what}))
    index = Figures("memory", {"what": "index, bytes per object"})
    yield _value(figures, "index on the host, per object", "≤", 80.0, "bytes", index)
    control = Figures("memory", {"what": "control regions, of the segment"})
    yield _value(figures, "control regions, of the segment", "≤", 0.1, "%", control)


def _value(
    figures: Sequence[Figure], what: str, sign: str, limit: float, unit: str, ours: Figures, name: str | None = None
) -> Target:
    """A value of the figures that are meant; by default their headline."""
    found = [_values(one, name) for one in ours.of(figures)]
    return _worst(what, sign, limit, unit, found, ours.question)


def _ratio(
    figures: Sequence[Figure], what: str, sign: str, limit: float, above: Figures, below: Figures, name: str
) -> Target:
    """A value of one figure as a multiple of another's, per repetition."""
    found = [_divided(a, b, name) for a in above.of(figures) for b in below.of(figures)]
    return _worst(what, sign, limit, "x", found, above.question)


def _against(
    figures: Sequence[Figure], what: str, sign: str, limit: float, peer: str, name: str, sizes: tuple[int, int]
) -> Target:
    """The worst ratio of a peer's value to ours, over put and get and all sizes from the least to the largest."""
    found: list[list[float]] = []
    for theirs in Figures("peers", {"system": peer}).of(figures):
        size, operation = theirs.case.get("size"), theirs.case.get("operation")
        if operation in PUT_GET and isinstance(size, int) and sizes[0] <= size <= sizes[1]:
            ours = Figures("peers", {"system": "NanoKV", "operation": operation, "size": size})
            found += [_divided(theirs, one, name) for one in ours.of(figures)]
    return _worst(what, sign, limit, "x", found, "peers")


def _values(figure: Figure, name: str | None) -> list[float]:
    wanted = name or figure.headline
    return [one[wanted] for one in figure.repetitions] if wanted in figure.names else []


def _divided(above: Figure, below: Figure, name: str) -> list[float]:
    pairs = zip(_values(above, name), _values(below, name), strict=False)
    return [one / other for one, other in pairs if other]


def _worst(what: str, sign: str, limit: float, unit: str, found: list[list[float]], question: str) -> Target:
    """The one of several figures that is furthest on the wrong side; if one was not measured, none was."""
    values: list[float] = []
    if found and all(found):
        values = (max if sign == "≤" else min)(found, key=statistics.median)
    return Target(what, limit, sign, unit, values, question)

"""The targets on a GPU, and whether a run reached them; each is within one run on one machine."""

from typing import Any, NamedTuple

from nanokv.bench.suite.settings import show_size

Rows = dict[str, list[dict[str, Any]]]  #: name of a benchmark -> its rows

OF_COPY = 0.9
SINGLE_US = 6.0
PUT_US, TAIL = 5.0, 3.0
PAIRS = 20e6
PAIRED = ("put and remove", "extent", "header slot", "list")
ANNOUNCE_US = 100.0


class Target(NamedTuple):
    """One target. `at_least`: more is better."""

    what: str
    limit: float
    measured: float
    unit: str
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure reaches the limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def targets(rows: Rows) -> list[Target]:
    """Every target that the rows can judge."""
    return [
        *_many(rows.get("many", [])),
        *_single(rows.get("single", [])),
        *_produce(rows.get("produce", [])),
        *_announce(rows.get("announce", [])),
    ]


def _many(rows: list[dict[str, Any]]) -> list[Target]:
    return [
        Target(
            f"{name} of {row['objects']} x {show_size(row['size'])} from a graph, of copy_'s bandwidth",
            OF_COPY,
            part,
            "x",
            at_least=True,
        )
        for row in rows
        for name, part in row["of_copy"].items()
        if name.startswith(("put_many", "get_many"))
    ]


def _single(rows: list[dict[str, Any]]) -> list[Target]:
    return [
        Target(f"put of {show_size(row['size'])} from a graph, more than copy_, p50", SINGLE_US, over, "µs")
        for row in rows
        for over in (row["put_minus_copy_us"],)
    ]


def _produce(rows: list[dict[str, Any]]) -> list[Target]:
    found = []
    puts = [row for row in rows if row["what"] == "put and remove"]
    for row in puts:
        where = f"in a kernel, {row['ctas']} CTAs at once, {row['classes']} size{'s' * (row['classes'] == 'many')}"
        us = row["us"]["put"]
        found.append(Target(f"allocate to announce, {where}, p50", PUT_US, us["p50"], "µs"))
        found.append(Target(f"allocate to announce, {where}, p99 of p50", TAIL, us["p99"] / us["p50"], "x"))
    paired = [row for row in rows if "pairs_per_s" in row and row["what"] in PAIRED]
    for what in dict.fromkeys(row["what"] for row in paired):
        best = max((row for row in paired if row["what"] == what), key=lambda row: row["pairs_per_s"]["p50"])
        rate = best["pairs_per_s"]["p50"] / 1e6
        found.append(
            Target(f"{what}, pairs, best of all CTAs ({best['ctas']})", PAIRS / 1e6, rate, "M/s", at_least=True)
        )
    return found


def _announce(rows: list[dict[str, Any]]) -> list[Target]:
    return [
        Target(
            f"commit to listener, poller {row['poller']}, GPU {row['gpu']}, p50", ANNOUNCE_US, row["us"]["p50"], "µs"
        )
        for row in rows
        if "poller" in row
    ]

"""The targets, and whether a run reached them."""

from typing import Any, NamedTuple

from nanokv.bench.suite.settings import KIB, MIB

Results = dict[str, Any]  #: name of a benchmark -> what its `run` returned


class Target(NamedTuple):
    """One target. `at_least`: more is better. `sound`: False if the machine was too busy to measure it."""

    what: str
    limit: float
    measured: float
    unit: str
    at_least: bool = False
    sound: bool = True

    @property
    def reached(self) -> bool | None:
        """Whether the figure reaches the limit; None if the measurement is not sound."""
        if not self.sound:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def targets(results: Results) -> list[Target]:
    """Every target that the results can judge."""
    found = [*_objects(results.get("objects", {}).get("rows", []))]
    for row in results.get("freelist", {}).get("rows", []):
        if row["threads"] == 2:
            what, sound = "free list, pop + push, two threads", 2 * row["runs_counted"] > row["runs_wanted"]
            found.append(Target(what, 200.0, row["ns_per_pair"], "ns", sound=sound))
    for row in results.get("imports", {}).get("rows", []):
        if row["program"] in ("import nanokv.cache", "first put"):
            found.append(Target(f"cold process: {row['program']}", 2.0, row["seconds"], "s"))
    for row in results.get("wait", {}).get("rows", []):
        if row["heap"] == "shm" and row["alloc"] == "device":
            found.append(Target(f"wait, {row['segment']} segment, v2, shm, p50", 30.0, row["us"]["p50"], "µs"))
    return found


def _objects(rows: list[Any]) -> list[Target]:
    found = []
    by = {(row["heap"], row["alloc"], row["size"]): row for row in rows}
    for (heap, alloc, size), row in by.items():
        if alloc == "device" and size == KIB:
            for name, title in (("put", "put"), ("get", "get into a tensor"), ("get_new", "get, new tensor")):
                found.append(Target(f"{title}, 1 KiB, v2, {heap}, p50", 10.0, row["us"][name]["p50"], "µs"))
        if alloc == "device" and size == 8 * MIB:
            for pair, ratio in row["ratio_p50"].items():
                found.append(Target(f"{pair}, 8 MiB, v2, {heap}, p50", 1.15, ratio, "x"))
    old, new = by.get(("shm", "host", KIB)), by.get(("shm", "device", KIB))
    if old and new:
        ratio = old["us"]["put"]["p50"] / new["us"]["put"]["p50"]
        found.append(Target("put, 1 KiB, two processes, v1/v2, p50", 10.0, ratio, "x", at_least=True))
    return found

"""The demo's result: the comparison with the single process, and the table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

TITLES = {"device": "v2, device allocates", "host": "v1, host allocates"}


@dataclass(frozen=True)
class Outcome:
    """One run of all prompts in one allocation mode, and the reference's results for the same prompts.

    Attributes:
        prefilled, decoded: the fields of `Prefilled` and `Decoded`.
        tokens, digests: the reference's, for each prompt.
    """

    alloc: str
    prefilled: dict[str, Any]
    decoded: dict[str, Any]
    tokens: list[list[int]]
    digests: list[list[str]]

    @property
    def equal_tokens(self) -> tuple[int, int]:
        """How many generated tokens equal the reference's, and how many the reference has."""
        return _equal(self.decoded["tokens"], self.tokens)

    @property
    def equal_blocks(self) -> tuple[int, int]:
        """How many blocks that decode read equal the reference's in every bit, and how many the reference has."""
        return _equal(self.decoded["digests"], self.digests)

    @property
    def control_differs(self) -> bool:
        """Whether altering one stored block changed the tokens, as it must if they come from the stored bytes."""
        return bool(self.decoded["control"] != self.tokens[0])

    @property
    def complaints(self) -> list[str]:
        """One line per error; empty if there is none."""
        (tokens, all_tokens), (blocks, all_blocks) = self.equal_tokens, self.equal_blocks
        title = TITLES[self.alloc]
        found = []
        if tokens != all_tokens:
            found.append(f"{title}: {all_tokens - tokens} of {all_tokens} tokens differ from the single process")
        if blocks != all_blocks:
            found.append(f"{title}: {all_blocks - blocks} of {all_blocks} blocks differ from the single process")
        if not self.control_differs:
            found.append(f"{title}: altering a stored block did not change the tokens, so they prove nothing")
        return found

    def as_dict(self) -> dict[str, Any]:
        """The rows of the table as plain data."""
        rows = {title: cell(self) for title, cell in ROWS}
        return {"alloc": self.alloc, "equal": not self.complaints, "rows": rows, "complaints": self.complaints}


def _equal(mine: list[list[Any]], other: list[list[Any]]) -> tuple[int, int]:
    total = sum(len(row) for row in other)
    if [len(row) for row in mine] != [len(row) for row in other]:
        return 0, total
    pairs = zip(mine, other, strict=True)
    return sum(a == b for left, right in pairs for a, b in zip(left, right, strict=True)), total


def _percentiles(seconds: list[float]) -> str:
    p50, p99 = np.percentile(np.array(seconds) * 1e6, [50, 99])
    return f"{p50:.0f} / {p99:.0f} µs"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _of(pair: tuple[int, int]) -> str:
    return f"{pair[0]} of {pair[1]}"


ROWS: list[tuple[str, Callable[[Outcome], str]]] = [
    ("blocks put into rank 1", lambda o: str(o.prefilled["blocks_put"])),
    ("blocks reused (prefix hits)", lambda o: str(o.prefilled["blocks_reused"])),
    ("bytes put", lambda o: _mib(o.prefilled["bytes_put"])),
    ("blocks read by rank 1", lambda o: str(len(o.decoded["get_seconds"]))),
    ("put, p50 / p99", lambda o: _percentiles(o.prefilled["put_seconds"])),
    ("get by rank 1, p50 / p99", lambda o: _percentiles(o.decoded["get_seconds"])),
    ("decode waited for blocks", lambda o: f"{o.decoded['wait_seconds']:.2f} s"),
    ("announcements drained by rank 1", lambda o: str(o.decoded["stats"]["hints"])),
    ("objects in the index of rank 1", lambda o: str(o.decoded["stats"]["indexed"])),
    (
        "heap of rank 1 in use",
        lambda o: f"{_mib(o.decoded['stats']['heap_used'])} of {_mib(o.decoded['stats']['heap_total'])}",
    ),
    ("prompt tokens left to rank 1", lambda o: str(o.decoded["tail_tokens"])),
    ("tokens equal to one process", lambda o: _of(o.equal_tokens)),
    ("KV blocks equal in every bit", lambda o: _of(o.equal_blocks)),
    ("altered block changes tokens", lambda o: "yes" if o.control_differs else "NO"),
]


def table(outcomes: list[Outcome]) -> Table:
    """All outcomes side by side."""
    result = Table()
    result.add_column("")
    for outcome in outcomes:
        result.add_column(TITLES[outcome.alloc], justify="right")
    for title, cell in ROWS:
        result.add_row(title, *(cell(outcome) for outcome in outcomes))
    return result

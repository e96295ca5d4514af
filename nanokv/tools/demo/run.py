"""Runs the demo: rank 0 prefills and rank 1 decodes, each in a process; a third process is the reference."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nanokv.errors import NanoKVError
from nanokv.tools.demo.children import Crew, DemoFailed
from nanokv.tools.demo.job import ROLES, Job
from nanokv.tools.demo.prompts import make_prompts, whole_blocks

if TYPE_CHECKING:
    from nanokv.config import Alloc

# --- the demo's result: the comparison with the single process, and the table -----------------
TITLES = {"device": "v2, device allocates", "host": "v1, host allocates"}


@dataclass(frozen=True)
class DemoResult:
    """One run of all prompts in one allocation mode, and the reference's results for the same prompts.

    Attributes:
        prefilled, decoded: the fields of `PrefillReport` and `DecodeReport`.
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


ROWS: list[tuple[str, Callable[[DemoResult], str]]] = [
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


def table(outcomes: list[DemoResult]) -> Table:
    """All outcomes side by side."""
    result = Table()
    result.add_column("")
    for outcome in outcomes:
        result.add_column(TITLES[outcome.alloc], justify="right")
    for title, cell in ROWS:
        result.add_row(title, *(cell(outcome) for outcome in outcomes))
    return result


# --- the output while the demo runs: a bar per prompt on a terminal, a line per prompt elsewhere ---
COUNTS = "{put:>3} put  {reused:>3} reused  {tokens:>3} tokens"


class PromptProgress:
    """Follows the messages of prefill and decode, for one run of all prompts."""

    def __init__(self, console: Console, title: str, prompts: list[list[int]], tokens: int) -> None:
        self._console = console
        self._title = title
        self._totals = [whole_blocks(prompt) + tokens for prompt in prompts]
        self._counts = [{"put": 0, "reused": 0, "tokens": 0} for _ in prompts]
        self._bars: Progress | None = None
        self._tasks: list[TaskID] = []
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[counts]}"))
            self._bars = Progress(*columns, TimeElapsedColumn(), console=console)
            for number, total in enumerate(self._totals):
                self._tasks.append(self._bars.add_task(self._name(number), total=total, counts=self._text(number)))

    def _name(self, number: int) -> str:
        return f"{self._title}  prompt {number}"

    def _text(self, number: int) -> str:
        return COUNTS.format(**self._counts[number])

    def see(self, message: dict[str, Any]) -> None:
        """Count a message of a worker; messages that are no progress are ignored."""
        counted = {"put": "put", "reused": "reused", "token": "tokens"}.get(message["event"])
        if counted is None:
            return
        number = message["prompt"]
        counts = self._counts[number]
        counts[counted] += message.get("blocks", 1)
        if self._bars is not None:
            self._bars.update(self._tasks[number], completed=sum(counts.values()), counts=self._text(number))
        elif sum(counts.values()) == self._totals[number]:  # the last message of two processes has come
            self._console.print(f"{self._name(number)}: {self._text(number)}")

    def __enter__(self) -> "PromptProgress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()


# --- the run ----------------------------------------------------------------------------------
MAX_PROMPTS = 64
MAX_TOKENS = 256

Mode = Literal["device", "host", "both"]
Expected = tuple[list[list[int]], list[list[str]]]


def run_demo(
    alloc: Mode = "both",
    prompts: int = 6,
    tokens: int = 24,
    seed: int = 0,
    console: Console | None = None,
    corrupt: int | None = None,
    report: Callable[[list[DemoResult]], None] | None = None,
) -> int:
    """Run the demo and print what happened.

    Args:
        alloc: who allocates; "both": first v2, then v1.
        prompts: how many, 2 to MAX_PROMPTS; the first two share a prefix.
        tokens: tokens to generate after each, 1 to MAX_TOKENS.
        seed: of the prompts and the model's weights.
        console: for the output.
        corrupt: for tests: flip a bit in the first prompt's block of this number, so that the comparison fails.
        report: called with what happened, for other formats.

    Returns:
        An exit code: 0 if every token and every KV block equals the single process; 1 if not, or if a process failed;
        2 if the demo cannot run as asked; 130 if it was interrupted. No process and no shared memory is left.
    """
    console = console or Console()
    problem = _problem(alloc, prompts, tokens)
    if problem:
        return _complain(console, problem, 2)
    job = Job("device", f"nanokv-demo-{secrets.token_hex(6)}", prompts, tokens, seed, corrupt)
    try:
        outcomes = _run(_modes(alloc), job, console)
    except DemoFailed as error:
        return _complain(console, str(error), 1)
    except KeyboardInterrupt:
        return _complain(console, "interrupted", 130)
    if report is not None:
        report(outcomes)
    return _show(outcomes, console)


def _problem(alloc: str, prompts: int, tokens: int) -> str | None:
    if find_spec("transformers") is None:
        return "the demo needs transformers: pip install 'nanokv[demo]'"
    if alloc not in (*TITLES, "both"):
        return f"alloc must be 'device', 'host' or 'both', not {alloc!r}"
    if not 2 <= prompts <= MAX_PROMPTS:
        return f"prompts must be 2 to {MAX_PROMPTS}, not {prompts}"
    if not 1 <= tokens <= MAX_TOKENS:
        return f"tokens must be 1 to {MAX_TOKENS}, not {tokens}"
    return None


def _modes(alloc: Mode) -> "list[Alloc]":
    return ["device", "host"] if alloc == "both" else [alloc]


def _complain(console: Console, what: str, code: int) -> int:
    console.print(Text(what, style="red"))
    return code


def _run(modes: "list[Alloc]", job: Job, console: Console) -> list[DemoResult]:
    jobs = [replace(job, alloc=alloc, name=f"{job.name}-{alloc}") for alloc in modes]
    try:
        with Crew(job.seed) as crew:
            console.print("Loading a small random Llama in three processes: prefill, decode, reference")
            for _ in ROLES:
                crew.listen()
            console.print("Running each prompt in the reference process, without NanoKV")
            expected = _reference(crew, job)
            return [_one_mode(crew, each, expected, console) for each in jobs]
    except BaseException:
        for each in jobs:
            _remove_name(each.name)
        raise


def _reference(crew: Crew, job: Job) -> Expected:
    crew.give("reference", job)
    results = [crew.listen()[1] for _ in range(job.prompts)]
    return [result["tokens"] for result in results], [result["digests"] for result in results]


def _one_mode(crew: Crew, job: Job, expected: Expected, console: Console) -> DemoResult:
    """Both ranks join a world, do their part, and leave it when both are done."""
    ranks = ("prefill", "decode")
    reports: dict[str, dict[str, Any]] = {}
    with PromptProgress(console, TITLES[job.alloc], make_prompts(job.prompts, job.seed), job.tokens) as progress:
        for role in ranks:
            crew.give(role, job)
        while len(reports) < len(ranks):
            role, message = crew.listen()
            progress.see(message)
            if message["event"] == "done":
                reports[role] = message["report"]
    for role in ranks:
        crew.go_on(role)
    for _ in ranks:
        crew.listen()
    return DemoResult(job.alloc, reports["prefill"], reports["decode"], *expected)


def _remove_name(name: str) -> None:
    """Remove a world whose ranks may have been killed. Ranks that leave by themselves leave nothing behind."""
    from nanokv.heap.shm_tools import remove_world

    with suppress(NanoKVError):  # there is no such world
        remove_world(name)


def _show(outcomes: list[DemoResult], console: Console) -> int:
    console.print(table(outcomes))
    console.print(
        "Rank 1 reads whole blocks and computes only what follows them: a block that is not full is not stored, and "
        "the last prompt token is always computed, because the first new token comes from it."
    )
    if any(outcome.alloc == "host" for outcome in outcomes):
        console.print("In v1 every put and get asks the master first: rank 0, which is busy with the model here.")
    complaints = [line for outcome in outcomes for line in outcome.complaints]
    for line in complaints:
        _complain(console, line, 1)
    if not complaints:
        console.print(Text("Every token and every KV block equals the single process.", style="green"))
    return 1 if complaints else 0

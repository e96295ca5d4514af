"""Runs the demo: rank 0 prefills and rank 1 decodes, each in a process; a third process is the reference."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.text import Text

from nanokv.demo.children import Crew, DemoFailed
from nanokv.demo.job import ROLES, Job
from nanokv.demo.progress import PromptProgress
from nanokv.demo.prompts import make_prompts
from nanokv.demo.report import TITLES, Outcome, table
from nanokv.errors import NanoKVError

if TYPE_CHECKING:
    from nanokv.config import Alloc

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
    report: Callable[[list[Outcome]], None] | None = None,
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


def _run(modes: "list[Alloc]", job: Job, console: Console) -> list[Outcome]:
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


def _one_mode(crew: Crew, job: Job, expected: Expected, console: Console) -> Outcome:
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
    return Outcome(job.alloc, reports["prefill"], reports["decode"], *expected)


def _remove_name(name: str) -> None:
    """Remove a world whose ranks may have been killed. Ranks that leave by themselves leave nothing behind."""
    from nanokv.heap.shm_tools import remove_world

    with suppress(NanoKVError):  # there is no such world
        remove_world(name)


def _show(outcomes: list[Outcome], console: Console) -> int:
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

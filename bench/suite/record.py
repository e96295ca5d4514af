"""A run as a file: the figures, and all that is known about where they come from."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from nanokv.bench.suite.figure import Better, Figure

FORMAT = "nanokv bench 1"

State = Literal["done", "failed", "stopped", "left out", "not begun"]


class BadRecord(ValueError):
    """A file is not a record of `python -m bench`; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """What became of one question.

    Attributes:
        name, asks, how, beside: of the question.
        state: "failed" if it raised, "stopped" if the user ended the run meanwhile.
        why: the error, or why it was left out.
        seconds: that it took.
    """

    name: str
    asks: str
    how: str
    beside: tuple[str, str | int] | None
    state: State
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """One run.

    Attributes:
        about: "machine", "versions", "commit", "settings", "timing_us" (of an empty call), "began" (local time).
        outcomes: of all questions that were asked.
        figures: all that were found.
    """

    about: dict[str, Any]
    outcomes: list[QuestionResult]
    figures: list[Figure]

    def of(self, name: str) -> list[Figure]:
        """The figures of one question."""
        return [figure for figure in self.figures if figure.question == name]


def write(path: Path, record: Record, targets: list[dict[str, Any]]) -> None:
    """Write a record as JSON, a figure a line. The file is the old one or the new one, never a part.

    Raises:
        OSError: it cannot be written.
    """
    lines = [f'"format": {json.dumps(FORMAT)}']
    lines += [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.about.items()]
    parts = {"questions": map(asdict, record.outcomes), "targets": targets, "figures": map(asdict, record.figures)}
    for name, rows in parts.items():
        body = ",\n  ".join(json.dumps(row) for row in rows)
        lines.append(f'"{name}": [\n  {body}\n ]')
    text = "{\n " + ",\n ".join(lines) + "\n}\n"
    replace_text(path, text)


def replace_text(path: Path, text: str) -> None:
    """Write a file beside `path`, and give it its name when all of it is on disk."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Record:
    """Read what `write` has written.

    Raises:
        BadRecord: there is no such file, or it holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRecord(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BadRecord(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BadRecord(f'{path}: not a file of `python -m bench --json`: "format" is not "{FORMAT}"')
    try:
        return _record(found)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BadRecord(f"{path}: {text}") from None


def _record(found: dict[str, Any]) -> Record:
    about = {name: found[name] for name in ("machine", "versions", "commit", "settings", "timing_us", "began")}
    for name in ("machine", "versions", "settings", "timing_us"):
        if not isinstance(about[name], dict):
            raise ValueError(f"{name} is {about[name]!r}")
    if not all(isinstance(about["machine"].get(name), int | float) for name in ("load_average", "usable_cores")):
        raise ValueError("machine has no load_average or no usable_cores")
    figures = [_figure(number, row) for number, row in enumerate(found["figures"])]
    check_cases(figures)
    return Record(about, [_outcome(row) for row in found["questions"]], figures)


def check_cases(figures: list[Figure]) -> None:
    """Raises ValueError: two figures have the same case."""
    seen: set[str] = set()
    for key in map(key_of, figures):
        if key in seen:
            raise ValueError(f"two figures have the case {key}")
        seen.add(key)


def _outcome(row: dict[str, Any]) -> QuestionResult:
    beside = row["beside"]
    return QuestionResult(**row | {"beside": None if beside is None else (beside[0], beside[1])})


def _figure(number: int, row: Any) -> Figure:
    where = f"figure {number}"
    wanted = {field.name for field in fields(Figure)}
    if not isinstance(row, dict) or set(row) != wanted:
        raise ValueError(f"{where} does not have the fields {', '.join(sorted(wanted))}")
    repetitions, case = row["repetitions"], row["case"]
    if not repetitions or not all(_is_numbers(one) for one in repetitions):
        raise ValueError(f"{where} has no repetitions, or one without numbers")
    if not isinstance(case, dict) or not all(isinstance(value, str | int) for value in case.values()):
        raise ValueError(f"{where} has a case that is not text and whole numbers")
    if row["better"] not in get_args(Better):
        raise ValueError(f"{where}: better is one of {', '.join(get_args(Better))}, not {row['better']!r}")
    figure = Figure(**row | {"buckets": [(int(lower), int(count)) for lower, count in row["buckets"]]})
    if figure.headline not in figure.names:
        raise ValueError(f"{where} has no {figure.headline} in each repetition")
    return figure


def _is_numbers(one: Any) -> bool:
    return isinstance(one, dict) and bool(one) and all(type(value) in (int, float) for value in one.values())


def key_of(figure: Figure) -> str:
    """What tells a figure from all others: its question and its case, as text."""
    return f"{figure.question}: {show_case(figure.case)}"


def show_case(case: Mapping[str, str | int]) -> str:
    """A case as text: "operation put, size 1024"."""
    return ", ".join(f"{axis} {value}" for axis, value in case.items())

"""`nanokv check`: the table, its exit codes, and its refusals."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from nanokv.check import run
from nanokv.check.report import CheckFailure, Row
from nanokv.cli import app

RUN = CliRunner()


def rows(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_threads_hold_on_this_machine() -> None:
    done = RUN.invoke(app, ["check", "threads", "--seconds", "1", "--alloc", "device", "--json"])
    assert done.exit_code == 0, done.output
    lines = rows(done.output)
    assert [row["part"] for row in lines] == ["threads", "threads"]
    assert all(row["held"] and isinstance(row["tried"], int) and row["tried"] > 100 for row in lines)


def test_the_table_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: run.Options) -> Iterator[Row]:
        row = Row("threads", "something", unit="rounds")
        with row.timed():
            row.tried = 3
            raise CheckFailure("I4: two words differ; seed 7")
        yield row

    monkeypatch.setitem(run.PARTS, "threads", broken)
    done = RUN.invoke(app, ["check", "threads"])
    assert done.exit_code == 1
    assert "I4: two words differ; seed 7" in done.output and "1 failures" in done.output


def test_nothing_tried_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.PARTS, "threads", lambda options: [Row("threads", "idle")])
    done = RUN.invoke(app, ["check", "threads"])
    assert done.exit_code == 1 and "nothing was tried" in done.output
    monkeypatch.setitem(run.PARTS, "threads", lambda options: [])
    assert RUN.invoke(app, ["check", "threads"]).exit_code == 1


def test_replay() -> None:
    assert RUN.invoke(app, ["check", "--replay", "same-key/weak: plain"]).exit_code == 0
    done = RUN.invoke(app, ["check", "--replay", "same-key: plain"])
    assert done.exit_code == 2 and "a replay string is" in done.output


def test_an_unknown_part_is_refused() -> None:
    done = RUN.invoke(app, ["check", "everything"])
    assert done.exit_code == 2 and "threads" in done.output


def test_without_greenlet_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    done = RUN.invoke(app, ["check", "model"])
    assert done.exit_code == 2 and "nanokv[check]" in done.output


def test_a_row_that_failed_is_not_held() -> None:
    row = Row("part", "name")
    assert not row.held
    row.tried = 1
    assert row.held
    with row.timed():
        raise CheckFailure("it broke")
    assert not row.held and row.failures == ["it broke"] and row.seconds >= 0

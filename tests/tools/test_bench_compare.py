"""Records of runs are read back with checks, changes are judged beyond the noise, and targets by the figures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanokv.bench.__main__ import main
from nanokv.bench.suite.compare import judge
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.record import BadRecord, QuestionResult, Record, read, write
from nanokv.bench.suite.settings import KIB, MIB
from nanokv.bench.suite.targets import Target, targets

ABOUT: dict[str, Any] = {
    "machine": {"cpu": "a", "usable_cores": 2, "load_average": 0.1},
    "versions": {"nanokv": "1", "torch": "2"},
    "commit": "abc",
    "settings": {"rounds": 10},
    "timing_us": {"written out": {"p50": 0.1}},
    "began": "2026-01-01T00:00:00+00:00",
}


def time_of(system: str, *values: float, question: str = "latency") -> Figure:
    """A time in µs of one case, by repetition."""
    return quantity(question, {"size": 1024, "system": system}, "us", "lower", values)


def record_of(*figures: Figure, **about: Any) -> Record:
    outcomes = [
        QuestionResult(name, "a?", "b", ("system", "copy_"), "done") for name in {one.question for one in figures}
    ]
    return Record(ABOUT | about, outcomes, list(figures))


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Writes a record, and returns its path."""

    def save(name: str, record: Record) -> str:
        write(tmp_path / name, record, [])
        return str(tmp_path / name)

    return save


# --- records ----------------------------------------------------------------------------------
def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    figures = [latency("q", {"a": 1, "b": "x"}, [np.arange(1, 2000)], note="n"), time_of("copy_", 1.0, 2.0)]
    record = record_of(*figures)
    write(tmp_path / "a.json", record, [one.as_dict() for one in targets(figures)])
    assert read(tmp_path / "a.json") == record
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    raw = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert {one["reached"] for one in raw["targets"]} == {None}


def test_a_record_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, record_of(time_of("copy_", 1.0)), [])
    before = file.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        write(file, record_of(time_of("copy_", 1.0), commit=object()), [])
    assert file.read_text(encoding="utf-8") == before and len(list(tmp_path.iterdir())) == 1


def broken(**changes: Any) -> dict[str, Any]:
    figure = {"question": "q", "case": {"a": 1}, "unit": "us", "better": "lower", "buckets": [], "note": ""}
    return figure | {"repetitions": [{"value": 1.0}]} | changes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a file of"),
        ({"machine": None}, "machine is None"),
        ({"machine": {"usable_cores": 2}}, "no load_average"),
        ({"figures": [{}]}, "figure 0 does not have the fields"),
        ({"figures": [broken(repetitions=[])]}, "figure 0 has no repetitions"),
        ({"figures": [broken(repetitions=[{"value": "1"}])]}, "figure 0 has no repetitions"),
        ({"figures": [broken(repetitions=[{"n": 1}])]}, "figure 0 has no value"),
        ({"figures": [broken(case={"a": 1.5})]}, "figure 0 has a case"),
        ({"figures": [broken(better="more")]}, "better is one of"),
        ({"figures": [broken(), broken()]}, "two figures have the case q: a 1"),
        ({"figures": 3}, "not iterable"),
        ({"questions": [{"name": "q"}]}, "beside"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_files_are_refused(saved: Any, change: dict[str, Any], message: str) -> None:
    path = Path(saved("a.json", record_of(time_of("copy_", 1.0))))
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(BadRecord, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_part_is_named(saved: Any) -> None:
    path = Path(saved("a.json", record_of(time_of("copy_", 1.0))))
    raw = json.loads(path.read_text(encoding="utf-8"))
    del raw["commit"]
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(BadRecord, match="'commit' is missing"):
        read(path)


# --- compare ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((10, 11, 12), (7, 8, 9), "faster"),
        ((7, 8, 9), (10, 11, 12), "slower"),
        ((10, 11, 12), (9, 9, 10), "no difference"),  # the ranges touch
        ((10.0, 10.1, 10.2), (10.3, 10.4, 10.5), "no difference"),  # apart, but by less than 5 %
        ((0, 0, 0), (0, 0, 0), "no difference"),
        ((0, 0, 0), (1, 1, 1), "slower"),
    ],
)
def test_only_more_than_the_noise_is_a_difference(
    before: tuple[float, ...], after: tuple[float, ...], verdict: str
) -> None:
    old, new = time_of("NanoKV v2", *before), time_of("NanoKV v2", *after)
    assert judge(old, new, "value") == verdict
    opposite = {"faster": "slower", "slower": "faster"}.get(verdict, verdict)
    assert judge(replace(old, better="higher"), replace(new, better="higher"), "value") == opposite
    other = "changed" if verdict != "no difference" else verdict
    assert judge(replace(old, better="neither"), replace(new, better="neither"), "value") == other


def test_compare_says_what_changed(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = record_of(time_of("NanoKV v2", 10, 11), time_of("gone", 1, 1), time_of("all gone", 1, question="wait"))
    after = record_of(time_of("NanoKV v2", 5, 6), time_of("new", 1, 1), versions={"nanokv": "1", "torch": "3"})
    paths = saved("a.json", before), saved("b.json", after)
    assert main(["compare", *paths]) == 0
    out = capsys.readouterr().out
    assert "10.5 (10.0-11.0)" in out and "5.5 (5.0-6.0)" in out and "0.52" in out and "faster: 1" in out
    assert "only A: latency, 1 KiB, gone" in out and "only B: latency, 1 KiB, new" in out
    assert "only A: wait, all 1 figures" in out
    assert "versions differs: torch 2 and 3" in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["compare", *reversed(paths)]) == 1
    assert "slower: 1" in capsys.readouterr().out


def test_only_our_own_slowness_gives_exit_code_1(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (record_of(time_of("copy_", *values)) for values in ((1, 1), (2, 2)))
    assert main(["compare", saved("a.json", before), saved("b.json", after)]) == 0
    assert "it may be the machine" in capsys.readouterr().out


def test_compare_judges_tails_if_asked(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    case: Case = {"system": "NanoKV v2"}
    quick, slow = np.full(2000, 1000), np.concatenate([np.full(1950, 1000), np.full(50, 9000)])
    paths = [saved(f"{n}.json", record_of(latency("latency", case, [ns, ns]))) for n, ns in enumerate((quick, slow))]
    assert main(["compare", *paths]) == 0
    assert main(["compare", *paths, "--tails"]) == 1
    assert "p99, µs" in capsys.readouterr().out


def test_compare_refuses_files(saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved("a.json", record_of(time_of("x", 1))), saved("b.json", record_of(time_of("y", 1)))
    (tmp_path / "c.json").write_text("{", encoding="utf-8")
    assert main(["compare", one, other]) == 2
    assert main(["compare", one, str(tmp_path / "c.json")]) == 2
    assert main(["compare", str(tmp_path / "d.json"), one]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert all(word in line for word, line in zip(("in common", "no JSON", "No such file"), errors, strict=True))
    with pytest.raises(SystemExit, match="2"):
        main(["compare", one])


# --- targets ----------------------------------------------------------------------------------
def judged(figures: list[Figure], what: str) -> Target:
    (found,) = [one for one in targets(figures) if one.what == what]
    return found


def test_without_figures_no_target_is_measured() -> None:
    assert len(targets([])) > 40 and len({one.what for one in targets([])}) == len(targets([]))
    assert {one.reached for one in targets([])} == {None}


def test_a_value_is_judged_by_its_median() -> None:
    case: Case = {"heap": "shm", "size": KIB, "operation": "put", "system": "NanoKV v2"}
    ns = [np.full(2000, 1000 * us) for us in (2, 3, 2)]
    figures = [latency("latency", case, ns), latency("latency", case | {"heap": "local"}, [np.full(2000, 99_000)])]
    one = judged(figures, "put, 1 KiB, two processes, p50")
    assert one.values == [2.0, 3.0, 2.0] and one.median == 2.0 and one.reached is True
    assert judged(figures, "put, 1 KiB, two processes, p99").reached is True
    assert judged(figures, "put, 1 KiB, two processes, p99.9").reached is None  # too few samples
    assert judged(figures, "get, 1 KiB, two processes, p50").reached is None


def test_a_ratio_is_that_of_the_same_repetition() -> None:
    case: Case = {"heap": "shm", "size": 8 * MIB, "operation": "get"}
    figures = [
        quantity("latency", case | {"system": system}, "us", "lower", values)
        for system, values in (("NanoKV v2", [100, 210, 90]), ("copy_", [100, 200, 100]))
    ]
    figures = [replace(one, repetitions=[{"p50": all_["value"]} for all_ in one.repetitions]) for one in figures]
    one = judged(figures, "get / copy_, 8 MiB, two processes, p50")
    assert one.values == [1.0, 1.05, 0.9] and one.reached


def peer(system: str, operation: str, size: int, us: float) -> Figure:
    case: Case = {"system": system, "operation": operation, "size": size}
    return replace(quantity("peers", case, "us", "lower", [0]), repetitions=[{"p50": us, "p99": 2 * us}])


def test_a_peer_is_judged_at_its_best() -> None:
    ours = [peer("NanoKV", name, size, 2.0) for name in ("put", "get") for size in (KIB, 64 * KIB)]
    theirs = [peer("Redis", name, size, us) for name, size, us in (("put", KIB, 200.0), ("get", KIB, 100.0))]
    slow = [peer("Redis", "put", 64 * KIB, 1.0)]
    assert judged([*ours, *theirs], "Redis / NanoKV, every size, p50").values == [50.0]
    assert judged([*ours, *theirs], "Redis / NanoKV, every size, p99").reached is True
    assert judged([*ours, *theirs, *slow], "Redis / NanoKV, every size, p50").reached is False
    assert judged(theirs, "Redis / NanoKV, every size, p50").reached is None
    mooncake = [peer("Mooncake TCP", name, KIB, us) for name, us in (("put", 170.0), ("get", 150.0))]
    assert judged([*ours, *mooncake], "Mooncake TCP / NanoKV, 1 KiB, p50").reached is False
    assert judged([*ours, *mooncake], "Mooncake TCP / NanoKV, 64 KiB, p50").reached is None


def test_limits_are_on_the_side_that_their_sign_says() -> None:
    for sign, at, above, below in (("≤", True, False, True), ("≥", True, True, False), (">", False, True, False)):
        for value, reached in ((10.0, at), (10.1, above), (9.9, below)):
            assert Target("t", 10.0, sign, "us", [value], "q").reached is reached

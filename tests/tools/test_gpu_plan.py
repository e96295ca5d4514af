"""The harness of a run on a GPU, with children that go wrong on a CPU: each costs only itself. And its pages."""

import json
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nanokv.bench.gpu import plan, report
from nanokv.bench.gpu.children import Items, Result
from nanokv.bench.gpu.model import Estimate
from nanokv.bench.gpu.plan import BENCHMARKS, PARTS, SECONDS, OtherGpu, Part, Run
from tests.gpu.marked import FILES

ROOT = Path(__file__).parents[2]
FAULTY = "tests.support.faulty_items"
AN_HOUR = 3600.0


def results(names: list[str], folder: Path, *, each: float = AN_HOUR, end: float = AN_HOUR) -> list[Result]:
    stop = time.monotonic() + end
    return list(Items([FAULTY], names, each, folder, "items").run(lambda: stop))


def names(found: list[Result], *, ok: bool) -> list[str]:
    return [each["name"] for each in found if each["ok"] == ok]


# --- one that goes wrong costs itself ---------------------------------------------------------
def test_one_that_raises_fails_alone_and_its_rows_stay(tmp_path: Path) -> None:
    found = results(["right", "raises", "right again"], tmp_path)
    assert names(found, ok=True) == ["right", "right again"]
    (failed,) = (each for each in found if not each["ok"])
    assert failed["rows"] == [{"figure": 2.5}] and "no such luck" in failed["note"]
    assert found[0]["note"] == "fine" and found[0]["rows"] == [{"figure": 1.5}]


def test_one_that_dies_fails_alone(tmp_path: Path) -> None:
    found = results(["right", "dies", "right again", "ends", "right at last"], tmp_path)
    assert names(found, ok=True) == ["right", "right again", "right at last"]
    died, ended = (each for each in found if not each["ok"])
    assert died["name"] == "dies" and died["rows"] == [{"figure": 3.5}]
    assert died["note"].startswith("died by SIGSEGV") and "faulty_items.py" in died["note"]  # where it stood
    assert ended["name"] == "ends" and ended["note"].startswith("ended with 7")


def test_one_that_hangs_is_ended_and_says_where_it_stood(tmp_path: Path) -> None:
    found = results(["hangs", "right"], tmp_path, each=3.0)
    assert names(found, ok=True) == ["right"]
    assert found[0]["name"] == "hangs" and found[0]["rows"] == [{"figure": 4.5}]
    assert found[0]["note"].startswith("stopped after 3 s") and "in hangs" in found[0]["note"]


def test_after_a_fault_a_new_process_goes_on(tmp_path: Path) -> None:
    found = results(["spoils", "right"], tmp_path)
    assert [(each["name"], each["ok"]) for each in found] == [("spoils", False), ("right", True)]


def test_children_that_never_begin_are_not_tried_for_each_item(tmp_path: Path) -> None:
    found = results(["never begins", "right", "raises"], tmp_path)
    assert names(found, ok=False) == ["never begins", "right", "raises"]
    assert found[0]["note"].startswith("never begun: ended with 5")
    assert (tmp_path / "items.jsonl").read_text() == ""


def test_what_the_end_of_time_cuts_off_is_left(tmp_path: Path) -> None:
    items = Items([FAULTY], ["right", "hangs", "raises"], AN_HOUR, tmp_path, "items")
    began: list[float] = []

    def end() -> float:  # as soon as the second one is at work
        if '"figure": 4.5' in (tmp_path / "items.jsonl").read_text() if (tmp_path / "items.jsonl").exists() else False:
            began.append(0.0)
        return 0.0 if began else time.monotonic() + AN_HOUR

    first, cut = items.run(end)
    assert first["name"] == "right" and first["ok"]
    assert cut["name"] == "hangs" and cut["cut"] and cut["rows"] == [{"figure": 4.5}]
    assert items.left == ["hangs", "raises"]


# --- the run ----------------------------------------------------------------------------------
def part(name: str, *items: str) -> Part:
    return Part(name, FAULTY, items, usual=1, limit=60, what="")


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [part("first", "right", "raises"), part("groups")]
    assert Run(tmp_path, 0.0, at="abc", is_toy=True).do(parts)
    assert "LEFT first (right, raises)" in capsys.readouterr().out
    said = json.loads((tmp_path / "results.json").read_text())
    assert said["left"] == ["right", "raises", "right of one", "dies of one", "right of two"] and said["results"] == []

    run = Run(tmp_path, AN_HOUR, at="abc", is_toy=True)
    assert run.do(parts)
    found = {each["name"]: each for each in run.results()}
    assert {name for name, each in found.items() if each["ok"]} == {"right", "right of one", "right of two"}
    assert found["dies of one"]["part"] == "groups" and found["right of two"]["call"] == 1
    assert (tmp_path / "one.log").exists() and (tmp_path / "two.jsonl").exists()

    run = Run(tmp_path, AN_HOUR, at="def", is_toy=True)
    assert run.do(parts, again=True)
    counts = Counter((each["name"], each["call"]) for each in run.results())
    assert counts == {
        **dict.fromkeys([("right", 1), ("right of one", 1), ("right of two", 1)], 1),
        ("raises", 2): 1,
        ("dies of one", 2): 1,
    }
    said = json.loads((tmp_path / "results.json").read_text())
    assert [call["commit"] for call in said["calls"]] == ["abc", "abc", "def"] and said["left"] == []


def test_chosen_items_are_done_in_any_case(tmp_path: Path) -> None:
    for call in range(2):
        run = Run(tmp_path, AN_HOUR, is_toy=True)
        assert run.do([part("first", "right", "raises"), part("groups")], only=["right", "two"])
        assert {(each["name"], each["call"]) for each in run.results()} == {("right", call), ("right of two", call)}


def test_nothing_follows_a_smoke_body_that_failed(tmp_path: Path) -> None:
    run = Run(tmp_path, AN_HOUR, is_toy=True)
    assert not run.do([part("smoke", "raises"), part("then", "right")])
    assert names(run.results(), ok=True) == []


def test_figures_of_two_gpus_do_not_come_together(tmp_path: Path) -> None:
    Run(tmp_path, AN_HOUR, is_toy=True)
    file = tmp_path / "results.json"
    file.write_text(file.read_text().replace("none: Triton's interpreter", "some GPU: of these days"))
    with pytest.raises(OtherGpu, match="some GPU"):
        Run(tmp_path, AN_HOUR, is_toy=True)


def test_the_plan_is_printed_and_fits_two_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([]) == 0
    said = capsys.readouterr().out
    assert all(f"{each.name} " in said for each in PARTS)
    assert sum(each.usual for each in PARTS) < 15 * 60 - 120  # a machine's start takes minutes
    assert SECONDS < 600 and max(each.limit for each in PARTS) < SECONDS / 4
    assert [each.name for each in PARTS][:3] == ["litmus", "smoke", "probe"] and BENCHMARKS[-2:] == (
        "sweep",
        "symmetric",
    )


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert plan.main(["--out", str(tmp_path)]) == 2
    assert "no GPU" in capsys.readouterr().out


def test_every_test_that_needs_a_gpu_is_run_by_the_plan() -> None:
    """As pyproject.toml says of the marker. The bodies are a part of their own."""
    marked = [path for path in (ROOT / "tests").rglob("*.py") if re.search(r"pytest\.mark\.gpu\b", path.read_text())]
    assert {str(path.relative_to(ROOT)) for path in marked} == {*FILES, "tests/gpu/test_gpu_local.py"}


# --- the page ---------------------------------------------------------------------------------
US = {"n": 9.0, "p50": 4.5, "p99": 9.5, "p99_9": 9.5, "max": 10.0}


def made() -> dict[str, Any]:
    """A report of a run in which something failed, and something is left."""

    def result(part: str, name: str, *rows: dict[str, Any], ok: bool = True, note: str = "") -> Result:
        return {"part": part, "name": name, "ok": ok, "seconds": 1.0, "note": note, "call": 0, "rows": list(rows)}

    us = {"put": US, "get": US, "remove": US}
    produce: list[dict[str, Any]] = [
        {
            "what": "put and get",
            "ctas": 1,
            "size": 0,
            "us": us,
            "cold_us": us,
            "pairs_per_s": {"p50": 1e6, "least": 1e6},
        },
        *(
            {"what": what, "ctas": 1056, "classes": "one", "pairs_per_s": {"p50": 3e7, "least": 1e6}}
            for what in ("extent", "list")
        ),
    ]
    return {
        "gpu": {"name": "NVIDIA X1", "driver": {"driver_version": "999.1"}},
        "versions": {"torch": "2.13", "triton": "3.6", "python": "3.12"},
        "calls": [{"commit": "abc", "seconds": 500.0}, {"commit": "def", "seconds": 90.0}],
        "left": ["sweep"],
        "targets": [
            {"what": "it all", "limit": 5.0, "measured": 4.5, "unit": "µs", "at_least": False, "reached": True}
        ],
        "results": [
            result("litmus", "litmus", {"name": "message passing", "held": True, "instances": 2_000_000}),
            result("smoke", "pins_hold"),
            result("bodies", "checksums", ok=False, note="Traceback ...\nAssertionError: a | b"),
            result("produce", "produce", *produce),
            result("many", "many", {"size": 1 << 20, "us": {"copy": US}, "of_copy": {"put_many": 0.93}}),
            result("tests", "one"),
            result("tests", "other", note="skipped: it needs another one"),
        ],
    }


MODEL = [Estimate(name, "own", 4000.0, 8000.0, Counter()) for name in ("put", "get")]
MODEL += [each._replace(where="peer") for each in MODEL]


def copy_of_documents(folder: Path) -> Path:
    (folder / "docs").mkdir()
    for path in report.documents(ROOT):
        shutil.copy(path, folder / path.relative_to(ROOT))
    return folder


def test_the_page_has_measured_beside_model_and_target(tmp_path: Path) -> None:
    root = copy_of_documents(tmp_path)
    changed = {str(path.relative_to(root)) for path in report.write(made(), MODEL, root)}
    assert {"docs/gpu_results.md", "bench/results/gpu.json", "README.md", "docs/gpu.md", "docs/cost.md"} <= changed
    page = (root / "docs" / "gpu_results.md").read_text()
    assert "| put | 4.0 to 8.0 | 4.5 | 9.5 | 4.5 |" in page
    assert re.search(r"\| 1 MiB \| \d+% \| 93% \|", page)
    assert "| it all | ≤ 5 µs | 4.5 µs | yes |" in page
    assert (
        "| bodies | 0 of 1 |" in page
        and "`checksums`: AssertionError: a \\| b" in page
        and "**not run**: sweep" in page
    )
    assert "abc, def" in page and "| put and get, ctas 1, 0 B, put, cold | 4.5 | 9.5 | 10 | 9 |" in page
    assert report.write(made(), MODEL, root) == []


def test_the_documents_say_what_was_measured_and_only_that(tmp_path: Path) -> None:
    root = copy_of_documents(tmp_path)
    report.write(made(), MODEL, root)
    gpu, write = (root / "docs" / "gpu.md").read_text(), "<!-- gpu: write -->Times are *not measured*"
    assert "**Run on one NVIDIA X1**: 1 of 2 bodies are right" in gpu and "No GPU has run this yet" not in gpu
    assert "30 million pairs a second" in " ".join(gpu.split())
    assert write in gpu  # no row of `engine_write`
    assert "no forbidden outcome in 2,000,000 instances" in (root / "docs" / "verification.md").read_text()
    providers = (root / "docs" / "providers.md").read_text()
    assert "tests marked `gpu` that pass on one NVIDIA X1: 1 of 2, 1 skipped" in providers
    assert "a put 4.5 µs, a get 4.5 µs" in (root / "docs" / "cost.md").read_text()


def test_every_place_of_the_documents_is_known_and_used() -> None:
    texts = [path.read_text() for path in report.documents(ROOT)]
    places = [name for text in texts for name in re.findall(r"<!-- gpu: ([\w ]+) -->.*?<!-- end -->", text, re.S)]
    assert sorted(places) == sorted(report.SAID)
    assert sum(text.count("<!-- end -->") for text in texts) == len(places)


def test_figures_of_an_interpreter_come_into_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps(made() | {"gpu": {"name": "none: an interpreter"}}))
    assert report.main([str(tmp_path)]) == 2
    assert "mean nothing" in capsys.readouterr().out

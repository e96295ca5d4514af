"""Figures of a GPU for the documents: `python -m bench.gpu.report FOLDER`, after `bench.gpu.plan --out FOLDER`.

It copies the JSON to bench/results/gpu.json, writes docs/gpu_results.md (measured beside the model and the targets),
and fills in what the other documents say of GPUs: what stands between `<!-- gpu: NAME -->` and `<!-- end -->`. SAID
knows how that reads once it was measured. What has no figure stays as it is. The page is not edited by hand.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nanokv.bench.gpu.children import Result
from nanokv.bench.gpu.model import Estimate, bandwidths, estimates, measured
from nanokv.bench.gpu.plan import BENCHMARKS, PARTS, SMOKE
from nanokv.bench.suite.settings import show_size

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = Path("docs/gpu_results.md"), Path("bench/results/gpu.json")
LINK = "gpu_results.md"
BODIES = ("bodies", SMOKE)
_PLACE = re.compile(r"(<!-- gpu: ([\w ]+) -->)(.*?)(<!-- end -->)", re.S)

Report = dict[str, Any]


# --- what a report has -------------------------------------------------------------------------
def card(report: Report) -> str:
    """The name of the GPU."""
    return str(report["gpu"]["name"])


def of_part(report: Report, *names: str) -> list[Result]:
    """The results of parts of the plan, without those that were cut off."""
    return [result for result in report["results"] if result["part"] in names and not result.get("cut")]


def rows(report: Report, name: str) -> list[dict[str, Any]]:
    """The rows of a benchmark."""
    return [row for result in report["results"] if result["name"] == name for row in result.get("rows", [])]


def row(report: Report, name: str, **wanted: Any) -> dict[str, Any] | None:
    """The last row of a benchmark that has these values."""
    found = [each for each in rows(report, name) if all(each.get(key) == value for key, value in wanted.items())]
    return found[-1] if found else None


def passed(results: Sequence[Result]) -> str:
    """How many are right; what was skipped is not."""
    skipped = sum(result["note"].startswith("skipped") for result in results)
    right = f"{sum(result['ok'] for result in results) - skipped} of {len(results)}"
    return f"{right}, {skipped} skipped" if skipped else right


def number(value: float) -> str:
    """A figure with three digits, thousands separated."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# --- what the documents say --------------------------------------------------------------------
def _bodies(report: Report) -> str | None:
    found = of_part(report, *BODIES)
    return f"**Run on one {card(report)}**: {passed(found)} bodies are right ([figures]({LINK}))." if found else None


def _readme(report: Report) -> str | None:
    found = of_part(report, *BODIES)
    return f"on one {card(report)} {passed(found)} bodies are right ([figures](docs/{LINK}))" if found else None


def _library(report: Report) -> str | None:
    found = of_part(report, *BODIES)
    return f"on one {card(report)} {passed(found)} bodies of `tests/gpu` are right" if found else None


def _lists(report: Report) -> str | None:
    rates = {}
    for what in ("extent", "list"):
        all_rows = [each for each in rows(report, "produce") if each["what"] == what and each["classes"] == "one"]
        if not all_rows:
            return None
        most = max(all_rows, key=lambda each: each["ctas"])
        rates[what] = f"{number(most['pairs_per_s']['p50'] / 1e6)} million pairs a second"
        ctas = most["ctas"]
    return f"{ctas} CTAs on one {card(report)} took and gave {rates['extent']}, of one list {rates['list']}."


def _write(report: Report) -> str | None:
    last = row(report, "engine_write")
    if last is None:
        return None
    names = ("vLLM's kernel", "without publishing", "publishing one layer", "layer between")
    us = ", ".join(f"{name} {number(last['us'][name]['p50'])} µs" for name in names if name in last["us"])
    return f"Measured on one {card(report)}, {last['tokens']} tokens: {us}."


def _cost(report: Report) -> str | None:
    found = measured(report["results"])
    if not found:
        return None
    said = ", ".join(f"a {name} {number(us['p50'] / 1e3)} µs" for name, us in found.items())
    return f"One {card(report)} measured, inside a kernel and without payload: {said} ([figures]({LINK}))."


def _tests(report: Report) -> str | None:
    found = of_part(report, "tests")
    return f"tests marked `gpu` that pass on one {card(report)}: {passed(found)}" if found else None


def _litmus(report: Report) -> str | None:
    found = rows(report, "litmus")
    if not found:
        return None
    count = sum(each["instances"] for each in found)
    held = "no forbidden outcome" if all(each["held"] for each in found) else "**a forbidden outcome**"
    return f"On one {card(report)} the litmus kernels showed {held} in {count:,} instances."


def _benchmarks(report: Report) -> str | None:
    found = of_part(report, *BENCHMARKS)
    return f"Measured on one {card(report)}: [{LINK}]({LINK})." if found else None


#: name of a place in the documents -> what it says; None: it was not measured
SAID: dict[str, Callable[[Report], str | None]] = {
    "readme": _readme,
    "bodies": _bodies,
    "library": _library,
    "lists": _lists,
    "write": _write,
    "cost": _cost,
    "tests": _tests,
    "litmus": _litmus,
    "benchmarks": _benchmarks,
}


def documents(root: Path) -> list[Path]:
    """The documents that may have places."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(text: str, report: Report) -> str:
    """A document with what was measured in its places."""

    def put(match: re.Match[str]) -> str:
        said = SAID[match[2]](report)
        return match[0] if said is None else f"{match[1]}{said}{match[4]}"

    return _PLACE.sub(put, text)


# --- the page ----------------------------------------------------------------------------------
def page(report: Report, model: Sequence[Estimate]) -> str:
    """docs/gpu_results.md."""
    return (
        "\n".join([*_head(report), *_right(report), *_targets(report), *_model(report, model), *_figures(report)])
        + "\n"
    )


def _head(report: Report) -> Iterator[str]:
    yield "# Figures of a GPU"
    yield ""
    yield f"Written by `python -m bench.gpu.report` from `{RESULTS}`;"
    yield "how they are measured: [benchmarks.md](benchmarks.md#on-a-gpu)."
    yield ""
    about = {"card": card(report), "driver": report["gpu"].get("driver", {}).get("driver_version", "-")}
    about |= {
        name: version or "-" for name, version in report["versions"].items() if name in ("torch", "triton", "python")
    }
    about |= {"commits": ", ".join(dict.fromkeys(str(call["commit"]) for call in report["calls"]))}
    about |= {"seconds": ", ".join(f"{call['seconds']:.0f}" for call in report["calls"])}
    yield from _table(["", ""], about.items())


def _right(report: Report) -> Iterator[str]:
    yield "## What is right"
    yield ""
    parts = [part.name for part in PARTS if part.name not in BENCHMARKS]
    yield from _table(["part", "right"], ((name, passed(of_part(report, name))) for name in parts))
    wrong = [result for result in report["results"] if not result["ok"]]
    for result in wrong:
        why = (result["note"].strip().splitlines() or [""])[-1 if "Traceback" in result["note"] else 0]
        how = "cut off" if result.get("cut") else "failed"
        yield f"- **{how}**: {result['part']}, `{result['name']}`: {_cell(why)[:160]}"
    if report["left"]:
        yield f"- **not run**: {', '.join(report['left'])}"
    if wrong or report["left"]:
        yield ""


def _targets(report: Report) -> Iterator[str]:
    yield "## Targets"
    yield ""
    found = (
        (
            each["what"],
            f"{'≥' if each['at_least'] else '≤'} {number(each['limit'])} {each['unit']}",
            f"{number(each['measured'])} {each['unit']}",
            "yes" if each["reached"] else "**no**",
        )
        for each in report["targets"]
    )
    yield from _table(["", "target", "measured", "reached"], found)


def _model(report: Report, model: Sequence[Estimate]) -> Iterator[str]:
    yield "## Beside the model"
    yield ""
    yield "Estimated by `python -m bench.gpu.model`: an object of 100 bytes, nothing else at work. Measured: no"
    yield "payload, by one CTA, in warm rounds, and in the first round of a launch (cold). In µs."
    yield ""
    seen = measured(report["results"])
    own = [each for each in model if each.where == "own"]
    lines = []
    for each in own:
        us = {name: number(ns / 1e3) for name, ns in seen.get(each.operation, {}).items()}
        span = f"{each.low / 1e3:.1f} to {each.high / 1e3:.1f}"
        lines.append((each.operation, span, *(us.get(name, "-") for name in ("p50", "p99", "cold"))))
    yield from _table(["inside a kernel", "model", "p50", "p99", "cold p50"], lines)
    puts = {each.where: each for each in model if each.operation == "put"}
    if puts:
        expected = {size: share for size, where, share in bandwidths(puts) if where == "own"}
        of_copy = [(each["size"], each["of_copy"]["put_many"]) for each in rows(report, "many")]
        shares = (
            (show_size(size), f"{expected[size]:.0%}" if size in expected else "-", f"{share:.0%}")
            for size, share in of_copy
        )
        yield from _table(["put_many, of a copy's bandwidth", "model", "measured"], shares)


def _figures(report: Report) -> Iterator[str]:
    for part in PARTS:
        found = rows(report, part.name) if part.name in BENCHMARKS else []
        if not found:
            continue
        yield f"## {part.name}"
        yield ""
        yield f"{part.what[0].upper()}{part.what[1:]}. Times in µs."
        yield ""
        clocks = [
            each for result in report["results"] if result["name"] == part.name for each in result.get("clocks", [])
        ]
        for when, each in zip(("Before", "After"), clocks, strict=False):
            yield f"{when}: {', '.join(f'{name} {value}' for name, value in each.items())}  "
        if clocks:
            yield ""
        yield from _timed(found)
        yield from _other(found)


def _timed(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A table of all percentiles of some rows."""
    lines = []
    for each in found:
        for kind in ("us", "cold_us"):
            us = each.get(kind, {})
            for name, summary in ({"": us} if "p50" in us else us).items():
                what = ", ".join(filter(None, (_label(each), name, "cold" if kind == "cold_us" else "")))
                lines.append((what, *(number(summary[percentile]) for percentile in ("p50", "p99", "max", "n"))))
    if lines:
        yield from _table(["", "p50", "p99", "max", "samples"], lines)


def _other(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A table of all other figures of some rows."""
    lines = []
    for each in found:
        for key, value in each.items():
            if isinstance(value, float):
                lines.append((_label(each), key, number(value)))
            elif isinstance(value, dict) and key not in ("us", "cold_us", "events_us"):
                inner = value.items() if value else [("nothing", "")]
                lines += [(_label(each), f"{key}: {name}", _shown(part)) for name, part in inner]
            elif key in ("note", "skipped") and value:
                lines.append((_label(each), key, value))
    if lines:
        yield from _table(["", "", ""], lines)


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else str(value)


def _label(found: dict[str, Any]) -> str:
    """What a row is about: its words and whole numbers."""
    said = []
    for key, value in found.items():
        if key in ("note", "skipped", "checked", "rounds") or isinstance(value, float | dict | list) or value is None:
            continue
        if key == "what":
            said.append(str(value))
        elif key.endswith("size") or key.endswith("bytes"):
            said.append(f"{key.removesuffix('size').removesuffix('bytes')}{show_size(value)}")
        else:
            said.append(f"{key} {value}")
    return ", ".join(said)


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for line in lines:
        yield f"| {' | '.join(map(_cell, line))} |"
    yield ""


# --- files -------------------------------------------------------------------------------------
def write(report: Report, model: Sequence[Estimate], root: Path) -> list[Path]:
    """Write all into the repository at `root`. Returns the files that changed."""
    new = {path: filled(path.read_text(encoding="utf-8"), report) for path in documents(root) if path != root / PAGE}
    new[root / PAGE] = page(report, model)
    new[root / RESULTS] = json.dumps(report, indent=1) + "\n"
    changed = [path for path, text in new.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new[path], encoding="utf-8")
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files and name them. 2: figures of an interpreter are for no document of this repository."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.report", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of `bench.gpu.plan --out`")
    parser.add_argument("--into", type=Path, default=ROOT, metavar="ROOT", help="of another copy of the repository")
    given = parser.parse_args(arguments)
    report: Report = json.loads((given.folder / "results.json").read_text(encoding="utf-8"))
    if report["gpu"]["name"].startswith("none") and given.into.resolve() == ROOT.resolve():
        print("these figures are of Triton's interpreter, and mean nothing: write them --into a copy")
        return 2
    for path in write(report, list(estimates()), given.into):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What samples become: percentiles, buckets, repetitions in turns, cells, tables and plots."""

import json
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from nanokv.bench.suite import timing
from nanokv.bench.suite.cells import cell, grid, number, ratio, ratios, show_axis, value_names
from nanokv.bench.suite.distribution import ABOVE, PERCENTILES, buckets, latency, merged, percentiles, width
from nanokv.bench.suite.figure import Figure, quantity
from nanokv.bench.suite.plots import percentile_curve, plots
from nanokv.bench.suite.tables import tables
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.turns import in_turns


# --- samples ----------------------------------------------------------------------------------
def test_samples_are_timed_in_order_up_to_their_capacity() -> None:
    samples, seen = Samples(2), list[int]()
    samples.time(seen.append, 7)
    samples.clear()
    samples.time(seen.append, 8)
    samples.add(123)
    assert seen == [7, 8] and len(samples) == 2 and samples.ns[1] == 123 and samples.ns[0] >= 0
    with pytest.raises(IndexError):
        samples.time(seen.append, 9)


def test_the_cost_of_timing_is_measured() -> None:
    assert all(len(samples) == timing.EMPTY_CALLS and min(samples.ns) >= 0 for samples in timing.overhead().values())


def test_percentiles_are_samples_that_enough_others_lie_above() -> None:
    rng = np.random.default_rng(1)
    ns = rng.permutation(np.arange(1, 100_001)) * 1000
    found = percentiles(ns)
    assert found == {
        "n": 1e5,
        "p50": 50_000.0,
        "p90": 90_000.0,
        "p99": 99_000.0,
        "p99.9": 99_900.0,
        "p99.99": 99_990.0,
        "max": 100_000.0,
    }
    for name, share in PERCENTILES.items():
        if name != "p50":
            least = ABOVE * 10_000 // (10_000 - share)
            assert name in percentiles(ns[:least]) and name not in percentiles(ns[: least - 1]), name
    assert set(percentiles(ns[:1])) == {"n", "p50", "max"}
    with pytest.raises(ValueError, match="no samples"):
        percentiles(ns[:0])


def test_buckets_are_narrow_and_lose_no_sample() -> None:
    rng = np.random.default_rng(2)
    ns = np.concatenate(
        [np.arange(300), 1 << np.arange(50), (1 << np.arange(1, 50)) - 1, rng.integers(0, 1 << 40, 999)]
    )
    found = buckets(ns)
    assert sum(count for _, count in found) == len(ns)
    lowers = [lower for lower, _ in found]
    assert lowers == sorted(set(lowers))
    for one in ns.tolist():
        ((lower, count),) = buckets(np.array([one]))
        assert lower <= one < lower + width(lower) and count == 1
        assert width(lower) == 1 or width(lower) * 64 <= lower
    halves = merged([buckets(ns[::2]), buckets(ns[1::2])])
    assert halves == found


def test_a_latency_keeps_its_repetitions_apart_and_its_buckets_together() -> None:
    figure = latency("q", {"a": 1}, [np.array([1000, 3000]), np.array([5000, 5000, 5000])])
    assert [one["p50"] for one in figure.repetitions] == [1.0, 5.0] and figure.median() == 3.0
    assert figure.spread() == (1.0, 5.0) and sum(count for _, count in figure.buckets) == 5
    with pytest.raises(ValueError, match="no repetitions"):
        latency("q", {}, [])


def test_a_name_counts_only_if_every_repetition_has_it() -> None:
    figure = latency("q", {"a": 1}, [np.arange(1, 1001), np.arange(1, 101)])
    assert "p99" in figure.repetitions[0] and figure.names == ["p50", "p90", "max"]


def test_repetitions_take_turns() -> None:
    order: list[str] = []
    said: list[str] = []

    def way(name: str) -> int:
        order.append(name)
        return len(order)

    found = in_turns({"A": lambda: way("A"), "B": lambda: way("B")}, 3, warm_up=1, say=said.append)
    assert "".join(order) == "ABABABAB"
    assert found == {"A": [3, 5, 7], "B": [4, 6, 8]}
    assert said[0] == "A, warming up" and said[-1] == "B, 3 of 3"


# --- text -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (0.004, "0.0040"), (0.41, "0.41"), (4.14, "4.1"), (99.94, "99.9"), (99.96, "100"), (4100.4, "4,100")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_cells() -> None:
    figure = quantity("q", {"a": 1}, "us", "lower", [4.1, 4.0, 4.62])
    assert cell(figure, "value") == "4.1 (4.0-4.6)" and cell(figure, "p99") == ""
    assert cell(quantity("q", {"a": 1}, "us", "lower", [4.1]), "value") == "4.1"
    assert cell(quantity("q", {"a": 1}, "%", "higher", [-2.0, 1.0]), "value") == "-0.50 (-2.0 to 1.0)"
    assert ratio(1.049) == "1.05" and ratio(12.34) == "12.3"
    assert ratios(figure, quantity("q", {}, "us", "lower", [2.0, 0.0, 2.0])) == [4.1 / 2, 4.62 / 2]
    assert (
        show_axis("size", 1024) == "1 KiB" and show_axis("load", 50) == "50 %" and show_axis("objects", 1000) == "1,000"
    )


def sweep_of(systems: tuple[str, ...], sizes: tuple[int, ...], heaps: tuple[str, ...] = ("shm",)) -> list[Figure]:
    rng = np.random.default_rng(3)
    return [
        latency("q", {"heap": heap, "size": size, "system": system}, [rng.integers(1000, 9000, 2000) for _ in range(2)])
        for heap in heaps
        for size in sizes
        for system in systems
    ]


def test_a_grid_has_ratios_beside_one_system() -> None:
    figures = sweep_of(("mine", "copy_"), (64, 1024))
    made = grid(figures, ["p50"], ("system", "copy_"))
    assert made.title == "q, heap shm, µs" and made.axes == ["size", "system"] and made.columns == ["p50", "/ copy_"]
    (first, second), (_, _) = made.groups
    assert first[:2] == ["64 B", "mine"] and second[:2] == ["", "copy_"]
    values = ratios(figures[0], figures[1])
    assert first[-1] == ratio(sum(values) / 2) and second[-1] == ""
    assert grid(figures[::2], ["p50"], ("system", "copy_")).columns == ["p50"]


@pytest.mark.parametrize("columns", [60, 80, 120, 300])
def test_tables_fit_and_lose_no_figure(columns: int) -> None:
    figures = sweep_of(("NanoKV v2", "NanoKV v1", "copy_"), (64, 1024, 8 << 20), ("local", "shm"))
    console = Console(width=columns, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for table in tables(figures, ("system", "copy_"), console):
        console.print(table)
    text = console.export_text()
    console.file.close()
    assert max(map(len, text.splitlines())) <= columns
    for figure in figures:
        assert cell(figure, "p50") in text
    assert ("p99" in text) and ("max" in text)


def test_values_of_several_units_have_their_unit_beside_them() -> None:
    figures = [
        quantity("q", {"what": "a"}, "bytes", "lower", [64.0]),
        quantity("q", {"what": "b"}, "%", "lower", [0.1]),
    ]
    made = grid(figures, value_names(figures), None)
    assert made.columns == ["value", "unit"] and made.groups[0][1] == ["b", "0.10", "%"]


# --- plots ------------------------------------------------------------------------------------
def titles(figures: list[Figure]) -> list[str]:
    return [plot.title for plot in plots(figures)]


def test_plots_are_chosen_by_axes() -> None:
    swept = sweep_of(("mine", "copy_"), (64, 1024))
    assert titles(swept) == ["by size", "distribution"]
    assert titles(sweep_of(("mine", "copy_"), (64, 1024), ("local", "shm"))) == [
        "by size",
        "distribution, local",
        "distribution, shm",
    ]
    scaling = [quantity("q", {"producers": n, "owners": m}, "GB/s", "higher", [n * m]) for n in (1, 2) for m in (1, 2)]
    assert titles(scaling) == ["by producers", "by owners"]
    loads = [latency("q", {"operation": "get", "load": n}, [np.arange(1, 20_000)]) for n in (10, 50)]
    assert titles(loads) == ["by load", "distribution"]
    (by_load, _) = plots(loads)
    assert all(f">{name}<" in by_load.svg for name in ("p50", "p99", "p99.9"))
    assert titles([quantity("q", {"what": "a"}, "s", "lower", [1.0])]) == []
    pages = [quantity("q", {"page size": 4096 << n}, "%", "lower", [n]) for n in range(3)]
    assert titles(pages) == ["by page size"]
    assert titles([quantity("q", {"size": 4096 << n}, "us", "lower", [n]) for n in range(3)]) == ["by size"]
    apart = [quantity("q", {"model": name, "size": n}, "%", "lower", [1.0]) for n, name in ((64, "a"), (128, "b"))]
    assert titles(apart) == []


def test_plots_can_be_put_into_a_page() -> None:
    one, two = plots(sweep_of(("mine", "copy_"), (64, 1024)))
    for plot in (one, two):
        assert plot.svg.startswith("<svg") and "currentColor" in plot.svg and "#123456" not in plot.svg
        assert "<metadata" not in plot.svg and "<!DOCTYPE" not in plot.svg
        assert ">mine<" in plot.svg and ">copy_<" in plot.svg
    ids = [set(re.findall(r' id="([^"]+)"', plot.svg)) for plot in (one, two)]
    assert not ids[0] & ids[1]
    for plot, there in zip((one, two), ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"', plot.svg)) | set(re.findall(r"url\(#([^)]+)\)", plot.svg))
        assert used <= there


def test_a_percentile_curve_goes_from_the_fastest_to_the_slowest() -> None:
    ns = np.random.default_rng(4).integers(1000, 100_000, 50_000)
    points = percentile_curve(buckets(ns))
    rarities, took = zip(*points, strict=True)
    assert list(rarities) == sorted(rarities) and list(took) == sorted(took)
    assert rarities[-1] == len(ns) and took[-1] == pytest.approx(ns.max() / 1e3, rel=1 / 64)
    median = min(points, key=lambda point: abs(point[0] - 2))
    assert median[1] == pytest.approx(np.median(ns) / 1e3, rel=0.05)
    assert percentile_curve([(1000, 1)]) == [(1, (1000 + (width(1000) - 1) / 2) / 1e3)]


def test_zeros_can_be_drawn(recwarn: Any) -> None:
    figures = [latency("q", {"poller": name}, [np.array([0, 0, 0, 2000])]) for name in ("busy", "asleep")]
    assert titles(figures) == ["distribution"]
    assert json.dumps([str(one.message) for one in recwarn]) == "[]"

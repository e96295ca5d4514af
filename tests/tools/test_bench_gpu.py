"""The GPU benchmarks in Triton's interpreter, as small as possible: they run, check the bytes, and report errors.

Nothing here looks at a duration. Their kernels are also compiled for GPUs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.bench.gpu import clock, kernels, runner, steps
from nanokv.bench.gpu.announce import host_time
from nanokv.bench.gpu.clock import Offset
from nanokv.bench.gpu.plan import ALL_SECONDS, LIMITS, PARTS
from nanokv.bench.gpu.produce import STEPS, latencies
from nanokv.bench.gpu.runner import judged, run_all
from nanokv.bench.gpu.settings import GpuSettings, toy
from nanokv.bench.gpu.targets import targets
from nanokv.bench.gpu.timer import Timer, graph_of
from nanokv.bench.gpu.versions import meet
from nanokv.bench.suite.timing import PERCENTILES, Summary
from tests.gpu.every_body import GROUPS
from tests.support.compiling import Kernel, assembly

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
TOY = toy()
OF_NVIDIA = ("produce_kernel", "put_stamped_kernel", "read_clocks_kernel", "shake_hands_kernel", "put_in_steps_kernel")


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with TRITON_INTERPRET=1, which is read when a kernel is decorated."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@cache
def done(name: str) -> dict[str, Any]:
    """The JSON of one benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpu.json"
        ended = child("-m", "bench.gpu", name, "--device", "cpu", "--toy", "--commit", "abc", "--json", str(file))
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark that ran."""
    (result,) = done(name)["results"]
    assert result["name"] == f"bench: {name}" and result["ok"], result["note"]
    found: list[dict[str, Any]] = result["rows"]
    return found


def check_summaries(us: dict[str, Summary], count: int) -> None:
    for name, summary in us.items():
        values = [summary[percentile] for percentile in PERCENTILES]
        assert summary["n"] == count, name
        assert values[0] >= 0 and values == sorted(values)


# --- each benchmark ---------------------------------------------------------------------------
def test_put_many_and_get_many() -> None:
    (row,) = rows("many")
    assert (row["size"], row["objects"]) == (TOY.sizes[0], TOY.objects)
    check_summaries(row["us"], TOY.laps)
    verbs = ("put_many", "get_many", "call_put_many", "call_get_many")
    moved = {f"{verb}{way}" for verb in verbs for way in ("", " paged", " paged by heads")}
    assert moved | {"copy", "call_copy", "plain_kernel"} == set(row["us"])
    assert row["checked"] >= 3 * 2 * 3 * TOY.objects * TOY.laps  # put, got and removed, in each way, twice per lap
    for name in moved | {"plain_kernel"}:
        base = "call_copy" if name.startswith("call") else "copy"
        assert row["of_copy"][name] == pytest.approx(row["us"][base]["p50"] / row["us"][name]["p50"])


def test_one_put() -> None:
    (row,) = rows("single")
    assert set(row["us"]) == {"copy", "plain_kernel", "empty_put", "put", "get", "chain_of_copies", "chain_of_puts"}
    check_summaries(row["us"], TOY.single_laps)
    assert row["checked"] >= 3 * (1 + TOY.chain) * TOY.single_laps
    assert row["put_minus_copy_us"] == row["us"]["put"]["p50"] - row["us"]["copy"]["p50"]
    assert row["chained_put_us"] == row["us"]["chain_of_puts"]["p50"] / TOY.chain


def test_producers() -> None:
    clocks, *found = rows("produce")
    assert clocks["what"] == "clocks" and clocks["readings"] > clocks["ticks"] > 0 and clocks["tick_ns"] > 0
    puts = [row for row in found if row["what"] == "put and remove"]
    assert [(row["classes"], row["ctas"]) for row in puts] == [(c, n) for c in ("one", "many") for n in TOY.ctas]
    for row in puts:
        assert row["rounds"] == min(TOY.pairs // row["ctas"], TOY.max_rounds)
        assert set(row["us"]) == {*STEPS, "put"}
        check_summaries(row["us"], row["ctas"] * row["rounds"])
    fine = [row for row in found if row["what"] == "steps of a put"]
    assert [row["ctas"] for row in fine] == [*TOY.step_ctas]
    for row in fine:
        assert tuple(row["us"]) == steps.NAMES
        check_summaries(row["us"], row["ctas"] * row["rounds"])
    bare = {(row["what"], row["classes"]) for row in found if row not in puts and row not in fine}
    assert bare == {("extent", "one"), ("extent", "many"), ("header slot", "one"), ("list", "one")}
    assert all(row["pairs_per_s"]["p50"] >= row["pairs_per_s"]["least"] > 0 for row in found)


def test_versions() -> None:
    *found, last = rows("versions")
    assert [(row["version"], row["size"]) for row in found] == [(v, n) for n in TOY.sizes for v in ("v1", "v2")]
    for row in found:
        assert set(row["us"]) == {"copy", "put"} | ({"batch_put"} if row["version"] == "v2" else set())
        check_summaries(row["us"], TOY.version_rounds)
        assert row["checked"] >= TOY.version_rounds
    assert last["meet_bytes"] == {name: meet(found, name) for name in ("put", "batch_put")}
    assert "no message" in last["note"]


def test_announcements() -> None:
    found = rows("announce")
    wanted = [(poller, gpu) for poller in ("asleep", "awake") for gpu in ("idle", "busy")]
    assert [(row["poller"], row["gpu"]) for row in found] == wanted
    for row in found:
        check_summaries({"": row["us"]}, TOY.announce_puts)
        assert (row["matmul_rounds"] > 0) == (row["gpu"] == "busy")


def test_the_sweeps() -> None:
    (row,) = rows("sweep")
    check_summaries(row["us"], TOY.sweep_laps)
    copies = len(TOY.sweep_tiles) * len(TOY.sweep_warps)
    assert len(row["us"]) == 1 + len(TOY.sweep_ctas) * (2 + copies)
    assert row["of_copy"]["copy"] == 1.0 and row["checked"] > 0


def test_symmetric_memory_is_skipped_with_a_reason() -> None:
    (row,) = rows("symmetric")
    assert "GPUs alone" in row["skipped"]


def test_every_benchmark_is_tested_here() -> None:
    assert set(LIMITS) == {"many", "single", "produce", "versions", "announce", "sweep", "symmetric"}


def test_the_json_says_where_and_what() -> None:
    report = done("symmetric")
    assert {"gpu", "machine", "versions", "settings", "results", "targets"} <= set(report)
    assert report["commit"] == "abc" and "the figures mean nothing" in report["gpu"]["name"]
    assert report["settings"]["objects"] == TOY.objects


def test_they_are_the_last_part_of_the_gpu_tests(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    ended = child("-m", "tests.gpu", "--device", "cpu", "--bench", "--only", "symmetric", "--json", str(file))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [result["name"] for result in report["results"]] == ["bench: symmetric"]
    assert report["device"] and report["targets"] == []


# --- errors are noticed -----------------------------------------------------------------------
WRONG = """
import torch
from nanokv.bench.gpu import paged
from nanokv.bench.gpu.objects import Objects
from nanokv.bench.gpu.one_segment import OneSegment, Unsound
segment = OneSegment(torch.device("cpu"), 128 * 4096, 4096, slots=16)
def noticed(what):
    try:
        what()
    except Unsound as error:
        print(error)
objects = Objects(segment, 2, 4096, 1)
objects.compile()
objects.target[5] ^= 1
noticed(objects.check)
objects.target[5] ^= 1
objects.twin[100] ^= 1
noticed(objects.check)
objects.twin[100] ^= 1
print(objects.check())
objects.load(0)
objects.getter.get()
objects.end_lap()
noticed(objects.check)
way = paged.heads(objects)
objects.compile(way)
way.check()
objects.source[64] ^= 1
noticed(paged.heads(objects).check)
objects.putter.put()
segment.raw[segment.geometry.offsets["dir_base"]:][:segment.geometry.dir_buckets * 64].zero_()
noticed(segment.check)
"""


def test_wrong_bytes_statuses_and_segments_are_noticed() -> None:
    ended = child("-c", WRONG)
    lines = ended.stdout.splitlines()
    assert len(lines) == 6, ended.stdout + ended.stderr
    assert "other bytes were got" in lines[0] and "other bytes were copied" in lines[1]
    assert lines[2] == "6"  # two puts, two gets, two removals
    assert "of 12 puts, gets and removals" in lines[3]
    assert "paged by heads" in lines[4]
    assert "no directory entry finds them" in lines[5]


def test_a_child_that_hangs_is_stopped() -> None:
    why = runner._ended([sys.executable, "-c", "import signal; print('on its way', flush=True); signal.pause()"], 5.0)
    assert why.startswith("stopped after 5 s")


def test_a_child_that_fails_says_why() -> None:
    why = runner._ended([sys.executable, "-c", "raise SystemExit('no such thing')"], 60.0)
    assert why.startswith("ended with 1") and "no such thing" in why
    assert runner._ended([sys.executable, "-c", "print('fine')"], 60.0) == ""


BODIES = """
import json, torch
from tests.gpu.__main__ import _in_child
cpu, one = torch.device("cpu"), "free_lists_pass_through_the_host"
print(json.dumps([_in_child("objects", one, cpu, 600), _in_child("objects", None, cpu, 2)]))
"""


def test_bodies_run_in_a_child_that_is_stopped_in_time() -> None:
    ended = child("-c", BODIES)
    assert ended.returncode == 0, ended.stderr
    (passed,), (stopped,) = json.loads(ended.stdout.splitlines()[-1])
    assert passed["ok"] and passed["name"] == "free_lists_pass_through_the_host"
    assert not stopped["ok"] and stopped["name"] == GROUPS["objects"][0].__name__
    assert "stopped after 2 s" in stopped["note"] and GROUPS["objects"][-1].__name__ in stopped["note"]


def test_the_plan_leaves_time_in_ten_minutes() -> None:
    assert sum(part.seconds for part in PARTS) <= 9.5 * 60
    assert max(LIMITS.values()) < ALL_SECONDS


def test_rows_of_a_benchmark_that_failed_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nanokv.bench.gpu import symmetric

    def broken(device: torch.device, settings: GpuSettings, keep: Any) -> None:
        keep({"size": 1})
        raise RuntimeError("broken")

    monkeypatch.setattr(symmetric, "run", broken)
    file = tmp_path / "rows"
    assert runner.run_child("symmetric", "cpu", file, is_toy=True) == 1
    assert json.loads(file.read_text()) == {"size": 1}


def test_what_would_begin_too_late_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ALL_SECONDS", 0)
    results = list(run_all("cuda", ["many", "sweep"]))
    assert [result["name"] for result in results] == ["bench: many", "bench: sweep"]
    assert all("skipped" in result["note"] and not result["ok"] for result in results)
    assert judged(results) == []


# --- arithmetic -------------------------------------------------------------------------------
def test_cycles_become_nanoseconds_by_each_ctas_own_clocks() -> None:
    rounds = 10
    clocks = np.zeros((2, rounds * 3 + 3), np.int64)
    for cta, per_ns in enumerate((2, 4)):
        clocks[cta, : rounds * 3] = np.tile([1000 * per_ns, 500 * per_ns, 250 * per_ns], rounds)
        clocks[cta, :3] = 10**9  # the first tenth does not count
        clocks[cta, rounds * 3 :] = 0, 8000 * per_ns, 8000
    us = latencies(clocks, rounds, STEPS)
    assert {name: summary["max"] for name, summary in us.items()} == {
        "begin": 1.0,
        "finish": 0.5,
        "remove": 0.25,
        "put": 1.5,
    }
    assert us["put"]["n"] == 2 * (rounds - 1)


def test_stamps_become_the_hosts_time() -> None:
    before, after = Offset(1000, 1, 0), Offset(3000, 1, 10_000)
    assert host_time(1000, before, after) == 0
    assert host_time(6000, before, after) == 5000 - 1000
    assert host_time(13_000, before, after) == 10_000
    assert host_time(500, before, before) == -500


def test_where_the_versions_meet() -> None:
    def made(*pairs: tuple[int, float, float]) -> list[dict[str, Any]]:
        return [
            {"version": version, "size": size, "us": {"put": {"p50": us}}}
            for size, one, two in pairs
            for version, us in (("v1", one), ("v2", two))
        ]

    assert meet(made((1, 5.0, 1.0), (2, 4.0, 4.0), (4, 3.0, 9.0))) == 2
    assert meet(made((1, 1.0, 5.0), (2, 4.0, 3.0))) is None
    assert meet(made((1, 1.0, 5.0), (2, 4.0, 5.0))) == 1


def test_targets_are_judged() -> None:
    def us(p50: float, p99: float = 0.0) -> dict[str, float]:
        return {"p50": p50, "p99": p99}

    found = targets(
        {
            "many": [{"objects": 256, "size": 1 << 20, "of_copy": {"put_many": 0.91, "plain_kernel": 0.5}}],
            "single": [{"size": 2 << 20, "put_minus_copy_us": 7.0}],
            "produce": [
                {"what": "clocks"},
                {"what": "put and remove", "ctas": 8, "classes": "one", "us": {"put": us(4, 13)}} | pairs(1e6),
                {"what": "extent", "ctas": 1, "classes": "one"} | pairs(1e6),
                {"what": "extent", "ctas": 132, "classes": "one"} | pairs(3e7),
                {"what": "steps of a put", "ctas": 1, "classes": "one", "us": {}} | pairs(1e9),
            ],
            "announce": [{"poller": "awake", "gpu": "busy", "us": us(99)}],
        }
    )
    assert [(target.limit, target.reached) for target in found] == [
        (0.9, True),
        (6.0, False),
        (5.0, True),
        (3.0, False),
        (20.0, False),
        (20.0, True),
        (100.0, True),
    ]
    assert targets({}) == []


def pairs(rate: float) -> dict[str, Any]:
    """The rates of a result row."""
    return {"pairs_per_s": {"p50": rate, "least": rate}}


def test_the_timer_on_a_cpu() -> None:
    timer = Timer(torch.device("cpu"))
    seen: list[int] = []
    timer.time("a", lambda: seen.append(1))
    timer.clear()
    timer.time("a", graph_of(torch.device("cpu"), lambda: seen.append(2), lambda: seen.append(3)))
    timer.time_call("b", lambda: seen.append(4))
    assert seen == [1, 2, 3, 4]
    assert {name: summary["n"] for name, summary in timer.summaries().items()} == {"a": 1, "b": 1}


# --- kernels ----------------------------------------------------------------------------------
def compiled_kernels() -> dict[str, Kernel]:
    """Every kernel of the benchmarks, in each form that is launched."""
    constants: dict[str, tuple[int, ...]] = {"what": (0, 1, 2), "tile_words": GpuSettings().sweep_tiles}
    found = {}
    for module in (kernels, clock, steps):
        for name, function in vars(module).items():
            if not name.endswith("_kernel") or function.fn.__module__ != module.__name__:
                continue
            words = {argument: "i64" for argument in function.arg_names if argument not in constants}
            chosen = [argument for argument in function.arg_names if argument in constants]
            for value in constants[chosen[0]] if chosen else (0,):
                found[f"{name} {value}"] = Kernel(function, False, words, dict.fromkeys(chosen, value))
    return found


@pytest.mark.parametrize("target", ["sm_90"])  # protocol functions are compiled for all in test_compile
def test_kernels_compile_for_nvidia(target: str) -> None:
    for name, kernel in compiled_kernels().items():
        text = assembly(kernel, target)
        atomics = re.findall(r"^\s+(?:@\S+ )?((?:atom|red)\.\S+)", text, re.M)
        assert all(".sys." in atomic for atomic in atomics), name
        if name.startswith("produce_kernel"):
            assert len(re.findall(r"%clock64;", text)) >= 6 and len(re.findall(r"%globaltimer;", text)) == 2
        if name.startswith("put_in_steps_kernel"):
            assert len(re.findall(r"%clock64;", text)) >= len(steps.NAMES) + 1
        if name.startswith("shake_hands_kernel"):
            assert re.search(r"ld\.volatile\.global", text) and not atomics
        if name.startswith("copy_flat_kernel"):
            assert re.search(r"ld\.global\.cg\S*\.v2\.b64", text), name


@pytest.mark.parametrize("target", ["gfx942"])
def test_kernels_without_clocks_compile_for_amd(target: str) -> None:
    tried = [name for name in compiled_kernels() if not name.startswith(OF_NVIDIA)]
    assert len(tried) >= 5
    for name in tried:
        assert "s_endpgm" in assembly(compiled_kernels()[name], target)

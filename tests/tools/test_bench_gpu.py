"""The GPU benchmarks in Triton's interpreter, as small as possible: they run, check the bytes, and report errors.

Nothing here looks at a duration. Their kernels are also compiled for GPUs.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.bench.gpu import clock, kernels, probe, report, steps
from nanokv.bench.gpu.announce import host_time
from nanokv.bench.gpu.children import Items
from nanokv.bench.gpu.clock import Offset
from nanokv.bench.gpu.plan import BENCHMARKS, PARTS, gpu, judged, targets
from nanokv.bench.gpu.produce import STEPS, WITH_GET, latencies
from nanokv.bench.gpu.settings import GpuSettings, toy
from nanokv.bench.gpu.timer import Timer, graph_of
from nanokv.bench.gpu.versions import meet
from nanokv.bench.suite.timing import PERCENTILES, Summary
from nanokv.device.machines.batch import CPU_CTAS
from tests.support.compiling import Kernel, assembly

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
TOY = toy()
OF_NVIDIA = (
    *("produce_kernel", "put_and_get_kernel", "put_storm_kernel", "put_stamped_kernel", "put_in_steps_kernel"),
    *("read_clocks_kernel", "shake_hands_kernel", "ordered_add_kernel", "swap_chain_kernel"),
)


def child(*arguments: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    """Run Python with TRITON_INTERPRET=1, which is read when a kernel is decorated."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@cache
def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark that ran."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        ended = child("-m", "bench.gpu", name, "--device", "cpu", "--toy", "--rows", str(file))
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
        began, *found, last = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    assert began == {"began": name} and last["name"] == name and last["ok"]
    return [each["row"] for each in found]


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
    assert moved | {"copy", "copy in a graph", "call_copy", "plain_kernel"} == set(row["us"])
    assert row["checked"] >= 3 * 2 * 3 * TOY.objects * TOY.laps  # put, got and removed, in each way, twice per lap
    for name in moved | {"plain_kernel"}:
        base = "call_copy" if name.startswith("call") else "copy"
        assert row["of_copy"][name] == pytest.approx(row["us"][base]["p50"] / row["us"][name]["p50"])


def test_one_put() -> None:
    (row,) = rows("single")
    assert row["sources"] == TOY.single_sources
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
        check_summaries(row["cold_us"], row["ctas"])
    inside = [row for row in found if row["what"] == "put and get"]
    assert [(row["size"], row["ctas"]) for row in inside] == [(size, n) for size in TOY.inside for n in TOY.step_ctas]
    for row in inside:
        assert tuple(row["us"]) == WITH_GET
        check_summaries(row["us"], row["ctas"] * row["rounds"])
        check_summaries(row["cold_us"], row["ctas"])
    fine = [row for row in found if row["what"] == "steps of a put"]
    assert [row["ctas"] for row in fine] == [*TOY.step_ctas]
    for row in fine:
        assert tuple(row["us"]) == steps.NAMES
        check_summaries(row["us"], row["ctas"] * row["rounds"])
    bare = {(row["what"], row["classes"]) for row in found if row not in (*puts, *inside, *fine)}
    assert bare == {("extent", "one"), ("extent", "many"), ("header slot", "one"), ("list", "one")}
    assert all(row["pairs_per_s"]["p50"] >= row["pairs_per_s"]["least"] > 0 for row in found)


def test_versions() -> None:
    *found, last = rows("versions")
    assert [(row["version"], row["size"]) for row in found] == [(v, n) for n in TOY.sizes for v in ("v1", "v2")]
    for row in found:
        puts = ["put", "batch_put"] if row["version"] == "v2" else ["put"]
        assert set(row["us"]) == {"copy", *puts, *(f"{call} after {put}" for call in ("get", "exists") for put in puts)}
        check_summaries(row["us"], TOY.version_rounds)
        assert row["checked"] >= TOY.version_rounds
    assert last["meet_bytes"] == {name: meet(found, name) for name in ("put", "batch_put")}
    assert "no message" in last["note"]


def test_announcements() -> None:
    *found, storm = rows("announce")
    wanted = [(poller, gpu) for poller in ("asleep", "awake") for gpu in ("idle", "busy")]
    assert [(row["poller"], row["gpu"]) for row in found] == wanted
    for row in found:
        check_summaries({"": row["us"]}, TOY.asleep_puts if row["poller"] == "asleep" else TOY.awake_puts)
        assert (row["matmul_rounds"] > 0) == (row["gpu"] == "busy")
    assert (storm["what"], storm["ctas"], storm["objects"]) == ("ingest", TOY.ingest_ctas[0], TOY.ingest_objects)
    assert storm["hints"] + storm["missed"] >= TOY.ingest_objects and storm["put_per_s"] > 0 < storm["ingest_per_s"]


def test_lookups() -> None:
    (row,) = rows("lookups")
    assert row["keys"] == TOY.lookups[0] and row["checked"] >= 3 * row["keys"] * TOY.lookup_laps
    check_summaries(row["us"], TOY.lookup_laps)
    assert row["keys_per_s"].keys() == row["us"].keys() == {"find_many", "remove_many"}


def test_two_processes() -> None:
    (row,) = rows("two_processes")
    assert row["size"] == TOY.pair_sizes[0] and set(row["us"]) == {"put", "get", "get there"}
    check_summaries(row["us"], TOY.pair_rounds)


def test_an_engines_write() -> None:
    (row,) = rows("engine_write")
    assert row["tokens"] == TOY.tokens[0] and "without vLLM's kernel" in row["note"]
    ours = {"without publishing", "publishing one layer", "first layer", "layer between", "last layer"}
    assert set(row["us"]) == ours
    check_summaries(row["us"], TOY.write_laps)


def test_the_probe() -> None:
    ceilings, *found = rows("probe")
    assert ceilings["copy_tb_per_s"] > 0 < ceilings["product_tflops"]
    assert [row["gpu"] for row in found if row["what"] == "look"] == ["idle", "busy"]
    tried = [(row["stored_bytes"], row["sem"], row["scope"]) for row in found if row["what"] == "order"]
    assert len(tried) == len({*tried}) == 8 * len(TOY.order_stores) + 2
    assert "GPUs alone" in found[-1]["skipped"]


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
    source = Path(__file__).read_text(encoding="utf-8")
    assert {*re.findall(r'= rows\("(\w+)"\)', source)} == {*BENCHMARKS}


def test_all_rows_come_into_the_page(tmp_path: Path) -> None:
    """The rows of a toy run make a page and fill the documents, in a copy."""
    results = [
        {"part": name, "name": name, "ok": True, "seconds": 1.0, "note": "", "call": 0, "rows": rows(name)}
        for name in BENCHMARKS
    ]
    made = {
        "gpu": gpu(torch.device("cpu")),
        "versions": {},
        "calls": [{"commit": None, "seconds": 1.0}],
        "results": results,
        "left": [],
        "targets": judged(results),
    }
    (tmp_path / "docs").mkdir()
    for path in report.documents(ROOT):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    changed = {path.name for path in report.write(made, [], tmp_path)}
    assert {"gpu_results.md", "gpu.json", "gpu.md", "cost.md", "benchmarks.md"} <= changed
    page = (tmp_path / "docs" / "gpu_results.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", page, re.M)[1:] == [part.name for part in PARTS if part.name in BENCHMARKS]
    for name in ("put_many paged by heads", "look for ghost", "remove_many", "get there", "copy_tb_per_s", "ingest"):
        assert name in page


# --- errors are noticed -----------------------------------------------------------------------
WRONG = """
import torch
from nanokv.bench.gpu import many
from nanokv.bench.gpu.objects import Objects
from nanokv.bench.gpu.one_segment import OneSegment, Unsound
segment = OneSegment(torch.device("cpu"), 128 * 4096, 4096, slots=16)
def noticed(what):
    try:
        what()
    except Unsound as error:
        print(error)
def lap(way, spoil=lambda: None):
    objects.load(0, way)
    way.putter.put()
    way.getter.get()
    spoil()
    objects.end_lap(way)
objects = Objects(segment, 2, 4096, 1)
way = many.contiguous(objects)
objects.compile(way)
print(objects.check())
lap(way, lambda: objects.target[5].bitwise_xor_(1))
noticed(objects.check)
objects = Objects(segment, 2, 4096, 1)
objects.copy_plainly()
objects.twin[100] ^= 1
objects.end_copy()
noticed(objects.check)
objects = Objects(segment, 2, 4096, 1)
objects.load(0)
objects.getter.get()
objects.end_lap()
noticed(objects.check)
objects = Objects(segment, 2, 4096, 1)
way = many.heads(objects)
lap(way, lambda: way.back[0, 0, 0, 0].bitwise_xor_(1))
noticed(objects.check)
objects.load(0)
objects.putter.put()
segment.raw[segment.geometry.offsets["dir_base"]:][:segment.geometry.dir_buckets * 64].zero_()
noticed(segment.check)
"""


def test_wrong_bytes_statuses_and_segments_are_noticed() -> None:
    ended = child("-c", WRONG)
    lines = ended.stdout.splitlines()
    assert len(lines) == 6, ended.stdout + ended.stderr
    assert lines[0] == "6"  # two puts, two gets, two removals
    assert "other bytes were got" in lines[1] and "in 1 laps" in lines[1]
    assert "other bytes were copied" in lines[2]
    assert "of 6 puts, gets and removals" in lines[3]
    assert "other bytes were got" in lines[4]
    assert "no directory entry finds them" in lines[5]


IMPATIENT = """
import torch
from tests.gpu.impatience import make_impatient
from nanokv.bench.gpu.one_segment import OneSegment
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request
make_impatient(8, 8)
segment = OneSegment(torch.device("cpu"), 128 * 4096, 4096, slots=16)
source = torch.arange(65536).to(torch.uint8)
batch = Batch(segment.world, 1, segment.device)
batch.fill([Request((1, 2), source.data_ptr(), len(source))])
batch.tickets[0, :2] = torch.tensor([1, -100])  # a CTA has claimed it, and neither answers nor arrives
batch.put()
print(batch.tickets[0, :3].tolist())
"""


def test_a_broken_ticket_says_so_at_once() -> None:
    """Each CTA gives up and spoils the ticket, after 8 looks. With the product's 4 million that takes hours here."""
    ended = child("-c", IMPATIENT, timeout=300)
    assert ended.stdout.strip() == f"[1, {-100 + CPU_CTAS}, 1]", ended.stdout + ended.stderr


def test_bodies_and_litmus_write_what_the_plan_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    items = ["litmus", "free_lists_pass_through_the_host"]
    found = list(Items(["tests.gpu", "--device", "cpu"], items, 600.0, tmp_path, "items").run(lambda: 1e18))
    assert [(each["name"], each["ok"]) for each in found] == [(name, True) for name in items], found
    assert len(found[0]["rows"]) == 3 and all(row["held"] for row in found[0]["rows"])


# --- arithmetic -------------------------------------------------------------------------------
def test_cycles_become_nanoseconds_by_each_ctas_own_clocks() -> None:
    rounds = 10
    clocks = np.zeros((2, rounds * 3 + 3), np.int64)
    for cta, per_ns in enumerate((2, 4)):
        clocks[cta, : rounds * 3] = np.tile([1000 * per_ns, 500 * per_ns, 250 * per_ns], rounds)
        clocks[cta, :3] = 10**9  # the first tenth does not count
        clocks[cta, rounds * 3 :] = 0, 8000 * per_ns, 8000
    us = latencies(clocks, rounds, STEPS, slice(1, None))
    assert {name: summary["max"] for name, summary in us.items()} == {
        "begin": 1.0,
        "finish": 0.5,
        "remove": 0.25,
        "put": 1.5,
    }
    assert us["put"]["n"] == 2 * (rounds - 1)
    assert latencies(clocks, rounds, STEPS, slice(0, 1))["begin"]["max"] > 1e5  # the first round by itself


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
    constants: dict[str, tuple[Any, ...]] = {"what": (0, 1, 2), "tile_words": GpuSettings().sweep_tiles}
    constants |= {"sem": ("relaxed", "acquire", "release", "acq_rel"), "scope": ("gpu", "sys"), "lines": (0, 1)}
    found = {}
    for module in (kernels, clock, steps, probe):
        for name, function in vars(module).items():
            if not name.endswith("_kernel") or function.fn.__module__ != module.__name__:
                continue
            words = {argument: "i64" for argument in function.arg_names if argument not in constants}
            chosen = [argument for argument in function.arg_names if argument in constants]
            for values in itertools.product(*(constants[argument] for argument in chosen)):
                given = dict(zip(chosen, values, strict=True))
                found[" ".join(map(str, (name, *values)))] = Kernel(function, False, words, given)
    return found


@pytest.mark.parametrize("target", ["sm_90"])  # protocol functions are compiled for all in test_compile
def test_kernels_compile_for_nvidia(target: str) -> None:
    for name, kernel in compiled_kernels().items():
        text = assembly(kernel, target)
        atomics = re.findall(r"^\s+(?:@\S+ )?((?:atom|red)\.\S+)", text, re.M)
        if name.startswith(("ordered_add_kernel", "swap_chain_kernel")):
            *_, scope = (word for word in name.split() if word in ("gpu", "sys"))
            assert atomics and all(f".{scope}." in atomic for atomic in atomics), name
            assert len(re.findall(r"%clock64;", text)) >= 2
            continue
        assert all(".sys." in atomic for atomic in atomics), name
        if name.startswith("produce_kernel"):
            assert len(re.findall(r"%clock64;", text)) >= 6 and len(re.findall(r"%globaltimer;", text)) == 2
        if name.startswith("put_and_get_kernel"):
            assert len(re.findall(r"%clock64;", text)) >= 6
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

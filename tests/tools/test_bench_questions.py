"""Questions about calls: each runs with tiny counts and yields what it promises. No test looks at a duration."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nanokv import local_world
from nanokv.bench.questions import alloc, burst, many, pages, plan, steps, throughput
from nanokv.bench.suite.checked import check_object, random_bytes
from nanokv.bench.suite.figure import Case, quantity
from nanokv.bench.suite.owner import OwnerHere
from nanokv.bench.suite.parallel import ParallelRuns, run_together
from nanokv.bench.suite.plots import plots
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.worlds import Worlds
from nanokv.cache.engine import plan_geometry
from nanokv.config import Options
from nanokv.device.segment.layout import FREE_HEAD_STRIDE, HEAP_CTL
from tests.support.bench_questions import TINY, ask, cases, check_latency, opened_worlds
from tests.support.faults import Limits


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with opened_worlds() as made:
        yield made


def test_bytes_that_differ_are_noticed() -> None:
    here, there = local_world(2, 1 << 20, page_bytes=4096)
    with here, there:
        here.put("k", random_bytes(64), preferred_segment=1)
        check_object(here, OwnerHere(there), "k", random_bytes(64))
        with pytest.raises(Mismatch, match="get of 'k' into a tensor"):
            check_object(here, OwnerHere(there), "k", random_bytes(64, seed=1))


# --- alloc --------------------------------------------------------------------------------------
def test_alloc(worlds: Worlds) -> None:
    figures = ask(alloc.QUESTION, worlds)
    assert cases(figures) == [{"what": what, "threads": n} for what in alloc.KINDS for n in (1, 2)]
    assert {(figure.unit, figure.better) for figure in figures} == {("M/s", "higher")}


@pytest.mark.parametrize("what", alloc.KINDS)
def test_what_was_lost_is_noticed(what: str) -> None:
    shared = alloc.KINDS[what]()
    assert sorted(shared.free()) == list(range(alloc.NODES))
    rate, share = alloc.time_pairs(shared, 2, 500)
    assert rate > 0 and share > 0
    if isinstance(shared, alloc.FreeList):
        shared._head[0] = 0
    else:
        first = shared._own[0] if isinstance(shared, alloc.ExtentsApart) else shared
        assert isinstance(first, alloc.Extents)
        at = HEAP_CTL.offsets["free_head0"]
        first._control[at : at + FREE_HEAD_STRIDE.value] = 0
    assert shared.free() == []
    with pytest.raises(alloc.Lost, match=r"0 of 1024|nothing was found \[10\]"):
        alloc.time_pairs(shared, 1, 10)


def test_runs_of_threads_that_took_turns_do_not_count() -> None:
    counted = ParallelRuns(2, [(1.0, 0.5), (2.0, 0.95)])
    assert not counted.over and counted.values == [2.0] and counted.note.startswith("1 of 2 runs")
    counted.runs.append((3.0, 0.99))
    assert counted.over and counted.values == [2.0, 3.0]
    busy = ParallelRuns(1, [(1.0, 0.5)] * 20)
    assert busy.over and busy.values == [1.0] * 20 and busy.note.startswith("not sound")
    assert ParallelRuns(1, [(1.0, 1.0)]).note == ""


def test_threads_begin_together_and_failures_are_told() -> None:
    met = threading.Barrier(2)
    together = run_together(2, lambda _: met.wait(30.0))
    assert together.slowest_ns > 0

    def fail(me: int) -> None:
        if me == 1:
            raise KeyError("me")

    with pytest.raises(KeyError):
        run_together(2, fail)


# --- burst --------------------------------------------------------------------------------------
def test_burst(worlds: Worlds) -> None:
    figures = ask(burst.QUESTION, worlds)
    assert cases(figures) == [
        {"operation": operation, "size": 1024, "poller": poller}
        for poller in ("same process", "other process")
        for operation in ("put", "get")
    ]
    for figure in figures:
        check_latency(figure, burst.CALLS)
    assert len(ask(burst.QUESTION, worlds, replace(TINY, heaps=("local",)))) == 2


# --- plan ---------------------------------------------------------------------------------------
def test_plan(worlds: Worlds) -> None:
    figures = ask(plan.QUESTION, worlds)
    assert cases(figures) == [{"alloc": alloc, "what": "t_plan"} for alloc in ("device", "host")]
    for figure in figures:
        check_latency(figure, TINY.rounds)
    assert plan.QUESTION.why_not(replace(TINY, heaps=("local",))) == "it needs --heap shm"


# --- throughput ---------------------------------------------------------------------------------
def test_throughput(worlds: Worlds) -> None:
    size = 64 << 10
    settings = replace(TINY, sizes=(1024, size), ring_bytes=1 << 20)
    figures = ask(throughput.QUESTION, worlds, settings)
    assert cases(figures) == [
        {"operation": operation, "size": size, "threads": threads, "system": system, "what": what}
        for threads in (1, 2)
        for operation in ("put", "get")
        for system in ("NanoKV v2", "copy_")
        for what in ("throughput", "time per MB")
    ]
    for rate, time in zip(figures[::2], figures[1::2], strict=True):
        assert (rate.unit, rate.better, time.unit, time.better) == ("GB/s", "higher", "us", "lower")
        assert rate.median() > 0 and len(rate.repetitions) == settings.repeats
        products = [a["value"] * b["value"] for a, b in zip(rate.repetitions, time.repetitions, strict=True)]
        assert products == pytest.approx([1e3] * settings.repeats)
    assert throughput.QUESTION.why_not(replace(TINY, sizes=(1024,))) == "none of --sizes is 64 KiB or more"


# --- many ---------------------------------------------------------------------------------------
def test_many(worlds: Worlds) -> None:
    figures = ask(many.QUESTION, worlds, replace(TINY, rounds=200, ring_bytes=1 << 20), many.ABOVE)
    wanted: list[Case] = []
    for keys in ("str", "digest", "Digests, rows"):
        for operation, objects in (("put_many", 256), ("get_many", 256), ("exists_many", 1000), ("remove_many", 256)):
            what = (many.EACH, many.ABOVE, many.COPY) if operation in ("put_many", "get_many") else (many.EACH,)
            case: Case = {"operation": operation, "keys": keys, "objects": objects, "size": 4096}
            wanted += [case | {"what": each} for each in what]
    assert cases(figures) == wanted
    by = {tuple(figure.case.values()): figure for figure in figures}
    for case in wanted:
        if case["what"] == many.ABOVE:
            call, above, copy = (by[(*list(case.values())[:-1], what)] for what in (many.EACH, many.ABOVE, many.COPY))
            for i in range(TINY.repeats):
                assert above.repetitions[i]["value"] == call.repetitions[i]["p50"] - copy.repetitions[i]["p50"]
                assert call.repetitions[i]["n"] == copy.repetitions[i]["n"] == 2


def test_a_call_about_many_that_fails_for_one_is_noticed() -> None:
    (cache,) = local_world(1, 16 << 20, page_bytes=4096)
    with cache, pytest.raises(Mismatch, match="answered"):
        many.check_answers(cache.exists_many(["nothing"]), True)


# --- pages --------------------------------------------------------------------------------------
def test_pages(worlds: Worlds, limits: Limits) -> None:
    limits(pages, PAGES=(64 << 10, 1 << 20), SIZES=(512 << 10, 1 << 20))
    figures = ask(pages.QUESTION, worlds, replace(TINY, ring_bytes=4 << 20))
    computed, called = figures[:-8], figures[-8:]
    assert [figure.case for figure in called] == [
        {"what": operation, "size": size, "page size": page}
        for operation in ("put", "get")
        for size in pages.SIZES
        for page in pages.PAGES
    ]
    for figure in called:
        check_latency(figure, TINY.rounds)
    assert {figure.unit for figure in computed} == {"%"} and len(computed) == 2 * (1 + 3 * len(pages.MODELS))
    small, large = (
        [figure.median() for figure in computed if figure.case["page size"] == page and "model" in figure.case]
        for page in pages.PAGES
    )
    assert all(a <= b < 100 for a, b in zip(small, large, strict=True)) and small != large


def test_blocks_of_models_and_what_rounding_loses() -> None:
    assert pages.part_bytes(pages.MODELS["Llama-3-8B"], "all layers") == 2 << 20
    assert pages.part_bytes(pages.MODELS["Llama-3-70B"], "all layers, a rank of 4") == 80 * 2 * 2 * 128 * 2 * 16
    assert pages.part_bytes(pages.MODELS["Qwen2.5-7B"], "one layer") == 32 << 10
    geometry = plan_geometry(1 << 30, 256 << 10, 2, Options())
    assert pages.lost(geometry, 896 << 10) == 12.5 and pages.lost(geometry, 2 << 20) == 0
    assert pages.lost(geometry, 9 * 256 << 10) == pytest.approx(10)  # no class of 9 pages: 10


# --- steps --------------------------------------------------------------------------------------
def test_steps(worlds: Worlds) -> None:
    figures = ask(steps.QUESTION, worlds)
    layers = (steps.STR, steps.DIGEST, steps.USUAL, steps.CODE, steps.ALONE, steps.COPY)
    assert cases(figures)[:12] == [
        {"operation": operation, "step": step, "size": 1024} for operation in ("put", "get") for step in layers
    ]
    assert {figure.case["operation"] for figure in figures[12:]} == {"both"} and len(figures) == 18
    assert all(figure.unit == "us" and figure.better == "lower" and figure.median() > 0 for figure in figures)


def test_a_loop_of_compiled_calls_that_fail_is_noticed() -> None:
    here, there = local_world(2, steps.HEAP_BYTES, page_bytes=steps.PAGE_BYTES)
    with here, there:
        alone = steps.Steps(here)
        with pytest.raises(RuntimeError, match="200 of 200 compiled calls failed"):
            alone.get_loops()[steps.ALONE]()  # nothing was put
        alone.put_loops()[steps.ALONE]()
        with pytest.raises(RuntimeError, match="200 of 200"):
            alone.put_loops()[steps.ALONE]()  # all are there
        alone.forget()
        with pytest.raises(RuntimeError, match="not stored all"):
            alone.forget()


def test_a_share_that_is_nothing_can_be_drawn() -> None:
    nothing = [quantity("pages", {"size": size}, "%", "lower", [0.0]) for size in (1024, 2048)]
    assert [plot.title for plot in plots(nothing)] == ["by size"]

"""What operations cost, counted: nothing becomes more expensive unnoticed. No clock is read."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import triton

from nanokv.bench.gpu import budget, engine_write, model
from nanokv.bench.gpu.budget import LIMITED, LIMITS, Cost
from nanokv.device import ptx
from tests.ptx.chains import CHAIN, LINKS

pytestmark = [pytest.mark.proved("docs/cost.md", "docs/gpu.md"), pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[Cost]:
    return list(budget.costs())


@pytest.mark.exhaustive
def test_no_operation_costs_more_than_its_limit(rows: list[Cost]) -> None:
    assert [row.operation for row in rows] == list(LIMITS)
    too_much = [
        f"{row.operation}: {getattr(row, name):g} {name}, not {limit:g}"
        for row in rows
        for name, limit in zip(LIMITED, LIMITS[row.operation], strict=True)
        if getattr(row, name) > limit
    ]
    assert not too_much, f"{too_much}\n{budget.table(rows)}"


@pytest.mark.exhaustive
@pytest.mark.skipif(not triton.__version__.startswith("3.9."), reason="the document has the counts of Triton 3.9")
def test_the_document_has_the_table_of_today(rows: list[Cost]) -> None:
    assert budget.table(rows) in (ROOT / "docs" / "cost.md").read_text(encoding="utf-8"), budget.table(rows)


@pytest.mark.exhaustive
@pytest.mark.skipif(not triton.__version__.startswith("3.9."), reason="the document has the counts of Triton 3.9")
def test_the_document_has_what_a_write_of_an_engine_costs_today() -> None:
    """But for the launches that begin objects: how often their CTAs look for an answer depends on addresses."""
    counted = [
        row for row in engine_write.costs() if row.launch in ("without publishing", "layer between", "last layer")
    ]
    assert len(counted) == 3
    document = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    written = {tuple(line.rsplit(maxsplit=6)) for line in document.splitlines()}
    assert {tuple(line.rsplit(maxsplit=6)) for line in engine_write.table(counted).splitlines()} <= written


def test_the_table_fits_into_a_hundred_columns() -> None:
    rows = [Cost(name, 12345.6, 100, 20, 3, 0.5, 15.25, 10, 500) for name in LIMITS]
    lines = budget.table(rows).splitlines()
    assert max(map(len, lines)) <= 100 and len({len(line) for line in lines}) == 1
    assert lines[1].split()[-8:] == ["12346", "100", "20", "3", "0.5", "15.2", "10", "500"]


# --- the model of the time --------------------------------------------------------------------
def chain_ns(bound: int, remote: tuple[int, int] | None) -> model.Span:
    """What the model says of CHAIN: LINKS loads, each at the address that the one before returned."""
    words = np.zeros(LINKS + 1, np.int64)
    words[:-1] = [words.ctypes.data + 8 * n for n in range(1, LINKS + 1)]
    here = (words.ctypes.data, words.ctypes.data + words.nbytes)
    prices = model.Prices(bound, here if remote else None)
    machine = ptx.Machine(memory=ptx.HostMemory(), count=True, price=prices)
    machine.launch(CHAIN, (1, 1, 1), [("start", words.ctypes.data)])
    chain = machine.report().counts[-1].most.chain
    assert isinstance(chain, model.Span)
    return chain


@pytest.mark.parametrize("bound", [model.LOW, model.HIGH])
def test_a_chain_of_loads_takes_as_long_as_its_loads(bound: int) -> None:
    cycle = 1 / model.ASSUMPTIONS["clock"].at(bound)
    own = chain_ns(bound, None)
    assert own.parts["load"] == pytest.approx(LINKS * model.ASSUMPTIONS["load"].at(bound) * cycle)
    assert own == pytest.approx(sum(own.parts.values())) and own < own.parts["load"] * 1.2
    peer = chain_ns(bound, (0, 1))
    assert peer - own == pytest.approx(LINKS * model.ASSUMPTIONS["link"].at(bound))


def test_spans_add_up_by_kind() -> None:
    one = model.Span(3, Counter(load=3)) + model.Span(4, Counter(alu=4))
    assert float(one) == 7 and one.parts == Counter(load=3, alu=4)
    assert float(sum([one, one], model.Span(0))) == 14 and (1 + one).parts == one.parts
    assert max([0, one, model.Span(2)]) is one


def test_what_a_gpu_measured_is_found() -> None:
    assert model.measured([{"name": "produce", "rows": [{"what": "clocks"}]}, {"name": "pins_hold"}]) == {}
    us = {name: {"p50": p50, "p99": 2 * p50} for name, p50 in (("put", 9.5), ("get", 4.0))}
    row = {"what": "put and get", "size": 0, "ctas": 1, "us": us, "cold_us": us}
    others = [row | {"ctas": 132, "us": {}}, row | {"size": 4096, "us": {}}]
    assert model.measured([{"name": "produce", "rows": [*others, row]}]) == {
        "put": {"p50": 9500.0, "p99": 19000.0, "cold": 9500.0},
        "get": {"p50": 4000.0, "p99": 8000.0, "cold": 4000.0},
    }


@pytest.mark.exhaustive
def test_the_model_gives_ranges_and_says_what_they_consist_of() -> None:
    found = {(each.operation, each.where): each for each in model.estimates()}
    assert set(found) == {(name, where) for name in ("put", "get") for where in ("own", "peer")}
    for each in found.values():
        assert 1000 < each.low < each.high and each.high == pytest.approx(sum(each.parts.values()))
        assert (each.parts["link"] > 0) == (each.where == "peer")
    for name in ("put", "get"):
        assert found[name, "own"].high < found[name, "peer"].low

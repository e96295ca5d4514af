"""What operations cost, counted: nothing becomes more expensive unnoticed. No clock is read."""

import re
import struct
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import triton

from nanokv.bench.gpu import budget, engine_write, model
from nanokv.bench.gpu.budget import LIMITED, LIMITS, Cost
from nanokv.device import ptx
from tests.ptx.chains import CHAIN, LINKS
from tests.support.compiling import Kernel, compiled, kernels

pytestmark = [pytest.mark.proved("docs/cost.md", "docs/gpu.md"), pytest.mark.timeout(600)]
CODE_BYTES = 64 << 10  #: about what the instruction cache of a multiprocessor holds
SYMBOLS, FUNCTION = 2, 2  #: SHT_SYMTAB and STT_FUNC of ELF
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
def test_what_an_operation_usually_does_is_in_line() -> None:
    """The code of a put's way fits an instruction cache: what is rare is out of line, and behind it."""
    with ptx.machine(memory=ptx.HostMemory(), count=True) as machine:
        counted = budget.MeteredSegment(machine)
        counted.fill_lists()
        one = counted.new_keys(1)
        for do in (counted.single.put, counted.single.get, counted.single.find):
            assert counted.done(counted.single, one, do).most.calls == 0, do
    for name in ("put_many_kernel", "get_many_kernel", "find_many_kernel", "remove_many_kernel"):
        in_line, whole = code_bytes(kernels()[name])
        assert 0 < in_line <= min(CODE_BYTES, whole), (name, in_line, whole)
        if name == "put_many_kernel" and triton.__version__.startswith("3.9."):
            said = f"{in_line:,} bytes in line, {whole:,} in all"
            assert said in (ROOT / "docs" / "cost.md").read_text(encoding="utf-8"), said


def code_bytes(kernel: Kernel) -> tuple[int, int]:
    """Of a kernel for sm_90: the bytes of its code before the first function that is out of line, and all."""
    cubin = compiled(kernel, "sm_90", 1).asm["cubin"]
    sections = struct.unpack_from("<Q", cubin, 0x28)[0]  # of an ELF file of 64 bits
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    rows = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections + number * size) for number in range(count)]
    (table,) = (row for row in rows if row[1] == SYMBOLS)
    places = range(table[4], table[4] + table[5], table[9])
    symbols = [struct.unpack_from("<IBBHQQ", cubin, place) for place in places]
    functions = [(section, value) for _, info, _, section, value, _ in symbols if info & 15 == FUNCTION]
    (code,) = {section for section, _ in functions}
    whole = int(rows[code][5])
    return min([value for _, value in functions if value], default=whole), whole


@pytest.mark.exhaustive
@pytest.mark.skipif(not triton.__version__.startswith("3.9."), reason="the document has the counts of Triton 3.9")
def test_the_document_has_the_table_of_today(
    rows: list[Cost], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command prints."""
    monkeypatch.setattr(sys, "argv", ["budget"])
    budget.main()
    printed = capsys.readouterr().out
    assert printed == f"{budget.table(rows)}\n", "it counts other costs the second time"
    assert printed in (ROOT / "docs" / "cost.md").read_text(encoding="utf-8"), printed


@pytest.mark.exhaustive
@pytest.mark.skipif(not triton.__version__.startswith("3.9."), reason="the document has the counts of Triton 3.9")
def test_the_document_has_what_a_write_of_an_engine_costs_today(capsys: pytest.CaptureFixture[str]) -> None:
    """But for the launches that begin objects: how often their CTAs look for an answer depends on addresses."""
    engine_write.main()
    cells = {tuple(line.rsplit(maxsplit=6)) for line in capsys.readouterr().out.splitlines()}
    counted = {row for row in cells if row[0] in ("per token", "without publishing", "layer between", "last layer")}
    assert len(counted) == 4 and len(cells) == 6
    document = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert counted <= {tuple(line.rsplit(maxsplit=6)) for line in document.splitlines()}


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


@pytest.mark.exhaustive
def test_the_command_prints_the_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["model"])
    model.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum(bool(re.match(r"  (put|get) (own|peer) +[\d.]+ to [\d.]+ us$", line)) for line in lines) == 4
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in model.ASSUMPTIONS)
    shares = [line.split()[-1] for line in lines if re.match(r"  \d+ [KM]iB +(own|peer) ", line)]
    assert len(shares) == 10 and all(0 < int(share.rstrip("%")) <= 100 for share in shares)

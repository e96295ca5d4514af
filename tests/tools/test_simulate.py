"""The simulation: against the theory of queues, against capacities worked out by hand, and at its edges."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanokv.bench.simulate import queues as queues_module
from nanokv.bench.simulate.__main__ import main
from nanokv.bench.simulate.assumptions import Assumptions, all_fields, changed
from nanokv.bench.simulate.cases import MASTER, Case, Steps, drawn, run
from nanokv.bench.simulate.questions import Effort, RowAnswer, SimulatedWorld, answer
from nanokv.bench.simulate.queues import Collapsed, Gate, Operation, Queues, Station
from nanokv.bench.simulate.tables import number
from tests.support.faults import Limits

pytestmark = pytest.mark.proved("docs/scale.md")

GIVEN = Assumptions()
SERVER: Station = ("server", 0, 0)
FREE = [f"{each.name}=0" for each in all_fields() if each.metadata["least"] == 0 and each.name != "master_us"]


def waits_of(arrivals: Sequence[float], services: Sequence[float], queues: Queues | None = None) -> Any:
    """What each operation waits at one server before it is served."""

    def visit(i: int) -> Operation:
        yield 0, SERVER, services[i], 0

    ends = (queues or Queues()).run(arrivals, visit, Gate([], None))
    return np.array(ends) - np.array(arrivals) - np.array(services)


def saturation(case: Case, *settings: str, operations: int = 1500) -> RowAnswer:
    (found,) = answer([SimulatedWorld("", case, settings)], GIVEN, Effort(operations))
    return found


# --- against theory ---------------------------------------------------------------------------
@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_the_mean_wait_of_an_md1_queue_is_that_of_pollaczek_and_khinchine(load: float) -> None:
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / load, 60_000)).tolist()
    wait = waits_of(arrivals, [1.0] * len(arrivals)).mean()
    assert wait == pytest.approx(load / (2 * (1 - load)), rel=0.06)


def test_the_mean_wait_of_an_mm1_queue_is_the_known_one() -> None:
    rng, load = np.random.default_rng(7), 0.7
    arrivals = np.cumsum(rng.exponential(1 / load, 100_000)).tolist()
    wait = waits_of(arrivals, rng.exponential(1.0, 100_000).tolist()).mean()
    assert wait == pytest.approx(load / (1 - load), rel=0.06)


def test_a_station_serves_in_the_order_of_arrival_and_loses_nothing() -> None:
    queues, rng = Queues(), np.random.default_rng(1)
    arrivals, services = np.cumsum(rng.random(1000)).tolist(), rng.random(1000).tolist()
    waits = waits_of(arrivals, services, queues)
    free = 0.0
    for arrival, service, wait in zip(arrivals, services, waits, strict=True):
        assert wait == pytest.approx(max(free - arrival, 0), abs=1e-6)
        free = max(free, arrival) + service
    assert queues.busy[SERVER] == pytest.approx(sum(services)) and queues.visits[SERVER] == 1000


def test_a_rank_has_so_many_operations_in_flight_and_no_more() -> None:
    def pause(_: int) -> Operation:
        yield 10, None, 0, 0

    assert Queues().run([0, 0, 0, 1], pause, Gate([0, 0, 0, 0], 2)) == [10, 10, 20, 20]
    assert Queues().run([0, 0, 0, 1], pause, Gate([0, 0, 1, 1], 1)) == [10, 20, 10, 20]
    assert Queues().run([0, 0, 0, 1], pause, Gate([0, 0, 0, 0], None)) == [10, 10, 10, 11]


@pytest.mark.parametrize("case", [Case(), Case(do="get"), Case("v1"), Case("v1", "get"), Case(owners=1, magazine=4)])
def test_every_arrival_ends_and_none_before_what_it_takes_alone(case: Case) -> None:
    idle, busy = (run(case, GIVEN, load, 2000, 1) for load in (1, 2000))
    least = 2 * GIVEN.master_us if case.design == "v1" and case.do == "put" else 0
    assert least < idle.p50 <= idle.p99 <= idle.p999 < 2000
    assert busy.p50 >= idle.p50 * 0.99 and busy.p999 < np.inf


# --- the steps ----------------------------------------------------------------------------------
def test_an_idle_put_and_get_take_the_waits_that_were_counted() -> None:
    """With one rank a node every access of another rank's memory crosses the NIC."""
    far = changed(GIVEN, ["node=1", "nic_message_ns=0", "nic_word_ns=0"])
    operations = (Steps(far).put(0, 1, 2, 0, 5_000_000), Steps(far).get(0, 1, 2, 0, 5_000_000))
    for operation, waits, work in zip(operations, (18, 12), (far.put_work_us, far.get_work_us), strict=True):
        (end,) = Queues().run([0.0], [operation].__getitem__, Gate([0], None))
        payload = 5_000_000 / (far.nic_gbps * 1e3) + far.nic_us / 2  # its own way: a store is not waited for
        assert end == pytest.approx(waits * far.nic_us + work + payload)


def test_swaps_that_meet_at_one_list_succeed_one_at_a_time() -> None:
    """Eight producers in step: in each round one of them succeeds, and the others try again."""
    queues, steps = Queues(), Steps(changed(GIVEN, ["word_ns=0"]))
    queues.run([0.0] * 8, lambda _: steps.put(1, 0, 0, 5, 100), Gate([1] * 8, None))
    assert queues.visits["slots", 0, 5] == 8 + 8 + sum(range(8))  # looks, swaps that won, swaps that lost
    assert steps.lost >= sum(range(8))
    assert queues.visits["ticket", 0, 0] == 8 and queues.visits["activity", 0, 1] == 16


def test_a_magazine_asks_a_list_once_for_many_puts() -> None:
    for magazine, chained in ((1, False), (4, False), (4, True)):
        queues, steps = Queues(), Steps(GIVEN, magazine, chained)
        puts = [steps.put(1, 0, 0, 5, 100) for _ in range(40)]
        queues.run([1e3 * i for i in range(40)], puts.__getitem__, Gate([1] * 40, None))
        assert queues.visits["slots", 0, 5] == queues.visits["extents", 0, 5] == 2 * 40 // magazine
        assert steps.lost == 0


def test_a_reader_takes_its_own_copy_then_one_of_its_node_then_the_next() -> None:
    given = changed(GIVEN, ["keys=1"])
    owners = {
        copies: drawn(Case(do="get", ranks=32, copies=copies, spread=1), given, 500, 3) for copies in (1, 4, 32, 0)
    }
    (owner,) = set(owners[1].owner.tolist())
    for here, at in zip(owners[4].here.tolist(), owners[4].owner.tolist(), strict=True):
        assert at // 8 == here // 8 and (at - owner) % 8 == 0
    assert (owners[0].owner == owners[0].here).all() and (owners[32].owner == owners[32].here).all()
    beside = drawn(Case(do="get", ranks=32, copies=2), given, 500, 3)
    assert set(beside.owner.tolist()) == {owner, (owner + 1) % 32}
    far = [at for here, at in zip(beside.here, beside.owner, strict=True) if here // 8 not in {owner // 8}]
    assert far.count(owner) == len(far) - sum(at == here for at, here in zip(far, far, strict=True) if at != owner)


def test_zipf_makes_the_first_key_the_hottest() -> None:
    counts = np.bincount(drawn(Case(do="get"), GIVEN, 100_000, 1).key)
    share = 1 / (np.arange(1, GIVEN.keys + 1) ** -GIVEN.zipf).sum()
    assert counts[0] / 100_000 == pytest.approx(share, rel=0.05) and counts.argmax() == 0


# --- loads --------------------------------------------------------------------------------------
def test_p99_grows_with_the_load() -> None:
    for case, top in ((Case(owners=1, nbytes=2 << 20), 24e3), (Case("v1"), 1.5e3), (Case(ranks=8, owners=1), 30e6)):
        p99 = [run(case, GIVEN, share * top, 3000, 1).p99 for share in (0.01, 0.6, 1.0)]
        assert p99 == sorted(p99) and p99[-1] > 1.5 * p99[0], p99


def test_one_owner_saturates_where_its_port_is_full() -> None:
    found = saturation(Case(ranks=8, nbytes=2 << 20, owners=1))
    by_hand = GIVEN.nvlink_gbps * 1e9 / (2 << 20) * 8 / 7  # one in eight puts is the owner's own
    assert found.saturates == pytest.approx(by_hand, rel=0.1) and found.last.busiest == "NVLink in"


def test_one_owner_saturates_where_its_ticket_is_taken_all_the_time() -> None:
    found = saturation(Case(ranks=64, nbytes=0, owners=1), "node=1", "lists=4096")
    assert found.saturates == pytest.approx(1e9 / GIVEN.nic_word_ns * 64 / 63, rel=0.1)
    assert found.last.busiest == "ticket"


@pytest.mark.parametrize("ranks", [8, 1024])
def test_the_master_saturates_at_the_same_load_for_any_number_of_ranks(ranks: int) -> None:
    found = saturation(Case("v1", ranks=ranks), "limit=100")
    assert found.saturates == pytest.approx(1e6 / (2 * GIVEN.master_us), rel=0.1)
    assert found.last.busiest == MASTER[0] and not found.at_least


def test_owners_share_the_load() -> None:
    one, four = (saturation(Case(ranks=64, nbytes=2 << 20, owners=owners)).saturates for owners in (1, 4))
    assert four == pytest.approx(4 * one, rel=0.15)


def test_swaps_that_always_lose_have_no_end(limits: Limits) -> None:
    limits(queues_module, MOST_STEPS=40)
    outcome = run(Case(ranks=8, owners=1), changed(GIVEN, ["lists=1"]), 1e8, 500, 1)
    assert outcome.p99 == np.inf and outcome.overload and outcome.lost > 1 and number(outcome.p99) == "no end"
    with pytest.raises(Collapsed):
        Queues().run([0.0] * 100, lambda _: iter_of(1e6), Gate([], None), late=10.0)


def iter_of(us: float) -> Operation:
    yield us, None, 0, 0


# --- extremes -----------------------------------------------------------------------------------
EXTREMES = (
    (Case(ranks=1), ()),
    (Case(ranks=1, do="get", copies=0), ()),
    (Case(ranks=3, owners=3, nbytes=0), ("node=2",)),
    (Case(do="get"), ("keys=1", "zipf=0", "copied_keys=0")),
    (Case(do="get", copies=64, spread=1), ("zipf=20",)),
    (Case(ranks=8, owners=1, magazine=1000), ("ctas=1", "lists=1")),
    (Case(ranks=1024, owners=1, nbytes=1 << 40), ("nic_gbps=0.001",)),
    (Case(), FREE),
    (Case(ranks=1, nbytes=0), [*FREE, "ctas=1"]),
)


@pytest.mark.parametrize(("case", "settings"), EXTREMES)
def test_the_extremes_have_an_answer(case: Case, settings: Sequence[str]) -> None:
    found = saturation(case, *settings, operations=200)
    assert 0 <= found.idle.p50 < np.inf and found.saturates > 0
    assert all(each.p50 <= each.p99 <= each.p999 for each in found.curve)


# --- the command --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no question nothing"),
        (["--ranks", "8,x"], "--ranks are numbers"),
        (["--ranks", "0"], "--ranks must be positive"),
        (["--operations", "1"], "--operations at least 100"),
        (["--set", "speed=1"], "is not NAME=VALUE"),
        (["--set", "node"], "is not NAME=VALUE"),
        (["--set", "node=0"], "node must be at least 1"),
        (["--set", "node=1.5"], "node must be of type int"),
        (["--set", "nic_us=nan"], "nic_us must be at least 0 and finite"),
        (["--set", "nic_us=inf"], "nic_us must be at least 0 and finite"),
        (["--case", "design=v3"], "design is v1 or v2"),
        (["--case", "owners=9", "--ranks", "64,8"], "owners and copies must be 0 to 8"),
        (["--case", "nbytes=-1"], "no negative nbytes"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2 and says in capsys.readouterr().err


def test_a_run_needs_a_load() -> None:
    for load, count in ((0, 10), (-1, 10), (10, 0)):
        with pytest.raises(ValueError, match="positive load and count"):
            run(Case(), GIVEN, load, count, 1)


def test_every_assumption_is_printed_and_has_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sharding", "--ranks", "8", "--operations", "100"]) == 0
    out = capsys.readouterr().out
    assert "A model, not a measurement" in out and max(map(len, out.splitlines())) <= 80
    for each in all_fields():
        assert f" {each.name} " in out and each.metadata["source"]
    assert "sharding" in out and "8 owners" in out


TWO = ["hot-owner", "replicas"]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    pytest.importorskip("matplotlib")
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    for folder in folders:
        assert (
            main([*TWO, "--ranks", "4", "--operations", "100", "--json", f"{folder}/x.json", "--plots", str(folder)])
            == 0
        )
    yield folders


def test_a_run_again_gives_the_same_files(twice: tuple[Path, Path]) -> None:
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in twice)
    assert first == second
    assert set(first) == {"x.json", *(f"scale-{name}.svg" for name in TWO)}
    for name, content in first.items():
        assert name == "x.json" or (b"<svg" in content and b"<dc:date>" not in content)


def test_the_json_has_every_run(twice: tuple[Path, Path]) -> None:
    done = json.loads((twice[0] / "x.json").read_text(encoding="utf-8"))
    assert done["assumptions"]["node"] == GIVEN.node and done["operations"] == 100
    assert [each["question"] for each in done["answers"]] == TWO
    for each in done["answers"]:
        for row in each["rows"]:
            loads = [one["load"] for one in row["curve"]]
            assert loads == sorted(loads) and len(loads) > 3 and len(row["common"]) == 2
            assert row["saturates"] in loads and row["row"]["case"]["ranks"] == 4


def test_a_setting_of_the_command_changes_the_answer(tmp_path: Path) -> None:
    found = []
    for extra in ([], ["--set", "master_us=30"], ["--case", "do=get"]):
        assert main(["master", "--ranks", "8", "--operations", "200", "--json", f"{tmp_path}/x.json", *extra]) == 0
        done = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
        found.append(done["answers"][0]["rows"][0]["saturates"])
    assert found[1] > 5 * found[0] and found[2] > 1.5 * found[0]


def test_a_case_is_checked_where_it_is_used() -> None:
    with pytest.raises(ValueError, match="magazine of at least 1"):
        saturation(replace(Case(), magazine=0))


def test_the_document_has_the_assumptions_of_today() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    for each in all_fields():
        value = f"{getattr(GIVEN, each.name):g} {each.metadata['unit']}".strip()
        assert f"| `{each.name}` | {value} | {each.metadata['source']} |" in text, each.name

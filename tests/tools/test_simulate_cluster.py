"""The simulation of clusters: against measured figures, figures by hand, and what rendezvous hashing promises."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanokv.bench.simulate.assumptions import changed
from nanokv.bench.simulate.cluster import costs, hot, lookups, traffic
from nanokv.bench.simulate.cluster.__main__ import main
from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.bench.simulate.cluster.calls import LAST_ROUNDS, ROWS, Calls
from nanokv.bench.simulate.cluster.homes import homes_of, joined, left, names, random_keys
from nanokv.bench.simulate.cluster.lookups import IDLE, Case, answer, run
from nanokv.bench.simulate.cluster.networks import NETWORKS, network
from nanokv.bench.simulate.queues import Gate, Operation, Queues
from nanokv.bench.simulate.tables import number
from nanokv.cluster.homes import Homes
from nanokv.cluster.nodes import LAST_JOINS, Nodes
from nanokv.host_poller.poller import WOKEN

GIVEN = ClusterAssumptions()
STEADY = replace(GIVEN, spread=0.0, hash_ns=0.0)
KEYS = random_keys(40_000, 5)
BATCH = Case("", keys=256)


def alone(operation: Operation, queues: Queues | None = None) -> float:
    (end,) = (queues or Queues()).run([0.0], lambda _: operation, Gate([], None))
    return end


# --- homes ------------------------------------------------------------------------------------
@pytest.mark.parametrize("nodes", [8, 64, 256])
def test_a_join_moves_the_part_of_the_new_node_and_a_leave_that_of_the_old_one(nodes: int) -> None:
    assert joined(nodes, 1, KEYS).moved == pytest.approx(1 / (nodes + 1), rel=0.15)
    assert left(nodes, KEYS).moved == left(nodes, KEYS).not_found == pytest.approx(1 / nodes, rel=0.15)


def test_keys_move_only_to_nodes_that_joined() -> None:
    before, after = homes_of(16, KEYS), homes_of(19, KEYS)
    assert set(after[before != after].tolist()) == {16, 17, 18}


def test_joins_lose_nothing_up_to_the_last_that_are_thought_away_and_then_they_do() -> None:
    found = [joined(8, joins, KEYS) for joins in range(1, LAST_JOINS + 5)]
    assert [each.not_found for each in found[:LAST_JOINS]] == [0] * LAST_JOINS
    for joins, each in enumerate(found[LAST_JOINS:], LAST_JOINS + 1):  # the homes among the oldest nodes asked
        assert each.not_found == pytest.approx((joins - LAST_JOINS) / (8 + joins - LAST_JOINS), rel=0.1)
    assert all(1 < each.asked <= each.most <= LAST_JOINS + 1 for each in found)
    moved = [each.moved for each in found]
    assert moved == sorted(moved)


def test_the_nodes_that_are_asked_are_those_of_a_cluster() -> None:
    no_link: Any = None
    nodes = Nodes("node-0", no_link, b"", 0, True)
    asked: set[int] = set()
    for i in range(1, 12):
        asked.add(len(nodes.homes))
        others = {name: _Named(name, k) for k, name in enumerate(names(i + 1)) if k}
        nodes._nodes = others  # type: ignore[assignment]
        nodes.homes = nodes._homes()
    assert max(asked) == LAST_JOINS + 1
    expected = [Homes(names(12 - out)).of_each(KEYS) for out in range(LAST_JOINS + 1)]
    assert all((one.of_each(KEYS) == two).all() for one, two in zip(nodes.homes, expected, strict=True))


class _Named:
    def __init__(self, name: str, joined: int) -> None:
        self.name, self.joined = name, joined


# --- single calls -----------------------------------------------------------------------------
def test_gets_take_what_was_measured() -> None:
    """Over TCP the model is made of the round over TCP and the get over shared memory; 183 µs were measured."""
    memory, tcp = (network(replace(STEADY, wire_us=0.0), name) for name in ("shared memory", "TCP"))
    times = [alone(Calls(STEADY, net, 2, 1).get(0, 1, 1024, 4)) for net in (memory, tcp)]
    assert times[0] == pytest.approx(25, abs=0.2) and times[1] == pytest.approx(183, rel=0.05)


def test_a_location_saves_two_rounds() -> None:
    for name in NETWORKS:
        net = network(STEADY, name)
        four, two = (alone(Calls(STEADY, net, 64, 1).get(0, 1, 1024, rounds)) for rounds in (4, LAST_ROUNDS))
        assert four - two == pytest.approx(2 * net.round)


def test_a_put_takes_its_messages_and_the_pull() -> None:
    net = network(STEADY, "TCP")
    taken = alone(Calls(STEADY, net, 64, 1).put(0, 1, 1, 0))
    assert taken == pytest.approx(STEADY.put_us + 2 * (net.round - STEADY.sm_round_us))


@pytest.mark.parametrize("rounds", [4, LAST_ROUNDS])
def test_a_pass_does_all_the_work_of_its_keys(rounds: int) -> None:
    net, queues = network(STEADY, "TCP"), Queues()
    alone(Calls(STEADY, net, 64, 1).pass_of(0, 1, 256, 1024, rounds), queues)
    rows = 255 * sum(ROWS[4 - rounds :])
    assert queues.busy["answers", 1, 0] == pytest.approx(rounds * net.answer + rows * net.row)
    assert queues.busy["process", 0, 0] == pytest.approx(STEADY.pass_us + 256 * STEADY.key_us)
    assert queues.busy["out", 1, 0] == queues.busy["in", 0, 0] == pytest.approx(256 * 1024 * net.per_byte)


# --- many calls -------------------------------------------------------------------------------
@pytest.mark.parametrize("do", ["get", "put"])
def test_a_batch_grows_with_the_nodes_and_a_chain_does_not(do: str) -> None:
    cases = [changed(replace(BATCH, nodes=nodes), [f"do={do}"]) for nodes in (4, 16, 64)]
    spread, chain = ([run(replace(case, chain=on), STEADY, IDLE, 120, 1) for case in cases] for on in (False, True))
    p50 = [each.p50 for each in spread]
    assert p50 == sorted(p50) and p50[-1] > 4 * p50[0]
    assert chain[-1].p50 == pytest.approx(chain[0].p50, rel=0.05) and chain[-1].p50 < p50[-1] / 2
    nodes = 64
    others = (nodes - 1) * (1 - (1 - 1 / nodes) ** 256)
    assert spread[-1].asked == pytest.approx(others, rel=0.03) and chain[-1].asked < 1


def test_asking_all_nodes_at_once_saves_the_ways_and_not_the_work() -> None:
    turns, at_once = (run(replace(BATCH, threads=threads), GIVEN, IDLE, 100, 1) for threads in (1, 64))
    assert at_once.p99 < turns.p50 and at_once.p50 > 60 * GIVEN.pass_us
    assert at_once.most == pytest.approx(turns.most) and at_once.asked == turns.asked


@pytest.mark.parametrize("net", NETWORKS)
@pytest.mark.parametrize("case", [Case(""), Case("", rounds=2), Case("", do="put"), replace(BATCH, chain=True)])
def test_load_makes_calls_longer_and_p99_is_not_below_p50(case: Case, net: str) -> None:
    found = answer(replace(case, net=net, nodes=8), GIVEN, 1500, 1)
    assert found.idle.p50 <= found.idle.p99 and found.loaded.p50 < found.loaded.p99
    assert found.loaded.p50 > found.idle.p50 and found.loaded.p99 > found.idle.p99
    assert found.loaded.most == pytest.approx(found.idle.most, rel=0.05), "load changes what waits, not what is done"
    more = run(replace(case, net=net, nodes=8), GIVEN, 0.9 * found.capacity, 1500, 1)
    assert more.p99 > found.loaded.p99


def test_a_get_of_one_key_does_not_grow_with_the_nodes() -> None:
    few, many = (run(Case("", nodes=nodes), STEADY, IDLE, 1000, 1) for nodes in (8, 256))
    assert few.p50 == pytest.approx(many.p50, rel=0.01)


def test_a_run_needs_a_load() -> None:
    for load, count in ((0, 10), (-1, 10), (10, 0)):
        with pytest.raises(ValueError, match="positive load and count"):
            run(Case(""), GIVEN, load, count, 1)
    assert lookups.STEPS >= 10


# --- traffic ----------------------------------------------------------------------------------
def test_events_of_each_node_grow_with_the_nodes_and_those_of_all_with_their_square() -> None:
    few, many = (traffic.feed(GIVEN, nodes, 100) for nodes in (65, 1025))
    assert many.nbytes == pytest.approx(16 * few.nbytes) and many.messages == pytest.approx(16 * few.messages)
    assert many.cores == pytest.approx(16 * few.cores, rel=0.01) and few.sent == many.sent


def test_batches_hold_what_comes_during_a_pause() -> None:
    assert pytest.approx(WOKEN.pause * 1e3) == GIVEN.pause_ms
    assert traffic.batches(GIVEN, 1) == pytest.approx(1, rel=0.001)
    assert traffic.batches(GIVEN, 1e7) == pytest.approx(1e3 / GIVEN.pause_ms)
    rates = [traffic.batches(GIVEN, puts) for puts in (1, 10, 1e3, 1e5)]
    assert rates == sorted(rates)


def test_the_most_puts_fill_one_core() -> None:
    for nodes in (64, 1024):
        assert traffic.feed(GIVEN, nodes, traffic.most_puts(GIVEN, nodes)).cores == pytest.approx(1)
    assert traffic.most_puts(GIVEN, 1 << 20) == 0 and traffic.most_puts(GIVEN, 2) == traffic.MOST_PUTS


def test_a_join_costs_each_member_all_cards_and_the_registry_two_for_each() -> None:
    found = traffic.watch(GIVEN, 100)
    assert found.change_us == 100 * GIVEN.card_us and found.change_bytes == 200 * GIVEN.card_bytes
    assert found.start_s == pytest.approx(5050 * GIVEN.card_us / 1e6)
    assert found.renewals == 100 and found.scan_bytes == 99 * GIVEN.objects * 64


def test_the_costs_can_be_measured() -> None:
    assert costs.learning(1000) > 0 and costs.opening(20) > 0 and costs.feed(1, costs.BURST) > 0


# --- a hot key --------------------------------------------------------------------------------
def test_one_owner_sends_what_its_port_can_and_copies_help_only_those_who_have_them() -> None:
    one, half, each = (hot.capacity(GIVEN, "RDMA", 64, copies) for copies in (1, 32, 64))
    assert one == pytest.approx(GIVEN.rdma_gbps * 1e9 / GIVEN.hot_bytes * 64 / 63)
    assert half == pytest.approx(one * 63 / 32) and each > 10 * half


def test_a_hot_key_waits_as_theory_says() -> None:
    """An M/D/1 queue at the owner's port: Pollaczek and Khinchine."""
    for load in (0.5, 0.8):
        capacity = hot.capacity(STEADY, "TCP", 64, 1)
        found = hot.reads(STEADY, "TCP", 64, 1, load * capacity, 40_000, 1)
        service = STEADY.hot_bytes * network(STEADY, "TCP").per_byte
        assert found.waiting * 64 / 63 == pytest.approx(service * load / (2 * (1 - load)), rel=0.12)
        assert found.p50 <= found.p99
    copies = [hot.reads(GIVEN, "TCP", 64, copies, 0.8 * capacity, 4000, 1) for copies in (1, 32, 64)]
    assert copies[0].waiting > copies[1].waiting > copies[2].waiting


def test_a_herd_waits_for_one_port_and_locations_spread_it() -> None:
    takes = GIVEN.hot_bytes * network(GIVEN, "TCP").per_byte / 1e3
    herd = hot.brought(GIVEN, "TCP", 64, 0, True, 1)
    assert herd.last == pytest.approx(63 * takes, rel=0.02) and herd.most == 63
    one, told = (hot.brought(GIVEN, "TCP", 1024, 200, told, 1) for told in (False, True))
    assert one.most == 1023 and one.last >= 1023 * takes
    assert told.most < 50 and told.p99 < one.p99 / 5 and told.p50 <= told.p99


# --- the command ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no question nothing"),
        (["--nodes", "8,x"], "--nodes are numbers"),
        (["--nodes", "1"], "--nodes must be at least 2"),
        (["--operations", "1"], "--operations at least 100"),
        (["--set", "speed=1"], "is not NAME=VALUE"),
        (["--set", "tcp_gbps=0"], "tcp_gbps must be at least"),
        (["--set", "tcp_answer_us=100"], "the owner's part of it more"),
        (["--set", "use=2"], "are shares"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2 and says in capsys.readouterr().err


def test_every_question_has_finite_answers_and_the_same_ones_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        assert main(["--nodes", "2,8", "--operations", "100", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert files[0].read_bytes() == files[1].read_bytes() and max(map(len, out.splitlines())) <= 100
    done = json.loads(files[0].read_text(encoding="utf-8"))
    assert done["assumptions"]["tcp_round_us"] == GIVEN.tcp_round_us and len(done["answers"]) == 12
    cells = [cell for each in done["answers"] for row in each["rows"] for cell in row.values()]
    assert all(isinstance(cell, str) or (math.isfinite(cell) and cell >= 0) for cell in cells)
    assert all(f" {each.name} " in out for each in fields(ClusterAssumptions))


def test_numbers_have_three_digits() -> None:
    assert [number(each) for each in (0.1234, 999.4, 999.6, 12345, 2.63e12)] == ["0.123", "999", "1k", "12.3k", "2.63T"]


def test_without_any_costs_there_is_an_answer() -> None:
    free = [f"{each.name}=0" for each in fields(GIVEN) if each.metadata["least"] == 0]
    nothing = changed(GIVEN, free)
    found = answer(replace(BATCH, nodes=4), nothing, 100, 1)
    assert np.isfinite([found.capacity, found.loaded.p99]).all()


def test_the_document_has_the_assumptions_of_today() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    for each in fields(GIVEN):
        value = f"{getattr(GIVEN, each.name):g} {each.metadata['unit']}".strip()
        assert f"| `{each.name}` | {value} | {each.metadata['source']} |" in text, each.name

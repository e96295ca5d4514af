"""A call has one time for all that do not answer: however many processes a node has, and however many nodes hang."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from nanokv.cluster import NanoKVCluster, at_once, nodes, reading
from nanokv.cluster.patience import MORE, Patience
from nanokv.errors import PeerLost
from tests.support.faults import Clock, Limits

from .conftest import MakeCluster
from .network import Network

TIMEOUT = 0.3
RANKS = 16
SLACK = 0.5  #: seconds, of a machine that is busy


def test_one_time_for_all_tries(clock: Clock) -> None:
    clock.stands()
    first, patience, tries = clock.now, Patience(1.0), []
    with pytest.raises(PeerLost, match="node n was not asked: others had not answered within 1 s"):
        while True:
            tries.append(patience.left("n"))
            begun = clock.now
            clock.passes(tries[-1])
            patience.waited(begun)
    assert tries == pytest.approx([1.0, 0.1, 0.1, 0.1], abs=1e-3) and clock.now - first <= 1.0 + MORE + 1e-6


def test_what_answers_leaves_the_time_as_it_is() -> None:
    patience = Patience(1.0)
    patience.waited(time.monotonic() - 0.25)
    assert patience.left("n") == pytest.approx(0.75, abs=0.1)


def test_threads_wait_at_the_same_time() -> None:
    patience = Patience(1.0)

    def late(_: int) -> float:
        threading.Event().wait(0.01)
        left = patience.left("n")
        patience.waited(time.monotonic() - 0.6)
        return left

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(late, range(4))) == 1.0
    patience.meet()
    assert patience.left("n") <= 0.4


CALLS: list[Callable[[NanoKVCluster], Any]] = [
    lambda one: one.get("known"),
    lambda one: one.exists("known"),
    lambda one: one.get_many(["known", "a", "b", "c"]),
    lambda one: one.exists_many(["known", "a", "b", "c"]),
    lambda one: one.prefix_length(["known"] * 200),
    lambda one: one.bring(["known"]),
    lambda one: one.wait("known", timeout=0.01),
]


@pytest.mark.parametrize("link", ["wire", "nixl"])
@pytest.mark.parametrize("call", CALLS)
def test_a_node_of_many_processes_that_hangs(
    make_cluster: MakeCluster, network: Network, link: str, call: Callable[[NanoKVCluster], Any]
) -> None:
    one, _ = make_cluster(2, timeout=TIMEOUT)
    one.put("known", torch.ones(3), preferred_segment=("n1", 0))
    node = one.member.nodes["n1"]
    (card,) = node.cards
    cards = {rank: replace(card, rank=rank, incarnation=card.incarnation + rank) for rank in range(RANKS)}
    node.update(cards)
    if link == "nixl":
        network.hangs_reads(one, "n1")
    else:
        network.hangs_messages(one)
    begun = time.monotonic()
    with pytest.raises(PeerLost, match=r"node n1 .* (0\.3 s|did not answer)"):
        call(one)
    assert time.monotonic() - begun < TIMEOUT + MORE + SLACK < RANKS * TIMEOUT / 2


def test_puts_to_many_nodes_that_hang(make_cluster: MakeCluster, network: Network, limits: Limits) -> None:
    """Though one thread asks several of them."""
    members = make_cluster(5, timeout=TIMEOUT)
    one = members[0]
    keys = [f"k{i}" for i in range(100)]
    limits(at_once, THREADS=1)
    network.hangs_messages(one)
    begun = time.monotonic()
    outcomes = one.put_many(keys, torch.ones(100, 3))
    assert time.monotonic() - begun < TIMEOUT + MORE + SLACK < 4 * TIMEOUT
    assert [outcome is None for outcome in outcomes] == [one.home(key) == "n0" for key in keys]
    begun = time.monotonic()
    with pytest.raises(PeerLost):
        one.remove_many(keys)
    assert time.monotonic() - begun < TIMEOUT + MORE + SLACK


@pytest.mark.parametrize("link", ["nixl"])
def test_a_node_that_ends_no_read_is_asked_no_more(make_cluster: MakeCluster, network: Network, limits: Limits) -> None:
    """What was given up keeps memory until it has ended; others are read from as ever."""
    limits(reading, MOST_LATE=3)
    limits(nodes, AVOIDED=0.0)
    one, _, _ = make_cluster(3, timeout=0.05)
    for node in ("n1", "n2"):
        one.put(node, torch.ones(3), preferred_segment=(node, 0))
    is_over = False
    network.hangs_reads(one, "n1", lambda: is_over)
    for _ in range(3):
        with pytest.raises(PeerLost, match="did not answer within"):
            one.exists("n1")
    with pytest.raises(PeerLost, match="3 reads that were given up have not ended"):
        one.exists("n1")
    assert one.exists("n2") and one.stats()["late_reads"] == 3
    is_over = True
    network.is_well()
    assert one.stats()["late_reads"] == 0 and one.exists("n1")

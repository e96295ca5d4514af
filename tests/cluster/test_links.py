"""Every link keeps the contract of `nanokv.cluster.links.base`: between real processes, and by the bytes."""

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from nanokv.cluster.links import Link, LinkLost, LinkUnavailable, State, Transfer, open_link
from nanokv.cluster.links.nixl import NixlLink
from tests.cluster.link_owner import (
    PATIENCE,
    Memory,
    Owner,
    address_of,
    attempt,
    ended,
    finishes,
    gets,
    memory,
    pattern,
    words,
)
from tests.support.needed import leave_out, need_nixl

Start = Callable[[], Owner]

KIB, MIB = 1 << 10, 1 << 20
BIG = 8 * MIB
UNTOUCHED = 0xA5
LOST = (State.FAILED, "lost")


#: each link of Mooncake takes a second to close
@pytest.fixture(params=["nixl", pytest.param("mooncake", marks=pytest.mark.exhaustive)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "nixl":
        need_nixl()
    return str(request.param)


@pytest.fixture
def start(kind: str) -> Iterator[Start]:
    """Starts processes that own memory; all end with the test."""
    owners: list[Owner] = []

    def another() -> Owner:
        try:
            owners.append(Owner(kind, f"owner-{secrets.token_hex(4)}"))
        except LinkUnavailable as error:
            leave_out(kind, error)
        return owners[-1]

    yield another
    for owner in owners:
        owner.end()


@pytest.fixture
def link(kind: str) -> Iterator[Link]:
    try:
        made = open_link(kind, f"reader-{secrets.token_hex(4)}")
    except LinkUnavailable as error:
        leave_out(kind, error)
    yield made
    finishes(made.close)


@pytest.fixture
def here(link: Link) -> Memory:
    """Memory of this process to read into: it stays registered until the link is closed."""
    made = memory(2 * BIG)
    made[:] = UNTOUCHED
    link.register(address_of(made), len(made))
    return made


def reach(link: Link, owner: Owner, nbytes: int = MIB, seed: int = 1) -> tuple[int, int]:
    """Let an owner have memory with the pattern of a seed, and connect: the number of the peer, and the address."""
    there = owner.ask("register", nbytes, seed)
    return link.connect(owner.ask("card")), there


def begin(link: Link, peer: int, into: Memory, there: int) -> Transfer:
    """Begin to read one row, which does not block even if the owner is stopped."""
    return finishes(lambda: link.read(peer, words(address_of(into)), words(there), words(len(into))))


# --- bytes ---
@pytest.mark.parametrize("nbytes", [8, 64, 4 * KIB, MIB, BIG])
def test_a_row(link: Link, start: Start, here: Memory, nbytes: int) -> None:
    peer, there = reach(link, start(), 2 * BIG)
    wanted = pattern(1, 2 * BIG)
    for offset in (0, 8, 2 * BIG - nbytes):
        here[:] = UNTOUCHED
        assert attempt(link, peer, here[64 : 64 + nbytes], there + offset) == State.DONE
        assert np.array_equal(here[64 : 64 + nbytes], wanted[offset : offset + nbytes])
        assert (here[:64] == UNTOUCHED).all() and (here[64 + nbytes :] == UNTOUCHED).all()


@pytest.mark.parametrize("layout", ["contiguous", "scattered", "gathered"])
def test_many_rows(link: Link, start: Start, here: Memory, layout: str) -> None:
    peer, there = reach(link, start(), 2 * BIG)
    random = np.random.default_rng(3)
    n, slot = 256, 8 * KIB
    nbytes = np.full(n, slot) if layout == "contiguous" else random.integers(1, slot // 8, n) * 8
    source = np.arange(n) * slot if layout == "contiguous" else random.permutation(n) * slot
    into = np.cumsum(nbytes) - nbytes if layout == "gathered" else np.arange(n) * slot
    wanted, expected = pattern(1, 2 * BIG), here.copy()
    for i, j, size in zip(into, source, nbytes, strict=True):
        expected[i : i + size] = wanted[j : j + size]
    assert ended(link.read(peer, address_of(here) + into, there + source, nbytes)) == State.DONE
    assert np.array_equal(here, expected)


def test_a_read_after_a_change_gives_the_new_bytes(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, there = reach(link, owner)
    for seed in range(20):
        owner.ask("fill", there, seed)
        assert gets(link, peer, here[:MIB], there, seed)


def test_rows_without_bytes_are_refused(link: Link, start: Start, here: Memory) -> None:
    peer, there = reach(link, start())
    into = address_of(here)
    for rows in (
        ([into], [there], [0]),
        ([into, into + 64], [there, there + 64], [64, 0]),
        ([into], [there], [-8]),
        ([], [], []),
        ([into, into + 64], [there], [64]),
    ):
        with pytest.raises(ValueError):
            link.read(peer, *(words(*row) for row in rows))
    assert (here == UNTOUCHED).all()
    assert gets(link, peer, here[:64], there, 1)


def test_two_threads_read_at_once(link: Link, start: Start, here: Memory) -> None:
    reached = [reach(link, start(), seed=seed) for seed in range(2)]
    wanted = [pattern(seed, MIB) for seed in range(2)]

    def read(thread: int) -> None:
        random = np.random.default_rng(thread)
        for i in range(100):
            which, nbytes = int(random.integers(2)), int(random.integers(1, 2 * KIB)) * 8
            offset, part = int(random.integers((MIB - nbytes) // 8)) * 8, here[thread * MIB : thread * MIB + nbytes]
            peer, there = reached[which]
            assert attempt(link, peer, part, there + offset) == State.DONE, i
            assert np.array_equal(part, wanted[which][offset : offset + nbytes]), i

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(2)))


def test_both_ways(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    here[:MIB] = pattern(5, MIB)
    assert owner.ask("pull", link.card(), address_of(here), MIB, 5)
    peer, there = reach(link, owner)
    assert gets(link, peer, here[:MIB], there, 1)


# --- memory and cards ---
def test_memory_comes_and_goes(link: Link, start: Start) -> None:
    owner, peers = start(), set()
    for seed in range(20):
        mine = memory(64 * KIB)
        link.register(address_of(mine), len(mine))
        peer, there = reach(link, owner, len(mine), seed)
        assert gets(link, peer, mine, there, seed)
        owner.ask("deregister", there)
        link.deregister(address_of(mine))
        link.deregister(address_of(mine))
        peers.add(peer)
    assert len(peers) == 1, "the number is the process's, whatever its card"


def test_a_card_is_of_use_for_what_was_registered_before_it(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, first = reach(link, owner, seed=1)
    second = owner.ask("register", MIB, 2)
    assert gets(link, peer, here[:MIB], first, 1)
    assert attempt(link, peer, here[:MIB], second) in LOST
    again = link.connect(owner.ask("card"))
    assert gets(link, again, here[:MIB], first, 1) and gets(link, again, here[:MIB], second, 2)


def test_peers_that_are_not_connected(link: Link, start: Start, here: Memory) -> None:
    with pytest.raises(LinkLost):
        link.read(12345, words(address_of(here)), words(4096), words(64))
    owner = start()
    peer, there = reach(link, owner)
    for number in (peer, peer, 12345):
        link.disconnect(number)
    assert attempt(link, peer, here[:64], there) == "lost"
    assert gets(link, link.connect(owner.ask("card")), here[:64], there, 1)


def test_a_forked_process_waits_for_no_thread_that_it_lacks(kind: str, link: Link) -> None:
    if kind != "nixl":
        pytest.skip("only NIXL's agents have a lock of this process")
    assert isinstance(link, NixlLink)
    with link.reading_alone():
        child = os.fork()
        if not child:
            with link.reading_alone():
                os._exit(0)
    end = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0), "the child waits for a lock that the parent had"


def test_what_is_no_card_is_refused(start: Start) -> None:
    """In a process of its own: a library might crash."""
    victim, owner = start(), start()
    there = owner.ask("register", MIB, 1)
    card, random = owner.ask("card"), np.random.default_rng(7)
    garbage = [b"", b"\0", b"{}", b"[" * 100_000, b"\xff" * 4096, random.bytes(300), card + b"!", card[1:], card + card]
    garbage += [card[: int(cut)] for cut in random.integers(0, len(card), 20)]
    for place, bit in zip(random.integers(0, len(card), 60), random.integers(0, 8, 60), strict=True):
        flipped = bytearray(card)
        flipped[place] ^= 1 << bit
        garbage.append(bytes(flipped))
    for wrong in garbage:
        assert victim.ask("connect", wrong) is None, wrong
    assert victim.ask("pull", card, there, MIB, 1)


# --- peers that are gone, or stand still ---
def test_a_killed_owner_is_lost(link: Link, start: Start, here: Memory) -> None:
    owner, other = start(), start()
    (peer, there), (living, elsewhere) = reach(link, owner, 2 * BIG), reach(link, other, seed=2)
    card = owner.ask("card")
    assert gets(link, peer, here[:64], there, 1)
    transfers = [begin(link, peer, here, there) for _ in range(4)]
    owner.kill()
    assert {ended(transfer) for transfer in transfers} <= {State.DONE, State.FAILED}
    assert all(attempt(link, peer, here[:64], there) in LOST for _ in range(3))
    link.disconnect(peer)
    with contextlib.suppress(LinkLost):
        again = finishes(lambda: link.connect(card))
        assert attempt(link, again, here[:64], there) in LOST
    assert gets(link, living, here[:MIB], elsewhere, 2)


def test_processes_that_come_after_killed_ones(link: Link, start: Start, here: Memory) -> None:
    peers = []
    for seed in range(3):
        owner = start()
        peer, there = reach(link, owner, seed=seed)
        assert gets(link, peer, here[:MIB], there, seed)
        owner.kill()
        peers.append(peer)
    assert len(set(peers)) == 3


def test_a_stopped_owner_holds_up_nothing_else(link: Link, start: Start, here: Memory) -> None:
    owner, other = start(), start()
    (peer, there), (living, elsewhere) = reach(link, owner, BIG), reach(link, other, seed=2)
    owner.suspend()
    transfer = begin(link, peer, here[:BIG], there)
    assert finishes(lambda: {transfer.state() for _ in range(1000)}) <= {State.MOVING, State.DONE}
    assert finishes(lambda: gets(link, living, here[BIG : BIG + MIB], elsewhere, 2))
    owner.resume()
    assert ended(transfer) == State.FAILED or np.array_equal(here[:BIG], pattern(1, BIG))


def test_a_transfer_that_moves_can_be_let_go(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, there = reach(link, owner, BIG)
    owner.suspend()
    for _ in range(3):
        transfer = begin(link, peer, here[:BIG], there)
        finishes(transfer.release)
        finishes(transfer.release)
        del transfer
    owner.resume()
    assert gets(link, peer, here[BIG:], there, 1)


def test_one_more_is_let_go_when_an_earlier_one_has_ended(link: Link, kind: str) -> None:
    """Which the link finds out then: it must not wait for itself."""
    if kind != "nixl":
        return
    assert isinstance(link, NixlLink)
    lock = link._lock

    class Ended:
        """As a transfer of which the link learns that it has ended."""

        def state(self) -> State:
            assert lock.acquire(timeout=5), "the link keeps its lock"
            lock.release()
            return State.DONE

    for _ in range(3):
        transfer: Any = Ended()
        finishes(partial(link.keep, transfer))
    assert len(link._moving) == 1


def test_disconnecting_while_a_transfer_moves(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, there = reach(link, owner, BIG)
    owner.suspend()
    transfer = begin(link, peer, here[:BIG], there)
    finishes(lambda: link.disconnect(peer))
    assert attempt(link, peer, here[BIG : BIG + 64], there) == "lost"
    finishes(transfer.state)
    owner.resume()
    assert gets(link, link.connect(owner.ask("card")), here[BIG:], there, 1)
    assert transfer.state() != State.DONE or np.array_equal(here[:BIG], pattern(1, BIG))


def test_connecting_to_a_stopped_process(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    there = owner.ask("register", MIB, 1)
    card = owner.ask("card")
    owner.suspend()
    with contextlib.suppress(LinkLost):
        finishes(lambda: link.connect(card))
    owner.resume()
    assert gets(link, link.connect(card), here[:MIB], there, 1)


# --- the end ---
def test_an_owner_that_closes_is_lost(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, there = reach(link, owner)
    assert gets(link, peer, here[:64], there, 1)
    owner.ask("close")
    owner.ask("close")
    deadline = time.monotonic() + PATIENCE
    while attempt(link, peer, here[:64], there) not in LOST:
        assert time.monotonic() < deadline, "the peer is not found to be lost"


def test_a_closed_link(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, there = reach(link, owner)
    transfer = begin(link, peer, here[:64], there)
    assert ended(transfer) == State.DONE
    link.close()
    link.close()
    assert transfer.state() == State.DONE
    assert attempt(link, peer, here[:64], there) == "lost"
    with pytest.raises(LinkLost):
        link.connect(owner.ask("card"))
    link.disconnect(peer)
    link.deregister(address_of(here))


def test_closing_while_transfers_move(link: Link, start: Start, here: Memory) -> None:
    owner = start()
    peer, there = reach(link, owner, BIG)
    owner.suspend()
    transfers = [begin(link, peer, here[:BIG], there) for _ in range(8)]
    closed = threading.Event()

    def watch() -> set[State]:
        while not closed.is_set():
            for transfer in transfers:
                transfer.state()
        return {transfer.state() for transfer in transfers}

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            finishes(link.close)
        finally:
            closed.set()
        assert watching.result(PATIENCE) <= {State.MOVING, State.DONE, State.FAILED}
    owner.resume()


def test_a_link_is_closed_while_threads_read_over_it(start: Start) -> None:
    serves, reads = start(), start()
    there, card = serves.ask("register", MIB, 1), serves.ask("card")
    rounds = 8
    assert reads.ask("close_under_reads", card, there, MIB, rounds) >= 3 * rounds

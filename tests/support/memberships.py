"""Memberships for tests: registries to open them at, and listeners that remember."""

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nanokv.check.machine.rank_process import wait_until
from nanokv.cluster.membership import Membership, open_membership
from tests.support.etcd_server import Etcd, etcd_cluster, needs_etcd
from tests.support.member_process import MemberProcess

ETCD_TTL = 2.0  #: seconds; etcd takes no shorter ones
FOLDER_TTL = 1.0
PATIENT_TTL = 3.0  #: where members must never be dropped: a loaded machine may stop a thread for a second


class Place:
    """A registry with one cluster in it. Everything opened at it ends with the test."""

    def __init__(self, url: str, ttl: float) -> None:
        self.url = url
        self.ttl = ttl
        self.opened: list[Membership] = []
        self._processes: list[MemberProcess] = []

    def open(self, member: str | None = None, card: bytes = b"", *, ttl: float | None = None) -> Membership:
        """Open a membership, and join under a name if there is one."""
        opened = open_membership(self.url, ttl=ttl or self.ttl, timeout=60.0)
        self.opened.append(opened)
        if member is not None:
            opened.join(member, card)
        return opened

    def process(self, member: str, card: str = "", *, ttl: float | None = None) -> MemberProcess:
        """A member in a process of its own."""
        process = MemberProcess(self.url, ttl or self.ttl)
        self._processes.append(process)
        process.ask("join", member, card.encode())
        return process

    def end(self) -> None:
        """Kill the processes, close the rest; none leaves a thread behind."""
        for process in self._processes:
            process.kill()
        for membership in self.opened:
            membership.close()
        wait_until("the end of the threads", lambda: not threads(), threads, pause=0.01)


class Record:
    """A listener that remembers all that it was told."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, bytes]] = []

    def __call__(self, members: Mapping[str, bytes]) -> None:
        self.told.append(members)

    def always_had(self, *members: str) -> bool:
        """Whether each mapping had these members."""
        return all(set(members) <= told.keys() for told in self.told)


def threads() -> list[str]:
    """Threads of memberships in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nanokv-members")]


def seen(membership: Membership, expected: Mapping[str, bytes]) -> None:
    """Wait until a membership knows these members and no others."""
    wait_until(f"members {sorted(expected)}", lambda: membership.members() == expected, membership.members, 0.01)


@contextlib.contextmanager
def place(url: str, ttl: float) -> Iterator[Place]:
    """A registry for one test."""
    made = Place(url, ttl)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd for tests that do nothing to it."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as (etcd,):
        yield etcd


@pytest.fixture(params=[pytest.param("etcd", marks=needs_etcd), "folder"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty cluster in each kind of registry."""
    if request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("shared_etcd")
        url, ttl = etcd.url(any_name()), ETCD_TTL
    else:
        url, ttl = f"file://{tmp_path}/cluster", FOLDER_TTL
    with place(url, ttl) as made:
        yield made


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd for a test that kills it, or stops it."""
    with etcd_cluster(tmp_path) as (made,):
        yield made


def any_name() -> str:
    """A name for a cluster that no other test uses."""
    return f"test-{secrets.token_hex(6)}"

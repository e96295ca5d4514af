"""The registry in etcd: what is refused, users, certificates, foreign keys, and that a watch misses nothing."""

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from nanokv.check.machine.rank_process import wait_until
from nanokv.cluster.membership import ClusterUnavailable, open_membership
from nanokv.cluster.membership.addresses import EtcdAddress, parse
from nanokv.cluster.membership.etcd_gateway import Gateway
from nanokv.cluster.membership.etcd_keys import Keys, KeyValue, put, text64
from nanokv.cluster.membership.etcd_watch import Watch
from nanokv.cluster.membership.pulse import Pulse
from nanokv.cluster.membership.view import View
from tests.support.etcd_server import Etcd, etcd_cluster, needs_etcd
from tests.support.memberships import ETCD_TTL, Place, any_name, etcd, place, seen, shared_etcd
from tests.support.needed import leave_out
from tests.support.until import until

__all__ = ["etcd", "shared_etcd"]

pytestmark = [needs_etcd, pytest.mark.exhaustive]
PASSWORD = "p@:/ß"
QUOTED = "p%40%3A%2F%C3%9F"


@pytest.fixture
def at(shared_etcd: Etcd) -> Iterator[Place]:
    """An empty cluster."""
    with place(shared_etcd.url(any_name()), ETCD_TTL) as made:
        yield made


def gateway_of(url: str) -> Gateway:
    """A client of its own."""
    address = parse(url)
    assert isinstance(address, EtcdAddress)
    return Gateway(address, 5.0)


class Watched:
    """A watch that has read, and was not started, and the view that it feeds."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._pulse = Pulse("etcd", 0.5)
        self._view = View(self._pulse, lambda members: None)
        self.watch = Watch(gateway, Keys(name), self._view, self._pulse, 0.01)
        self.watch.read()

    def until(self, members: Mapping[str | None, bytes]) -> None:
        """Wait until the view has these members."""

        def settled() -> bool:
            self._pulse.heard("test")
            self._view.settle()
            return self._view.members() == members

        wait_until("the members", settled, self._view.members, pause=0.01)


# --- what a watch must not miss ---
def test_a_watch_whose_revision_was_compacted(shared_etcd: Etcd) -> None:
    name = any_name()
    gateway = gateway_of(shared_etcd.url(name))
    watched = Watched(gateway, name)
    for turn in range(5):
        answer = gateway.call("/v3/kv/txn", {"success": [put(Keys(name).member("a"), b"%d" % turn)]})
    gateway.call("/v3/kv/compaction", {"revision": answer["header"]["revision"]})
    watched.watch.start()
    watched.until({"a": b"4"})
    watched.watch.stop(60.0)
    gateway.close()


def test_nothing_is_lost_between_reading_and_watching(shared_etcd: Etcd) -> None:
    name, choose = any_name(), random.Random(1)
    with ExitStack() as stack:
        writer, reader = gateway_of(shared_etcd.url(name)), gateway_of(shared_etcd.url(name))
        stack.callback(writer.close)
        stack.callback(reader.close)
        watched: list[Watched] = []
        for turn in range(300):
            key = Keys(name).member(f"m{choose.randrange(7)}")
            gone = {"request_delete_range": {"key": text64(key.encode())}}
            writer.call("/v3/kv/txn", {"success": [gone if turn % 3 == 0 else put(key, b"%d" % turn)]})
            if turn % 30 == 0:
                watched.append(Watched(reader, name))
            elif turn % 30 == 10:
                watched[-1].watch.start()
                stack.callback(watched[-1].watch.stop, 60.0)
            elif turn % 30 == 20 and (stream := watched[-1].watch._stream) is not None:
                stream.interrupt()
        kvs = writer.call("/v3/kv/range", Keys(name).all_members())["kvs"]
        truth = {Keys(name).member_of(kv.key): kv.value for kv in map(KeyValue.of, kvs)}
        assert len(truth) > 2
        for each in watched:
            each.until(truth)


def test_watches_that_ended_leave_nothing_in_etcd(etcd: Etcd) -> None:
    def watchers() -> str:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{etcd.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(line for line in lines if line.startswith("etcd_debugging_mvcc_watcher_total"))

    with place(etcd.url("watched"), ETCD_TTL) as at:
        for _ in range(10):
            at.open("a").close()
        until(lambda: watchers().endswith(" 0"))


def test_cards_of_many_megabytes_in_all(at: Place) -> None:
    card = random.Random(1).randbytes(1 << 20)
    members = [at.open(f"m{number}", card) for number in range(6)]
    late = at.open()
    assert late.members() == {f"m{number}": card for number in range(6)}
    members[0].update(b"small")
    seen(late, dict(late.members()) | {"m0": b"small"})


# --- foreign keys ---
def test_foreign_keys_are_ignored(at: Place, shared_etcd: Etcd) -> None:
    first = at.open("a")
    folder = f"nanokv/{at.url.rpartition('/')[2]}/members/"
    for key in (b"a b", b"\xff", b"", b"x/y", b"c" * 65):
        shared_etcd.call("/v3/kv/put", key=text64(folder.encode() + key), value=text64(b"x"))
    second = at.open("b")
    for membership in (first, second):
        seen(membership, {"a": b"", "b": b""})


def test_a_member_or_a_secret_that_is_none(at: Place, shared_etcd: Etcd) -> None:
    first = at.open()
    folder = f"nanokv/{at.url.rpartition('/')[2]}/"
    shared_etcd.call("/v3/kv/put", key=text64(f"{folder}members/a".encode()), value=text64(b"x"))
    with pytest.raises(ClusterUnavailable, match="without a lease, which is not of NanoKV"):
        first.join("a", b"")
    shared_etcd.call("/v3/kv/put", key=text64(f"{folder}secret".encode()), value=text64(b"short"))
    with pytest.raises(ClusterUnavailable, match="is not the secret of a cluster"):
        first.secret()


def test_clusters_in_one_etcd_do_not_mix(shared_etcd: Etcd) -> None:
    name = any_name()
    with open_membership(shared_etcd.url(name)) as first, open_membership(shared_etcd.url(name + "-")) as second:
        first.join("a", b"1")
        second.join("a", b"2")
        assert (first.members(), second.members()) == ({"a": b"1"}, {"a": b"2"})
        assert first.secret() != second.secret()


# --- users ---
def with_users(etcd: Etcd) -> None:
    """User root, and user u who may use the keys of NanoKV; nobody else."""
    for user, password in (("root", "root"), ("u", PASSWORD)):
        etcd.call("/v3/auth/user/add", name=user, password=password)
    for role, user in (("root", "root"), ("r", "u")):
        etcd.call("/v3/auth/role/add", name=role)
        etcd.call("/v3/auth/user/grant", user=user, role=role)
    allowed = {"permType": "READWRITE", "key": text64(b"nanokv/own/"), "range_end": text64(b"nanokv/own0")}
    etcd.call("/v3/auth/role/grant", name="r", perm=allowed)
    etcd.call("/v3/auth/enable")


def test_users_and_passwords(etcd: Etcd) -> None:
    with pytest.raises(ClusterUnavailable, match="refuses: etcdserver: authentication is not enabled"):
        open_membership(etcd.url("own", f"u:{QUOTED}@"))
    with_users(etcd)
    for credentials, name in (("", "own"), ("u:wrong@", "own"), (f"u:{QUOTED}@", "other")):
        with pytest.raises(ClusterUnavailable, match="refuses: etcdserver: ") as caught:
            open_membership(etcd.url(name, credentials))
        assert "wrong" not in str(caught.value) and PASSWORD not in str(caught.value)
    with place(etcd.url("own", f"u:{QUOTED}@"), ETCD_TTL) as at:
        first, second = at.open("a", b"1"), at.open("b", b"2")
        seen(first, {"a": b"1", "b": b"2"})
        etcd.restart()  # which forgets all tokens
        until(lambda: first.away_for() == 0.0 == second.away_for())
        first.update(b"new")
        seen(second, {"a": b"new", "b": b"2"})
        assert first.secret() == second.secret()


# --- TLS ---
@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Of a CA (ca.pem), of etcd and of a client (etcd.pem, client.pem with .key), in a folder with a blank."""
    if shutil.which("openssl") is None:
        leave_out("etcd", "there is no openssl on this machine")
    folder = tmp_path / "TLS files"
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
    openssl("req", "-x509", *key, "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("etcd", "client"):
        openssl("req", *key, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return folder


def test_tls_with_certificates_of_clients(tmp_path: Path, certificates: Path) -> None:
    files = {name: certificates / name for name in ("ca.pem", "etcd.pem", "etcd.key", "client.pem", "client.key")}
    options = ["--client-cert-auth", f"--trusted-ca-file={files['ca.pem']}"]
    options += [f"--cert-file={files['etcd.pem']}", f"--key-file={files['etcd.key']}"]
    ca, client = f"ca={files['ca.pem']}", f"cert={files['client.pem']}&key={files['client.key']}"
    with etcd_cluster(tmp_path, options=options, scheme="https") as (etcd,):
        url = etcd.url("tls").replace("etcd://", "etcds://")
        with place(f"{url}?{ca}&{client}", ETCD_TTL) as at:
            first, second = at.open("a", b"1"), at.open("b", b"2")
            seen(first, {"a": b"1", "b": b"2"})
            second.close()
            seen(first, {"a": b"1"})
        for wrong in (f"{url}?{ca}", f"{url}?{client}", etcd.url("tls")):
            with pytest.raises(ClusterUnavailable, match=r"did not answer within 0\.1 s"):
                open_membership(wrong, timeout=0.1)


def test_closing_while_a_watch_over_tls_is_idle_does_not_wait(tmp_path: Path, certificates: Path) -> None:
    options = [f"--cert-file={certificates / 'etcd.pem'}", f"--key-file={certificates / 'etcd.key'}"]
    with etcd_cluster(tmp_path, options=options, scheme="https") as (etcd,):
        url = etcd.url("tls").replace("etcd://", "etcds://") + f"?ca={certificates / 'ca.pem'}"
        with place(url, ETCD_TTL) as at:
            first = at.open("a")
            assert not threading.Event().wait(0.5)
            first.close()

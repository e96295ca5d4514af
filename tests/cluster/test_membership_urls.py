"""URLs of registries: what they say, which are wrong, and registries that are none."""

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanokv.check.lab.etcd import free_ports
from nanokv.cluster.membership import ClusterUnavailable, open_membership
from nanokv.cluster.membership.addresses import (
    PASSWORD_VARIABLE,
    EtcdAddress,
    FolderAddress,
    has_password,
    masked,
    parse,
)
from nanokv.errors import InvalidArgument

WRONG = {
    "": "not one of scheme ''",
    "http://host/name": "etcd://host:port.*not one of scheme 'http'",
    "etcd:name": "'' is no host:port",
    "etcd://host:2379": "ends with the name of the cluster",
    "etcd://host:2379/": "ends with the name of the cluster",
    "etcd://host:2379/a/b": "ends with the name of the cluster",
    "etcd://host:2379/a%20b": "ends with the name of the cluster",
    "etcd:///name": "'' is no host:port",
    "etcd://host:2379,/name": "'' is no host:port",
    "etcd://host:/name": "'host:' is no host:port",
    "etcd://host:0/name": "'host:0' is no host:port",
    "etcd://host:65536/name": "'host:65536' is no host:port",
    "etcd://host:x/name": r"'host:\*\*\*' is no host:port",
    "etcd://user:a-secret/more@host/name": "in a user or a password / is %2F",
    "etcd://user:secret/name": r"'user:\*\*\*' is no host:port",
    "etcd://user:\u2100secret@host/name": "is no URL of a registry: it has the form",
    "etcd://::1:2379/name": "'::1:2379' is no host:port",
    "etcd://[::1/name": "no URL of a registry",
    "etcd://hööst/name": "is no host:port",
    "etcd://:secret@host/name": "names no user before its @",
    "etcd://host/name?ca=x": "write etcds://",
    "etcd://host/name#x": "no part after #",
    "etcds://host/name?ca": "have the form",
    "etcds://host/name?verify=0": "options ca, cert and key, not .'verify'.",
    "etcds://host/name?cert=x": "cert and key .* go together",
    "etcds://host/name?ca=/nowhere": "ca=/nowhere .*cannot be used for TLS",
    "file://folder/x": "three slashes",
    "file:folder": "three slashes",
    "file:///": "a folder of its own",
    "file://": "three slashes",
    "file:///x?y=1": "no options",
    "file:///x%00": "a folder of its own",
}


@pytest.mark.parametrize("url", WRONG)
def test_wrong_urls(url: str) -> None:
    with pytest.raises(InvalidArgument, match=WRONG[url]) as caught:
        open_membership(url)
    assert "secret" not in str(caught.value)


def test_an_url_is_text() -> None:
    with pytest.raises(InvalidArgument, match="is a string, not PosixPath"):
        open_membership(Path("/x"))  # type: ignore[arg-type]


def test_what_urls_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("etcd://a:1,b,[::1],[::2]:5/n.1") == EtcdAddress(
        (("a", 1), ("b", 2379), ("::1", 2379), ("::2", 5)), "n.1"
    )
    with_user = parse("etcd://u%3A:p%40:x@a/n")
    assert isinstance(with_user, EtcdAddress)
    assert (with_user.user, with_user.password) == ("u:", "p@:x")
    assert "p@" not in repr(with_user) + str(with_user)
    assert str(parse("etcd://u:p@a:1,[::1]/n")) == "etcd at a:1,[::1]:2379"
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the variable")
    for url, password in (("etcd://u@a/n", "of the variable"), ("etcd://u:p@a/n", "p"), ("etcd://a/n", "")):
        found = parse(url)
        assert isinstance(found, EtcdAddress) and found.password == password
    secured = parse("etcds://a/n")
    assert isinstance(secured, EtcdAddress) and secured.tls is not None and secured.tls.check_hostname
    assert parse("file:///a%20b/c") == parse("file://localhost/a b/c") == FolderAddress(Path("/a b/c"))


def test_urls_are_shown_without_passwords() -> None:
    for url, shown in (
        ("etcd://u:a-secret@a:1,b/n", "etcd://u:***@a:1,b/n"),
        ("etcd://u:a@secret@a/n", "etcd://u:***@a/n"),
        ("etcd://u:a/secret@a/n", "etcd://u:***@a/n"),
        ("etcd://u@a/n", "etcd://u@a/n"),
        ("etcd://a/n", "etcd://a/n"),
        ("file:///a/b", "file:///a/b"),
    ):
        assert masked(url) == shown and has_password(url) == ("secret" in url)


# --- registries that are none ---
def test_nothing_listens() -> None:
    first, second = free_ports(2)
    with pytest.raises(ClusterUnavailable, match=f"etcd at .*{first},.*{second} did not answer within 0.1 s"):
        open_membership(f"etcd://127.0.0.1:{first},127.0.0.1:{second}/x", timeout=0.1)


def test_something_listens_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ClusterUnavailable, match="did not answer"):
        open_membership(f"etcd://127.0.0.1:{silent.getsockname()[1]}/x", timeout=0.1)


@pytest.fixture
def other_server() -> Iterator[int]:
    """The port of a server that is no etcd."""
    handler = http.server.SimpleHTTPRequestHandler  # answers 501 to POST, in HTML
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_name_that_nobody_resolves_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to open a membership, nor to close one; over TLS likewise."""
    end, hung = threading.Event(), threading.Event()

    def hangs(host: str, *arguments: Any, **options: Any) -> Any:
        hung.set()
        end.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    try:
        for scheme in ("etcd", "etcds"):
            begun = time.monotonic()
            with pytest.raises(ClusterUnavailable, match=r"etcd\.example was not resolved: no answer in time"):
                open_membership(f"{scheme}://etcd.example/name", timeout=0.2, ttl=1.0)
            assert time.monotonic() - begun < 4 and hung.is_set()
    finally:
        end.set()


def test_another_server_answers(other_server: int) -> None:
    with pytest.raises(ClusterUnavailable, match="this is no answer of etcd"):
        open_membership(f"etcd://127.0.0.1:{other_server}/x", timeout=0.1)


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterUnavailable, match="is no folder"):
        open_membership(f"file://{tmp_path}/file")
    with pytest.raises(ClusterUnavailable, match=r"did not answer within 0\.1 s"):
        open_membership(f"file://{tmp_path}/file/below", timeout=0.1)
    with pytest.raises(InvalidArgument, match="timeout must be"):
        open_membership(f"file://{tmp_path}/x", timeout="1")  # type: ignore[arg-type]

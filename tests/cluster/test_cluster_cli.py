"""ls, stats and fsck of a cluster, by the URL of its registry."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nanokv.cluster.card import member_name
from nanokv.cluster.membership import open_membership
from nanokv.cluster.options import make_cluster_options
from nanokv.errors import InvalidArgument
from nanokv.tools.cli import app

from .conftest import MakeCluster, key_of, map_others

runner = CliRunner()


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_members_and_what_they_hold(make_cluster: MakeCluster, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/cluster"
    one, two = make_cluster(2, world={"guests": 3})
    map_others(one)
    for i in range(10):
        one.put(f"k{i}", torch.ones(100), preferred_segment=("n1", 0))
    two.world.flush()
    shown = lines_of(run("ls", url))
    assert shown[0] == ["node", "rank", "ranks", "memory", "link", "seal", "guests", "address", "state"]
    assert [(row[0], row[-1]) for row in shown[1:]] == [("n0", "alive"), ("n1", "alive")]
    members = json.loads(run("ls", url, "--json"))
    assert [each["name"] for each in members] == [member_name("n0", 0), member_name("n1", 0)]
    stats = json.loads(run("stats", url, "--json"))["members"]
    assert [(each["node"], each["ready"]) for each in stats] == [("n0", 0), ("n1", 10)]
    assert [each["guests"] for each in members] == [3, 3] and [row[7] for row in shown[1:]] == ["3", "3"]
    assert stats[0]["ways"] == {"n1": "mapped"} and stats[1]["guests"] == 1
    assert [row[0] for row in lines_of(run("stats", url))] == ["node", "n0", "n1"]


def test_fsck_of_all_nodes(make_cluster: MakeCluster, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/cluster"
    one, two = make_cluster(2)
    one.put(key_of(one, "n1"), torch.ones(100))
    assert "n1: 1 segments, 1 objects" in run("fsck", url)
    links = two.world.engine.heap.segment(0)
    at = two.world.engine.geometry.offsets["links_base"]
    kept = links[at : at + 8].clone()
    links[at : at + 8] = 255
    report: dict[str, Any] = json.loads(run("fsck", url, "--json", "--quick", code=1))
    assert report["nodes"]["n0"]["breaches"] == 0 and report["nodes"]["n1"]["breaches"] > 0
    assert "breach" in run("fsck", url, code=1)
    links[at : at + 8] = kept


def test_a_cluster_without_members(tmp_path: Path) -> None:
    """Who looks makes nothing, not even where the URL has a typing error."""
    nothing = f"file://{tmp_path}/nothing"
    for command in ("ls", "stats", "fsck"):
        assert "is no folder, so there is no cluster" in run(command, nothing, code=2)
    assert not (tmp_path / "nothing").exists()
    url = f"file://{tmp_path}/empty"
    (tmp_path / "empty").mkdir()
    assert "has no secret: no member has joined" in run("ls", url, code=2)
    assert not (tmp_path / "empty" / "secret").exists()
    with open_membership(url) as first:
        first.secret()
    assert "no members" in run("ls", url)
    assert json.loads(run("ls", url, "--json")) == []
    assert "no members" in run("fsck", url, code=2)


def test_what_members_refused_is_shown(make_cluster: MakeCluster, tmp_path: Path) -> None:
    make_cluster(1)
    header, row = lines_of(run("stats", f"file://{tmp_path}/cluster"))
    assert header[-3:] == ["peer_lost", "msg_refused", "msg_dropped"] and row[-3:] == ["0", "0", "0"]
    (member,) = json.loads(run("stats", f"file://{tmp_path}/cluster", "--json"))["members"]
    assert member["messages_refused_mac"] == 0


@pytest.mark.parametrize("command", ["ls", "stats", "fsck"])
def test_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """And a command line that has one is warned of."""
    monkeypatch.setattr("nanokv.cluster.observer.open_membership", lambda *_, **__: Nobody())
    for url, is_warned in (("etcd://user:a-secret@host/name", True), ("etcd://user@host/name", False)):
        result = runner.invoke(app, [command, url, "--json"])
        assert "a-secret" not in result.output and "a-secret" not in result.stderr
        assert ("NANOKV_REGISTRY_PASSWORD" in result.stderr) == is_warned
        if command != "ls":
            assert json.loads(result.stdout)["cluster"] == url.replace("a-secret", "***")


class Nobody:
    """A membership without members."""

    def members(self) -> dict[str, bytes]:
        return {}

    def secret(self) -> bytes:
        return bytes(32)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("secret", ["", "short"])
def test_a_secret_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret: str) -> None:
    """Also a variable that is set and empty, as by a Secret of Kubernetes that nobody has filled in."""
    monkeypatch.setenv("NANOKV_CLUSTER_SECRET", secret)
    assert "must have at least 16 bytes, or be unset" in run("ls", f"file://{tmp_path}", code=2)
    with pytest.raises(InvalidArgument, match="NANOKV_CLUSTER_SECRET must have at least 16 bytes"):
        make_cluster_options("local", {})


def test_wrong_registries() -> None:
    result = runner.invoke(app, ["ls", "redis://127.0.0.1/x"])
    assert result.exit_code == 2 and "redis" in result.output


def test_a_card_of_another_secret(make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/cluster"
    make_cluster(1, secret=b"x" * 16)
    assert "has no secret: no member has joined, or all of them are given it" in run("ls", url, code=2)
    monkeypatch.setenv("NANOKV_CLUSTER_SECRET", "y" * 16)
    shown = run("ls", url)
    assert "sealed with another secret (set NANOKV_CLUSTER_SECRET to that of all)" in shown and "n0.0" in shown
    assert "sealed with another secret" in run("stats", url, code=2)
    monkeypatch.setenv("NANOKV_CLUSTER_SECRET", "x" * 16)
    assert "alive" in run("ls", url)

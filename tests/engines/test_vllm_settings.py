"""The flags of vLLM's connector, and the command lines that `nanokv vllm-flags` prints. Without vLLM."""

import json
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanokv.cluster.options import ClusterOptions
from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.flags import command_lines, flag_texts
from nanokv.integrations.vllm.settings import CLUSTER_OPTIONS, PRODUCER_HOLD, Settings, parse
from nanokv.tools.cli import app


def test_flags_are_parsed() -> None:
    given = {"nanokv.name": "pd", "nanokv.size": "4GiB", "nanokv.page_bytes": 65536, "nanokv.hold": 5}
    found = parse(given)
    assert (found.name, found.size, found.page_bytes, found.hold) == ("pd", 4 << 30, 65536, 5.0)
    assert parse({}) == Settings()


@pytest.mark.parametrize("text, size", [("4GiB", 4 << 30), ("512 mb", 512 << 20), ("64K", 65536), ("7", 7), (7, 7)])
def test_sizes(text: str | int, size: int) -> None:
    assert parse({"nanokv.size": text}).size == size


@pytest.mark.parametrize(
    "flag, value, says",
    [
        ("nanokv.nope", 1, "there is no flag 'nanokv.nope'.*nanokv.alloc"),
        ("size", "4GiB", "there is no flag 'size'"),
        ("nanokv.size", "much", "size such as 4GiB"),
        ("nanokv.size", "-1", "size such as 4GiB"),
        ("nanokv.size", "0", "nanokv.size must be an integer of at least 1"),
        ("nanokv.size", True, "nanokv.size must be"),
        ("nanokv.alloc", "v2", "nanokv.alloc must be one of device, host"),
        ("nanokv.heap", "gpu", "nanokv.heap must be one of None, local"),
        ("nanokv.load", "sync", "nanokv.load must be one of async, layer"),
        ("nanokv.on_stale", "keep", "nanokv.on_stale must be one of"),
        ("nanokv.name", 3, "nanokv.name must be a string"),
        ("nanokv.checksum", "yes", "nanokv.checksum must be true or false"),
        ("nanokv.rank", -1, "nanokv.rank must be"),
        ("nanokv.hold", -1, "nanokv.hold must not be negative"),
        ("nanokv.hold", "long", "nanokv.hold must be a number"),
        ("nanokv.attach_timeout", 0, "nanokv.attach_timeout must be positive"),
    ],
)
def test_wrong_flags_are_refused(flag: str, value: object, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse({flag: value})


CLUSTER = {"nanokv.cluster": "file:///tmp/cluster"}


@pytest.mark.parametrize(
    "flags, says",
    [
        ({"nanokv.cluster": 3}, "nanokv.cluster must be a string"),
        ({"nanokv.cluster": "redis://host/name"}, "nanokv.cluster: a registry has a URL of the form etcd"),
        ({"nanokv.cluster": "file://relative"}, "nanokv.cluster: the folder of a registry is absolute"),
        ({"nanokv.cluster": "etcd://me:hidden@host/name"}, "nanokv.cluster has a password"),
        (CLUSTER | {"nanokv.alloc": "host"}, "nanokv.cluster needs nanokv.alloc=device"),
        (CLUSTER | {"nanokv.node": "a.b"}, "nanokv.node must be 1 to 48 letters"),
        (CLUSTER | {"nanokv.node": 1}, "nanokv.node must be a string"),
        (CLUSTER | {"nanokv.link": "tcp"}, "nanokv.link must be one of auto, wire, nixl, mooncake"),
        (CLUSTER | {"nanokv.bind": ""}, "nanokv.bind must be a non-empty str"),
        (CLUSTER | {"nanokv.devices": ""}, "nanokv.devices must be a non-empty str"),
        (CLUSTER | {"nanokv.ports": "40000"}, "nanokv.ports must be a range of 4 or more"),
        (CLUSTER | {"nanokv.bind": "0.0.0.0"}, "advertise must say how other hosts reach this one"),
        (CLUSTER | {"nanokv.cluster_timeout": 0}, "nanokv.cluster_timeout must be positive seconds"),
        (CLUSTER | {"nanokv.cluster_timeout": "soon"}, "nanokv.cluster_timeout must be a number"),
        (CLUSTER | {"nanokv.cluster_ttl": -1}, "nanokv.cluster_ttl must be positive seconds"),
        (CLUSTER | {"nanokv.secret": "x" * 32}, "there is no flag 'nanokv.secret'"),
        ({"nanokv.node": "a"}, "nanokv.node is about a cluster: give nanokv.cluster too"),
        ({"nanokv.cluster_ttl": 5}, "nanokv.cluster_ttl is about a cluster"),
    ],
)
def test_wrong_flags_about_a_cluster_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as refused:
        parse(flags)
    assert "hidden" not in str(refused.value)


def test_flags_about_a_cluster() -> None:
    found = parse({"nanokv.cluster": "etcd://a:1,b:2/llm", "nanokv.node": "n1", "nanokv.cluster_timeout": 2})
    assert (found.cluster, found.node, found.cluster_timeout) == ("etcd://a:1,b:2/llm", "n1", 2.0)
    usual = ClusterOptions(node="any")
    for flag, option in CLUSTER_OPTIONS.items():
        assert flag == "node" or getattr(Settings(), flag) == getattr(usual, option), "two defaults for one thing"


def test_names_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each world: workers, and engines that share a world, are members of one node."""
    url = "file:///tmp/cluster"
    assert Settings(name="pd", cluster=url).node_name("x", 3) == ""  # NanoKVCluster's own default: host and world
    assert Settings(name="pd", cluster=url, node="n").node_name("x", 3) == "n"
    # engines without a name for their world have one each
    assert [Settings(cluster=url, node="n").node_name("x", replica) for replica in (0, 2)] == ["n", "n-2"]
    for host in ("decode-1.example.org", "_" * 60, "a" * 60, "h.b"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names = {Settings(cluster=url).node_name(engine, 0) for engine in ("one", "two")}
        assert len(names) == 2
        for name in names:
            assert ClusterOptions(node=name).node == name
    assert all(name.startswith("h-") for name in names)


def test_who_leases() -> None:
    assert Settings().lease("kv_producer") == PRODUCER_HOLD
    assert Settings().lease("kv_both") is None
    assert Settings(hold=3).lease("kv_both") == 3.0
    assert Settings(hold=0).lease("kv_producer") is None


def test_ranks() -> None:
    assert Settings().ranks(2) == (2, 0, 0)
    assert Settings(name="pd", world_size=4, rank=0, target=2).ranks(2) == (4, 0, 2)
    assert Settings(name="pd", world_size=4, rank=2).ranks(2) == (4, 2, 2)
    # data-parallel engines of one server have the same flags
    assert Settings(name="dp", world_size=6).ranks(2, replica=2) == (6, 4, 4)
    assert Settings(name="dp", world_size=6, rank=2, target=0).ranks(2, replica=1) == (6, 4, 0)
    assert Settings().ranks(2, replica=2) == (2, 0, 0)
    for wrong, says in (
        (Settings(name="pd", world_size=3, rank=2), "2 workers from rank 2 on"),
        (Settings(name="pd", world_size=4, target=4), "nanokv.target=4 is no rank"),
        (Settings(world_size=4), "same nanokv.name"),
        (Settings(rank=2), "same nanokv.name"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            wrong.ranks(2)


def _configs(engines: list[Any]) -> list[dict[str, Any]]:
    lines = [shlex.split(engine.command) for engine in engines]
    return [json.loads(line[line.index("--kv-transfer-config") + 1]) for line in lines if line[0] == "vllm"]


@pytest.mark.parametrize("workers", [1, 4])
def test_printed_engines_make_one_world(workers: int) -> None:
    flags = {"size": "4GiB", "alloc": "host"}
    prefill, decode = _configs(command_lines("m", tensor_parallel=workers, together=False, flags=flags))
    assert (prefill["kv_role"], decode["kv_role"]) == ("kv_producer", "kv_consumer")
    first, second = (parse(config["kv_connector_extra_config"]) for config in (prefill, decode))
    assert first.ranks(workers) == (2 * workers, 0, workers)
    assert second.ranks(workers) == (2 * workers, workers, workers)
    assert (first.rank, second.rank, first.size) == (0, workers, 4 << 30)
    assert first.name == second.name
    mixed = command_lines("m", tensor_parallel=workers, decode_tensor_parallel=2, together=False, flags=flags)
    first, second = (parse(config["kv_connector_extra_config"]) for config in _configs(mixed))
    assert first.ranks(workers) == (workers + 2, 0, workers)
    assert second.ranks(2) == (workers + 2, workers, workers)
    (alone,) = _configs(command_lines("m", tensor_parallel=workers, together=True, flags={}))
    assert alone["kv_role"] == "kv_both"
    # several workers meet in shared memory, by a name that the engine has again when it is started anew
    assert alone["kv_connector_extra_config"] == ({"nanokv.name": "vllm"} if workers > 1 else {})


def test_printed_engines_of_two_hosts() -> None:
    flags = {"cluster": "etcd://registry/llm", "bind": "eth0", "devices": "mlx5_0:1"}
    engines = command_lines("m", tensor_parallel=2, together=False, flags=flags)
    prefill, decode = _configs(engines)
    assert prefill["kv_connector_extra_config"] == decode["kv_connector_extra_config"]
    settings = parse(prefill["kv_connector_extra_config"])
    assert settings.ranks(2) == (2, 0, 0)  # each stores on its own host
    assert (settings.cluster, settings.bind, settings.devices) == ("etcd://registry/llm", "eth0", "mlx5_0:1")
    assert "--prefill PREFILL_HOST:8100 --decode DECODE_HOST:8200" in engines[2].command
    for more, says in (
        ({"node": "n"}, "nanokv.node follows from the engines"),
        ({"name": "pd"}, "nanokv.name follows from the engines"),
        ({"alloc": "host"}, "needs nanokv.alloc=device"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            command_lines("m", tensor_parallel=2, together=False, flags=flags | more)
    with pytest.raises(InvalidArgument, match="same tensor-parallel size"):
        command_lines("m", tensor_parallel=2, decode_tensor_parallel=1, together=False, flags=flags)
    for less, says in (({}, r"nanokv\.bind"), ({"bind": "eth0", "link": "nixl"}, r"nanokv\.devices with NIXL")):
        with pytest.raises(InvalidArgument, match=says):
            command_lines("m", tensor_parallel=1, together=False, flags={"cluster": "etcd://registry/llm"} | less)
    (alone,) = _configs(command_lines("m", tensor_parallel=1, together=True, flags=flags | {"node": "n"}))
    assert parse(alone["kv_connector_extra_config"]).node == "n"


def test_command_line() -> None:
    run = CliRunner().invoke
    printed = run(app, ["vllm-flags", "some model", "--set", "nanokv.hold=5"])
    assert printed.exit_code == 0
    assert re.findall("^# .*", printed.stdout, re.M) == [
        "# prefill; if both run on one GPU, or on CPUs, --kv-memory divides its memory",
        "# decode",
        "# a proxy that sends each request to both",
    ]
    assert "vllm serve 'some model' --port 8100" in printed.stdout
    assert '"nanokv.hold": 5' in printed.stdout
    ports = ("--prefill-port", "1100", "--decode-port", "1200", "--port", "1300", "--kv-memory", "2GiB")
    lines = [line for line in run(app, ["vllm-flags", "m", *ports]).stdout.splitlines() if line[:1] not in ("", "#")]
    assert [" --port 1100 --kv-cache-memory-bytes 2147483648 " in lines[0], " --port 1200 " in lines[1]] == [True, True]
    assert lines[2].endswith("--port 1300 --prefill 1100 --decode 1200")
    assert run(app, ["vllm-flags", "m", "--together", "--port", "1300"]).stdout.count(" --port 1300 ") == 1
    assert len(json.loads(run(app, ["vllm-flags", "--json"]).stdout)) == 3
    listed = run(app, ["vllm-flags", "--list"]).stdout
    assert all(flag in listed for flag, _, _ in flag_texts())
    assert json.loads(run(app, ["vllm-flags", "--list", "--json"]).stdout)[0]["flag"] == "nanokv.name"
    for wrong, says in (("nope=1", "there is no flag"), ("x", "FLAG=VALUE"), ("rank=1", "not to be given")):
        refused = run(app, ["vllm-flags", "--set", wrong])
        assert refused.exit_code == 2
        assert says in refused.output


def test_the_guide_has_all_flags() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text(encoding="utf-8")
    rows = [f"| `{flag}` | `{default}` | {what} |" for flag, default, what in flag_texts()]
    assert "\n".join(rows) in guide

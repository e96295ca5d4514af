"""The flags of vLLM's connector, and the command lines that `nanokv vllm-flags` prints. Without vLLM."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanokv.cli import app
from nanokv.engines.vllm.flags import command_lines, flag_texts
from nanokv.engines.vllm.settings import PRODUCER_HOLD, Settings, parse
from nanokv.errors import InvalidArgument


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
    assert alone["kv_connector_extra_config"] == {}


def test_command_line() -> None:
    run = CliRunner().invoke
    printed = run(app, ["vllm-flags", "some model", "--set", "nanokv.hold=5"])
    assert printed.exit_code == 0
    assert re.findall("^# .*", printed.stdout, re.M) == [
        "# prefill",
        "# decode",
        "# a proxy that sends each request to both",
    ]
    assert "vllm serve 'some model' --port 8100" in printed.stdout
    assert '"nanokv.hold": 5' in printed.stdout
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

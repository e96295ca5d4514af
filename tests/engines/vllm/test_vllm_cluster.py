"""Real vLLM engines on two nodes of a cluster: one loads what the other computed, or computes it if that is killed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.process import EngineFailed, EngineProcess, connector
from tests.engines.vllm.conftest import PROMPTS, TOKENS, but_one, whole_blocks
from tests.engines.vllm.watched import FOLDER, MODULE, counts_of, nodes_of
from tests.support.needed import need_nixl

ROOT = Path(__file__).parents[3]
FEW, OTHERS = PROMPTS[:12], PROMPTS[20:32]
RESTED = 10.0  #: seconds: after a look-up that a stopped node has held up, others are asked again
WAIT = 60.0  #: seconds, far above the usual
HEARD = 2.0  #: seconds: twice the time after which a member knows that it missed events of another


class Node:
    """An engine that is a node of the cluster, and what its workers report."""

    def __init__(
        self,
        model: Path,
        role: str,
        folder: Path,
        flags: dict[str, Any],
        environment: dict[str, str],
        arguments: dict[str, Any],
    ) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        mine = {FOLDER: str(folder), "PYTHONPATH": str(ROOT)}
        transfer = connector(role, **flags) | {"kv_connector_module_path": MODULE}
        self.engine = EngineProcess(model, transfer, mine | environment, **arguments)

    def generate(self, prompts: list[list[int]], tokens: int = TOKENS) -> dict[str, Any]:
        """With an empty prefix cache of vLLM's own."""
        assert self.engine.ask("forget")
        found: dict[str, Any] = self.engine.ask("generate", prompts=prompts, tokens=tokens)
        return found

    @property
    def counts(self) -> dict[str, int]:
        """What its workers have reported so far."""
        return counts_of(self._folder)

    def meet(self, count: int) -> None:
        """Until each worker knows so many nodes."""
        end = time.monotonic() + WAIT
        while not (seen := nodes_of(self._folder)) or any(len(nodes) != count for nodes in seen):
            assert time.monotonic() < end, f"the nodes that are known: {seen}"
            self.engine.ask("generate", prompts=[[1, 2, 3]], tokens=1)  # no whole block; its steps report
            time.sleep(0.05)

    def kill_before_load(self, other: EngineProcess) -> None:
        """At the next look-up that finds blocks, kill another engine before they are loaded."""
        (self._folder / "kill").write_text(str(other.pid))


StartNodes = Callable[..., tuple[Node, Node]]


@pytest.fixture
def start_nodes(model: Path, tmp_path: Path) -> Iterator[StartNodes]:
    """start_nodes(roles, environment, arguments of vLLM, **flags) -> two engines, each with a world of its own."""
    with ExitStack() as stack:

        def start(
            roles: tuple[str, str] = ("kv_both", "kv_both"),
            environment: dict[str, str] | None = None,
            arguments: dict[str, Any] | None = None,
            **flags: Any,
        ) -> tuple[Node, Node]:
            usual = {"cluster": f"file://{tmp_path}/cluster", "size": "64MiB", "cluster_ttl": 2}
            nodes = [
                Node(model, role, tmp_path / name, usual | flags | {"node": name}, environment or {}, arguments or {})
                for name, role in zip(("a", "b"), roles, strict=True)
            ]
            for node in nodes:
                stack.callback(node.engine.close)
            for node in nodes:
                node.engine.wait()
            for node in nodes:
                node.meet(2)
            time.sleep(HEARD)
            return nodes[0], nodes[1]

        yield start


@pytest.mark.parametrize("guests", [0, 2])
def test_one_host_computes_another_loads(start_nodes: StartNodes, guests: int, expected: list[list[int]]) -> None:
    one, two = start_nodes(guests=guests)
    prompts = FEW + OTHERS
    assert one.generate(prompts)["tokens"] == expected[:12] + expected[20:32]
    time.sleep(HEARD)
    found = two.generate(FEW)
    assert (found["tokens"], found["cached"]) == (expected[:12], whole_blocks(FEW))
    counts = two.counts
    assert 0 < counts["remote"] <= counts["loaded"] and not counts["lost"]
    assert "remote" not in one.counts or not one.counts["remote"]
    maps = Path(f"/proc/{two.engine.pid}/maps").read_text(encoding="utf-8").splitlines()
    assert len({line.split()[4] for line in maps if "memfd:nanokv" in line}) == (
        2 if guests else 0
    )  # its own, and theirs

    # here now: no other node is asked for them again
    assert two.generate(FEW)["tokens"] == expected[:12]
    assert two.counts["remote"] == counts["remote"] and two.counts["loaded"] > counts["loaded"]

    # the control: what is loaded is what the other one stored
    assert two.engine.ask("drop", after_lookup=False) > 0 and one.engine.ask("alter") > 0
    altered = two.generate(FEW)["tokens"]
    assert all(mine != theirs for mine, theirs in zip(altered, expected, strict=False))
    assert two.engine.ask("drop", after_lookup=False) > 0

    one.engine.kill()
    found = two.generate(OTHERS)
    assert found["tokens"] == expected[20:32]
    two.meet(1)
    assert two.generate(FEW)["tokens"] == expected[:12]  # and it stores again, on its own node
    assert two.generate(FEW)["cached"] == whole_blocks(FEW)


def test_a_host_dies_between_look_up_and_load(start_nodes: StartNodes, expected: list[list[int]]) -> None:
    """Layer by layer: blocks of the look-up are computed, and nothing is stored of what was computed on them before."""
    one, two = start_nodes(load="layer")
    one.generate(FEW, tokens=1)
    time.sleep(HEARD)
    loses(two, one.engine, expected)


@pytest.mark.parametrize("link", ["wire", "nixl"])
def test_a_host_is_stopped_and_goes_on_and_dies(start_nodes: StartNodes, link: str, expected: list[list[int]]) -> None:
    if link == "nixl":
        need_nixl()
    one, two = start_nodes(environment={"UCX_TLS": "tcp"}, link=link, cluster_timeout=0.5)
    one.generate([*FEW, *OTHERS[:1]], tokens=1)
    time.sleep(HEARD)
    os.kill(one.engine.pid, signal.SIGSTOP)
    assert two.generate(OTHERS[:1])["tokens"] == expected[20:21]  # its blocks cannot be read, and are computed
    assert not two.counts.get("remote")
    two.meet(1)
    os.kill(one.engine.pid, signal.SIGCONT)
    two.meet(2)
    time.sleep(RESTED)
    loses(two, one.engine, expected)


def loses(node: Node, other: EngineProcess, expected: list[list[int]]) -> None:
    """Another engine is killed before blocks of it are loaded: no request fails, and every token is right."""
    before = node.counts["lost"] if node.counts else 0
    node.kill_before_load(other)
    found = node.generate(FEW)
    assert found["tokens"] == expected[:12]
    assert set(found["reasons"]) == {"length"}
    assert node.counts["lost"] > before
    assert "are gone, and are computed" in node.engine.log()
    assert node.generate(OTHERS)["tokens"] == expected[20:32]


def test_prefill_on_one_host_and_decode_on_another(start_nodes: StartNodes, expected: list[list[int]]) -> None:
    """With the last, partly filled block of each prompt."""
    prefill, decode = start_nodes(("kv_producer", "kv_consumer"))
    cached = []
    for number, prompt in enumerate(FEW):
        prefill.engine.ask("generate", prompts=[prompt], tokens=1)
        found = decode.generate([prompt])  # at once, as a proxy does
        assert found["tokens"] == [expected[number]]
        cached += found["cached"]
    assert decode.counts["remote"] > 0
    assert sum(cached) > sum(but_one(FEW)) / 2  # all of them, unless this machine is so slow that events come later
    time.sleep(HEARD)
    assert decode.engine.ask("drop", after_lookup=False) > 0
    assert decode.generate(FEW)["cached"] == but_one(FEW)


def test_tensor_parallel_workers_of_two_hosts(start_nodes: StartNodes) -> None:
    """Each worker is a member of its node, and loads its heads from the other one."""
    one, two = start_nodes(environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, arguments={"tensor_parallel_size": 2})
    computed = one.generate(FEW)["tokens"]
    time.sleep(HEARD)
    found = two.generate(FEW)
    assert (found["tokens"], found["cached"]) == (computed, whole_blocks(FEW))
    assert two.counts["remote"] > 0 and not two.counts["lost"]
    one.engine.kill()
    assert two.generate(FEW)["tokens"] == computed


def test_a_cluster_that_cannot_be_joined(model: Path, tmp_path: Path) -> None:
    """The engine says why, and does not start without it."""
    flags = {"cluster": f"file://{tmp_path}", "bind": "192.0.2.1", "size": "64MiB"}
    with (
        EngineProcess(model, connector("kv_both", **flags)) as engine,
        pytest.raises(EngineFailed, match=r"192\.0\.2\.1"),
    ):
        engine.wait()

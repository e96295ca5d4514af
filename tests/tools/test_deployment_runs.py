"""examples/deploy: its containers as processes, with the probes of the manifests; and what docs/deployment.md runs."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.etcd_server import needs_etcd
from tests.support.manifests import ROOT, one
from tests.support.needed import is_needed

if not is_needed("nixl"):
    pytest.importorskip("zmq", reason="a cluster needs the extra nanokv[cluster]")

from nanokv.cluster.membership import open_membership
from nanokv.cluster.membership.addresses import EtcdAddress, parse
from nanokv.cluster.membership.etcd_keys import Keys, text64
from tests.support.pods import BASE, WAIT, Cluster, until

DOCUMENT = ROOT / "docs" / "deployment.md"

NODE = one(BASE, "StatefulSet", "nanokv")

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The etcd of the manifests, which is ready. After the test nothing is left in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        found = Cluster(tmp_path, Path(shm))
        try:
            found.etcd.start()
            found.wait_ready(found.etcd)
            yield found
        finally:
            found.end()


@needs_etcd
@pytest.mark.exhaustive
def test_nodes_join_serve_and_leave(cluster: Cluster) -> None:
    nodes = [cluster.node(number).start() for number in range(NODE["spec"]["replicas"])]
    cluster.wait_ready(*nodes)
    assert all(pod.is_well("livenessProbe") for pod in nodes)
    with contextlib.ExitStack() as stack:
        member = cluster.member(stack)
        until(lambda: len(member.nodes) == len(nodes) + 1, lambda: str(member.nodes))
        member.put("key", torch.arange(1000), preferred_segment=("nanokv-1", None))
        assert torch.equal(member.get("key"), torch.arange(1000))
        leaver = nodes[1]
        grace = NODE["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert leaver.end(signal.SIGTERM, grace) == 0, leaver.said()
        with open_membership(cluster.url) as registry:  # the lease of a killed one would be there still
            assert "nanokv-1.0" not in registry.members()
        until(lambda: "nanokv-1" not in member.nodes, lambda: str(member.nodes))
        assert member.get("key", None) is None
        assert "has left in" in leaver.said()
    assert not list(Path(leaver.more["NANOKV_SHM_DIR"]).iterdir())
    assert all(pod.is_well("readinessProbe") for pod in (nodes[0], nodes[2]))


@needs_etcd
@pytest.mark.exhaustive
def test_ready_only_while_the_registry_answers(cluster: Cluster) -> None:
    pod = cluster.node(0).start()
    cluster.wait_ready(pod)
    cluster.etcd.signal(signal.SIGSTOP)
    until(lambda: not pod.is_well("readinessProbe"), pod.said)
    assert pod.is_well("livenessProbe")
    cluster.etcd.signal(signal.SIGCONT)
    cluster.wait_ready(pod)
    cluster.etcd.end(signal.SIGKILL)
    until(lambda: not pod.is_well("readinessProbe"), pod.said)
    assert pod.is_well("livenessProbe")
    shutil.rmtree(cluster.etcd.log.parent / "etcd")  # it comes back empty: its volume is an emptyDir
    cluster.etcd.start()
    cluster.wait_ready(pod)
    assert pod.end(signal.SIGTERM) == 0, pod.said()


@needs_etcd
@pytest.mark.exhaustive
def test_ready_only_while_the_card_is_its_own(cluster: Cluster) -> None:
    pod = cluster.node(0).start()
    cluster.wait_ready(pod)
    address = parse(cluster.url)
    assert isinstance(address, EtcdAddress)
    key = text64(Keys(address.name).member("nanokv-0.0").encode())
    cluster.ask_etcd("/v3/kv/put", key=key, value=text64(b"somebody else"))
    until(lambda: not pod.is_well("readinessProbe"), pod.said)
    assert pod.is_well("livenessProbe")
    assert not pod.is_well("readinessProbe")
    cluster.ask_etcd("/v3/kv/deleterange", key=key)
    cluster.wait_ready(pod)
    assert pod.end(signal.SIGTERM) == 0, pod.said()


@needs_etcd
@pytest.mark.exhaustive
def test_a_container_that_restarts_finds_its_objects(cluster: Cluster) -> None:
    pod = cluster.node(0).start()
    cluster.wait_ready(pod)
    with contextlib.ExitStack() as stack:
        member = cluster.member(stack)
        until(lambda: "nanokv-0" in member.nodes, lambda: str(member.nodes))
        member.put("key", torch.arange(1000), preferred_segment=("nanokv-0", None))
        pod.end(signal.SIGKILL)
        until(lambda: "nanokv-0" not in member.nodes, lambda: str(member.nodes))
        pod.start()
        cluster.wait_ready(pod)
        until(lambda: member.get("key", None) is not None, pod.said)
        assert torch.equal(member.get("key"), torch.arange(1000))
    assert pod.end(signal.SIGTERM) == 0, pod.said()


@needs_etcd
@pytest.mark.exhaustive
def test_what_ends_a_node_is_told(cluster: Cluster) -> None:
    (secret,) = one(BASE, "Secret")["stringData"].values()
    unchanged = cluster.node(0, NANOKV_CLUSTER_SECRET=secret).start()
    assert unchanged.process is not None and unchanged.process.wait(WAIT) == 2
    assert "NANOKV_CLUSTER_SECRET must have at least 16 bytes" in unchanged.said()
    cluster.etcd.end(signal.SIGKILL)
    alone = cluster.node(1).start()
    assert alone.process is not None and alone.process.wait(WAIT) == 1
    assert "ClusterUnavailable" in alone.said() and "Traceback" not in alone.said()


@needs_etcd
@pytest.mark.exhaustive
def test_a_rolling_restart(cluster: Cluster) -> None:
    nodes = [cluster.node(number).start() for number in range(2)]
    cluster.wait_ready(*nodes)
    with contextlib.ExitStack() as stack:
        member = cluster.member(stack)
        until(lambda: len(member.nodes) == 3, lambda: str(member.nodes))
        keys = [f"key-{i}" for i in range(100)]
        homes = [member.home(key) for key in keys]
        for pod in nodes:
            gone = [key for key, home in zip(keys, homes, strict=True) if home == pod.name]
            lost = [key for key in keys if member.get(key, None) is None]
            assert member.put_many(lost, [torch.ones(10)] * len(lost)) == [None] * len(lost)
            assert pod.end(signal.SIGTERM) == 0, pod.said()
            until(lambda pod=pod: pod.name not in member.nodes, lambda: str(member.nodes))  # type: ignore[misc]
            assert [key for key in keys if member.get(key, None) is None] == gone
            pod.start()
            cluster.wait_ready(pod)
            until(lambda: len(member.nodes) == 3, lambda: str(member.nodes))
        assert [member.home(key) for key in keys] == homes


# --- in namespaces, as root ---
def may_make_namespaces() -> bool:
    """Whether this user may."""
    name = f"probe-{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


@pytest.fixture
def apart() -> None:
    """Skip where there are no namespaces."""
    if not may_make_namespaces():
        pytest.skip("needs root, and `ip`")


@needs_etcd
@pytest.mark.exhaustive
def test_by_hand_as_the_document_says(apart: None, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    (script,) = re.findall(r"```bash\n(python -m nanokv\.check\.lab\.layout up.*?)```", DOCUMENT.read_text(), re.S)
    name = f"trial{os.getpid()}"
    script = re.sub(r"\btrial\b", name, script)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "NANOKV_SHM_DIR": shm}
        try:
            command = ["bash", "-euc", script]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
        finally:
            down = [sys.executable, "-m", "nanokv.check.lab.layout", "down", name]
            subprocess.run(down, cwd=ROOT, check=False, timeout=60)  # if the script did not come to that
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("yes\n") == done.stdout.count("alive") == done.stdout.count("has left in") == 3
        assert done.stdout.count("clean") == 3, done.stdout
        assert not list(Path(shm).iterdir())
    assert name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@pytest.mark.exhaustive
def test_all_ports_are_of_the_range(apart: None, tmp_path: Path) -> None:
    (container,) = NODE["spec"]["template"]["spec"]["containers"]
    (option,) = [word for word in container["args"] if word.startswith("--ports=")]
    low, high = map(int, option.partition("=")[2].split("-"))
    name = f"ports-{os.getpid()}"
    enter = ["ip", "netns", "exec", name]
    words = [f"file://{tmp_path}/registry", "--node=n", "--heap=16Mi", f"--world={name}", "--status=8790", option]
    subprocess.run(["ip", "netns", "add", name], check=True)
    process = None
    try:
        subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=True)
        process = subprocess.Popen(
            [*enter, sys.executable, "-m", "examples.deploy.node", *words], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None and b"lends" in process.stdout.readline()
        ports = _listening(process.pid) - {8790}
        assert len(ports) == 2 and all(low <= port <= high for port in ports), ports
    finally:
        if process is not None:
            process.terminate()
            process.communicate(timeout=60)
        subprocess.run(["ip", "netns", "del", name], check=True)
    assert process.returncode == 0


def _listening(pid: int) -> set[int]:
    """The TCP ports at which a process' network namespace listens."""
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return {int(row.split()[1].split(":")[1], 16) for row in rows if row.split()[3] == "0A"}

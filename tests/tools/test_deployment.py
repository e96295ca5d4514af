"""examples/deploy: the manifests are consistent; what the program answers. test_deployment_runs.py runs them."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from tests.support import manifests
from tests.support.manifests import KUBERNETES, ROOT, containers, nbytes, of, one
from tests.support.needed import is_needed

if not is_needed("nixl"):
    pytest.importorskip("zmq", reason="a cluster needs the extra nanokv[cluster]")

from examples.deploy import node, probes
from examples.deploy.metrics import GAUGES, exposition
from nanokv import NanoKVCluster
from nanokv.cluster import staging
from nanokv.cluster.membership.addresses import EtcdAddress, parse
from nanokv.cluster.options import ClusterOptions
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import InvalidArgument, WaitTimeout

DOCUMENT = ROOT / "docs" / "deployment.md"
PROCESS_BYTES = 600 << 20  #: of a node beside its heap and its staging: measured, docs/deployment.md

BASE = manifests.read(KUBERNETES / "base")
RDMA = manifests.read(KUBERNETES / "rdma")
NODE = one(BASE, "StatefulSet", "nanokv")
CONFIG = one(BASE, "ConfigMap")["data"]


# --- the manifests by themselves ---
def test_every_file_is_part_of_a_kustomization() -> None:
    for folder, found in ((KUBERNETES / "base", BASE), (KUBERNETES / "rdma", RDMA)):
        named = {*found[0]["resources"], *(patch["path"] for patch in found[0].get("patches", []))} - {"../base"}
        assert named | {"kustomization.yaml"} == {path.name for path in folder.iterdir()}
    assert {container["image"] for container, _ in containers(BASE)} == {each["name"] for each in BASE[0]["images"]}


def test_what_containers_refer_to_exists() -> None:
    for container, pod in containers(BASE):
        names = {each["name"] for each in container["env"]}
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= names
        for each in container["env"]:
            for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
                source = each.get("valueFrom", {}).get(key)
                if source:
                    found = one(BASE, kind, source["name"])
                    assert source["key"] in (found.get("data") or found["stringData"])
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        for probe in ("readinessProbe", "livenessProbe"):
            if probe in container:
                manifests.probe_port(container, container[probe])


def test_selectors_match() -> None:
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in of(BASE, "StatefulSet")
    }
    ports = {each["metadata"]["name"]: _port_names(each) for each in of(BASE, "StatefulSet")}
    for each in of(BASE, "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = each["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        wanted = selector.get("matchLabels", selector)
        matched = [name for name, labels in pods.items() if wanted.items() <= labels.items()]
        assert len(matched) == 1, each
        if each["kind"] == "StatefulSet":
            assert one(BASE, "Service", spec["serviceName"]) and matched == [each["metadata"]["name"]]
        if each["kind"] == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= ports[matched[0]]
        for rule in spec.get("ingress", []):
            named = {port["port"] for port in rule["ports"] if isinstance(port["port"], str)}
            assert named <= ports[matched[0]]


def _port_names(stateful_set: dict[str, Any]) -> set[str]:
    return {port["name"] for each in stateful_set["spec"]["template"]["spec"]["containers"] for port in each["ports"]}


def test_the_range_of_ports_is_the_same_everywhere() -> None:
    (container,) = NODE["spec"]["template"]["spec"]["containers"]
    (ports,) = [word.partition("=")[2] for word in container["args"] if word.startswith("--ports=")]
    ranges = [
        (port["port"], port["endPort"])
        for policy in of(BASE, "NetworkPolicy")
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
        if "endPort" in port
    ]
    assert [tuple(map(int, ports.split("-")))] == ranges


def test_the_registry_is_the_service_of_etcd() -> None:
    address = parse(CONFIG["registry"])
    assert isinstance(address, EtcdAddress)
    ((host, port),) = address.endpoints
    assert one(BASE, "Service", host)["spec"]["ports"][0]["port"] == port


def test_memory_is_enough() -> None:
    pod = NODE["spec"]["template"]["spec"]
    heap, page = nbytes(CONFIG["heap"]), nbytes(CONFIG["page"])
    (volume,) = [each["emptyDir"] for each in pod["volumes"] if each["name"] == "memory"]
    resources = pod["containers"][0]["resources"]
    assert volume["medium"] == "Memory"
    assert Geometry.plan(heap, page, 1).segment_bytes <= nbytes(volume["sizeLimit"])
    most = Geometry.plan(heap, page, 1).segment_bytes + 2 * staging._KEPT + PROCESS_BYTES
    assert most <= nbytes(resources["limits"]["memory"]) == nbytes(resources["requests"]["memory"])


def test_the_secret_that_is_to_be_replaced_is_refused() -> None:
    (secret,) = one(BASE, "Secret")["stringData"].values()
    with pytest.raises(InvalidArgument, match="at least 16 bytes"):
        ClusterOptions(node="n", secret=secret.encode())


@pytest.mark.parametrize("name", ["base", "rdma"])
def test_kubernetes_would_take_it(name: str) -> None:
    """By the schemas of some of its versions; with patches, where there is a kubectl."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    yaml = pytest.importorskip("yaml")
    found = BASE[1:]
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", str(KUBERNETES / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        found = list(yaml.safe_load_all(done.stdout))
    elif name == "rdma":
        pytest.skip("there is no kubectl, which applies patches")
    assert len(found) == len(BASE) - 1
    for version in ("1.27", "1.32"):
        for each in found:
            validate.validate(each, version, strict=True)


# --- the program, in this process ---
@pytest.mark.parametrize(("text", "expected"), [("8Gi", 8 << 30), ("256Ki", 256 << 10), ("4096", 4096)])
def test_sizes(text: str, expected: int) -> None:
    assert node.size(text) == expected


@pytest.mark.parametrize("text", ["8G", "-1", "", "8 Gi"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(Exception, match="a size is like"):
        node.size(text)


class _Card:
    """A registry, and a cluster, that say what a test wants."""

    def __init__(self) -> None:
        self.away = self.registry_away = 0.0
        self.card: bytes | None = b"mine"
        self.world = self
        self.hangs = False

    def away_for(self) -> float:
        return self.away

    def members(self) -> dict[str, bytes]:
        return {} if self.card is None else {"n.0": self.card}

    def flush(self, *, timeout: float) -> None:
        if self.hangs:
            raise WaitTimeout("the poller did not come round")


def test_ready_is_the_lease_and_live_is_the_poller() -> None:
    asked, stub = probes.Probes("n"), _Card()
    assert (asked.why_not_ready(), asked.why_dead()) == ("has not joined yet", "")
    asked._cluster = asked._registry = stub  # type: ignore[assignment]
    asked._member, asked._card = "n.0", b"mine"
    assert (asked.why_not_ready(), asked.why_dead()) == ("", "")
    for away in ("away", "registry_away"):
        setattr(stub, away, 2.5)
        assert "has not answered for 2.5 s" in asked.why_not_ready() and not asked.why_dead()
        setattr(stub, away, 0.0)
    for card, why in ((None, "no card of this node"), (b"another", "another process' card")):
        stub.card = card
        assert why in asked.why_not_ready() and not asked.why_dead()
    stub.card, stub.hangs = b"mine", True
    assert not asked.why_not_ready() and "come round" in asked.why_dead()
    asked.leave()
    assert (asked.why_not_ready(), asked.why_dead()) == ("leaving", "")


def test_metrics_are_those_of_stats(tmp_path: Path) -> None:
    with (
        nanokv.NanoKVCache(4 << 20, page_bytes=4096) as world,
        NanoKVCluster(world, f"file://{tmp_path}/cluster", node="n") as cluster,
    ):
        cluster.put("key", torch.ones(3))
        stats = cluster.stats()
    assert set(GAUGES) <= stats.keys()
    lines = exposition("n", stats, is_ready=True).splitlines()
    assert all(re.fullmatch(r'# TYPE nanokv_\w+ (gauge|counter)|nanokv_\w+\{node="n"\} -?[0-9.e+-]+', x) for x in lines)
    assert 'nanokv_node_ready{node="n"} 1' in lines and 'nanokv_nodes{node="n"} 1' in lines
    assert 'nanokv_puts_total{node="n"} 1' in lines
    told = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert len(told) == len(lines) // 2
    if DOCUMENT.exists():
        assert set(re.findall(r"`(nanokv_\w+)`", DOCUMENT.read_text())) <= told

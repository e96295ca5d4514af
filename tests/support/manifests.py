"""The manifests of examples/deploy as a cluster would read them: objects by kind and name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "examples" / "deploy" / "kubernetes"
Manifest = dict[str, Any]


def read(folder: Path) -> list[Manifest]:
    """All objects in the files of a folder that its kustomization names as resources or patches."""
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra nanokv[demo]")
    (kustomization,) = yaml.safe_load_all((folder / "kustomization.yaml").read_text())
    names = [name for name in kustomization["resources"] if name.endswith(".yaml")]
    names += [patch["path"] for patch in kustomization.get("patches", [])]
    found = [kustomization]
    for name in names:
        found += yaml.safe_load_all((folder / name).read_text())
    return found


def one(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The only object of a kind, or of a kind and a name."""
    (found,) = [each for each in manifests if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found


def of(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """All objects of some kinds."""
    return [each for each in manifests if each["kind"] in kinds]


def containers(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Each container, and the specification of its Pod."""
    for each in of(manifests, "StatefulSet"):
        pod = each["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield container, pod


def nbytes(quantity: str) -> int:
    """Of a quantity as Kubernetes writes it: 8Gi."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity)
    assert found is not None, quantity
    return int(found[1]) << {"Ki": 10, "Mi": 20, "Gi": 30}[found[2]]


def probe_port(container: Manifest, probe: Manifest) -> int:
    """The port that a probe asks, which it may name."""
    port = probe["httpGet"]["port"]
    (found,) = [each["containerPort"] for each in container["ports"] if port in (each["name"], each["containerPort"])]
    return int(found)

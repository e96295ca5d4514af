"""The containers of the manifests of examples/deploy as processes of this host, with the probes of kubelet."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nanokv
from nanokv import NanoKVCluster
from tests.support import until as waits
from tests.support.manifests import KUBERNETES, ROOT, Manifest, one, probe_port, read

SECRET = "a secret of these tests alone"
WAIT = 240.0  #: seconds, far above the usual: the first node may compile
until = partial(waits.until, seconds=WAIT)

BASE = read(KUBERNETES / "base")
CONFIG = one(BASE, "ConfigMap")["data"]


@dataclass
class Pod:
    """A container of the manifests as a process of this host.

    Attributes:
        address: of the Pod: 127.x.y.z, so each has all ports.
        changes: what the manifests say, and what stands here in its place, in arguments and in the environment.
        more: of the environment.
    """

    manifests: list[Manifest]
    stateful_set: str
    name: str
    address: str
    changes: Mapping[str, str]
    more: Mapping[str, str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def container(self) -> Manifest:
        """What the manifests say of it."""
        found: Manifest = one(self.manifests, "StatefulSet", self.stateful_set)["spec"]["template"]["spec"][
            "containers"
        ][0]
        return found

    def environment(self) -> dict[str, str]:
        """What the container finds in its environment."""
        fields = {"metadata.name": self.name, "status.podIP": self.address}
        found = {}
        for each in self.container["env"]:
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            elif "configMapKeyRef" in source:
                value = one(self.manifests, "ConfigMap", source["configMapKeyRef"]["name"])["data"][
                    source["configMapKeyRef"]["key"]
                ]
            elif "secretKeyRef" in source:
                secret = one(self.manifests, "Secret", source["secretKeyRef"]["name"])
                value = secret["stringData"][source["secretKeyRef"]["key"]]
            else:
                value = each["value"]
            found[each["name"]] = self._changed(value)
        return found

    def command(self) -> list[str]:
        """With `$(NAME)` as kubelet replaces it."""
        environment = self.environment()
        words = [*self.container["command"], *self.container["args"]]
        words = [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in words]
        words = [self._changed(word) for word in words]
        return [sys.executable, *words[1:]] if words[0] == "python" else words

    def _changed(self, text: str) -> str:
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text

    def start(self) -> "Pod":
        """Start it. Its log goes on after that of a process before it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | self.environment() | dict(self.more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def is_well(self, probe: str) -> bool:
        """What kubelet finds by one of its probes: "readinessProbe" or "livenessProbe"."""
        asked = self.container[probe]
        url = f"http://{self.address}:{probe_port(self.container, asked)}{asked['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return bool(200 <= answer.status < 400)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int, seconds: float = 60.0) -> int:
        """Send a signal that ends it. Returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(seconds)


class Cluster:
    """Pods of the manifests on loopback, each at an address of its own, with a /dev/shm of its own."""

    def __init__(self, folder: Path, shm: Path) -> None:
        self._folder, self._shm = folder, shm
        self._net = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"
        self.etcd = Pod(
            BASE, "nanokv-etcd", "nanokv-etcd-0", f"{self._net}.1", {"/data": str(folder)}, {}, folder / "etcd.log"
        )
        self.pods = [self.etcd]
        self.clients = f"http://{self.etcd.address}:2379"
        self.url = CONFIG["registry"].replace("nanokv-etcd", self.etcd.address)

    def node(self, number: int, **more: str) -> Pod:
        """The Pod of a number. Its heap is smaller than in the manifests, its interface is that of loopback."""
        shm = self._shm / str(number)
        shm.mkdir(exist_ok=True)
        (secret,) = one(BASE, "Secret")["stringData"].values()
        changes = {"nanokv-etcd": self.etcd.address, "eth0": "lo", CONFIG["heap"]: "16Mi", secret: SECRET}
        cache = os.environ.get("NANOKV_CACHE_DIR", "")  # no folder of its own: it would compile
        environment = {"NANOKV_SHM_DIR": str(shm), "NANOKV_CACHE_DIR": cache} | more
        name = f"nanokv-{number}"
        pod = Pod(
            BASE, "nanokv", name, f"{self._net}.{10 + number}", changes, environment, self._folder / f"{name}.log"
        )
        self.pods.append(pod)
        return pod

    def wait_ready(self, *pods: Pod) -> None:
        """Wait until their readiness probes succeed."""
        for pod in pods:
            until(lambda pod=pod: pod.is_well("readinessProbe"), pod.said)  # type: ignore[misc]

    def member(self, stack: contextlib.ExitStack) -> NanoKVCluster:
        """This process as a member."""
        world = stack.enter_context(nanokv.NanoKVCache(4 << 20, page_bytes=4096))
        return stack.enter_context(NanoKVCluster(world, self.url, node="test", secret=SECRET.encode(), timeout=10.0))

    def ask_etcd(self, path: str, **body: str) -> None:
        """A request to the gateway of etcd."""
        request = urllib.request.Request(self.clients + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def end(self) -> None:
        """Kill what runs still."""
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.signal(signal.SIGCONT)
                pod.end(signal.SIGKILL)

"""Hosts on one machine: network namespaces on one bridge, and an etcd beside it. Needs root; needs no root on loopback.

    python -m nanokv.check.lab.layout up lab --nodes 3
    python -m nanokv.check.lab.layout down lab

The bridge and etcd have a namespace of their own too. So nothing of the machine's network changes, its firewall sees
none of the packets, and several layouts of other names do not meet, though all have the same addresses.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanokv.check.lab.etcd import Etcd, free_ports, is_installed

SUBNET = "10.77.0"  #: of every layout
HUB = "hub"  #: the namespace of the bridge and of etcd
CLIENTS, PEERS = 2379, 2380  #: ports of etcd in the hub
DEVICE = "eth0"  #: of a host, in its namespace
COMMAND_SECONDS = 10.0  #: for one call of `ip`, which takes milliseconds
END_SECONDS = 10.0  #: for processes that were killed
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class LayoutError(Exception):
    """The hosts cannot be laid out on this machine."""


@dataclass(frozen=True, slots=True)
class Host:
    """A place for a node.

    Attributes:
        address, device: of its network; for the options `bind` and `devices` of `NanoKVCluster`.
        enter: begins a command line that runs there.
    """

    name: str
    address: str
    device: str
    enter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabLayout:
    """Hosts, and what they share.

    Attributes:
        registry: the URL of the cluster.
        folder: for logs and the like; it goes with the layout.
        is_apart: whether each host has a namespace of its own.
        etcd: None: the registry is a folder.
    """

    name: str
    hosts: tuple[Host, ...]
    registry: str
    folder: Path
    is_apart: bool
    etcd: Etcd | None

    def bytes_moved(self) -> int | None:
        """Bytes that all hosts have sent to the bridge; None without one."""
        if not self.is_apart:
            return None
        links = json.loads(ip("-n", namespace(self.name, HUB), "-j", "-s", "link", "show", "type", "veth"))
        moved: int = sum(link["stats64"]["rx"]["bytes"] for link in links)
        return moved


# --- namespaces -------------------------------------------------------------------------------
def up(name: str, hosts: Sequence[str]) -> LabLayout:
    """Lay out a host for each name, and start etcd where it is installed; `down` takes all of it away.

    Raises:
        LayoutError: this user may not, `ip` is not there, or it failed. Nothing is left then.
    """
    _check(name, hosts)
    folder = _make_folder(name)
    try:
        places = tuple(_host(name, host, f"{SUBNET}.{11 + i}") for i, host in enumerate(hosts))
        _add_hub(name)
        for place in places:
            _add_host(name, place)
        address = f"{SUBNET}.1"
        etcd = Etcd(folder, address, CLIENTS, PEERS, _enter(name, HUB)) if is_installed() else None
        registry = _registry(name, folder, address, CLIENTS)
        return LabLayout(name, places, registry, folder, is_apart=True, etcd=etcd)
    except BaseException:
        down(name)
        raise


def down(name: str) -> None:
    """Take a layout away, with every process that runs in its namespaces. Idempotent."""
    listed = ip("netns", "list").split("\n")
    found = [line.split()[0] for line in listed if line.startswith(namespace(name, ""))]
    end = time.monotonic() + END_SECONDS
    for each in found:
        while (pids := ip("netns", "pids", each).split()) and time.monotonic() < end:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)
        ip("netns", "del", each)
    shutil.rmtree(_folder(name), ignore_errors=True)


def _check(name: str, hosts: Sequence[str]) -> None:
    for each in (name, *hosts):
        if not _NAME.fullmatch(each):
            raise LayoutError(f"a name has 1 to 32 of a-z, 0-9 and -, not {each!r}")
    if len({*hosts, HUB}) != len(hosts) + 1 or not 0 < len(hosts) <= 200:
        raise LayoutError(f"1 to 200 hosts, each of another name than the others and {HUB!r}")
    if shutil.which("ip") is None:
        raise LayoutError("there is no `ip` (Debian: iproute2)")
    if os.geteuid() != 0:
        raise LayoutError("only root may make them")


def _add_hub(name: str) -> None:
    hub = namespace(name, HUB)
    ip("netns", "add", hub)
    ip("-n", hub, "link", "set", "lo", "up")
    ip("-n", hub, "link", "add", "bridge", "type", "bridge")
    ip("-n", hub, "address", "add", f"{SUBNET}.1/24", "dev", "bridge")
    ip("-n", hub, "link", "set", "bridge", "up")


def _add_host(name: str, host: Host) -> None:
    hub, own, port = namespace(name, HUB), namespace(name, host.name), f"port{host.address.split('.')[-1]}"
    ip("netns", "add", own)
    ip("-n", own, "link", "set", "lo", "up")
    ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", host.device, "netns", own)
    ip("-n", hub, "link", "set", port, "master", "bridge", "up")
    ip("-n", own, "address", "add", f"{host.address}/24", "dev", host.device)
    ip("-n", own, "link", "set", host.device, "up")


def _host(name: str, host: str, address: str) -> Host:
    return Host(host, address, DEVICE, _enter(name, host))


def _enter(name: str, host: str) -> tuple[str, ...]:
    return "ip", "netns", "exec", namespace(name, host)  # it becomes the command: the process id stays


def namespace(name: str, host: str) -> str:
    """The network namespace of a host, or of the HUB, of a layout."""
    return f"{name}.{host}"  # no name has a dot, so none is the beginning of another one's namespaces


def ip(*arguments: str) -> str:
    """What a call of `ip` prints.

    Raises:
        LayoutError: it failed, or did not end within COMMAND_SECONDS.
    """
    try:
        done = subprocess.run(
            ["ip", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LayoutError(f"`ip` does not work: {error}") from None
    if done.returncode:
        raise LayoutError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


# --- what every layout has --------------------------------------------------------------------
@contextlib.contextmanager
def namespaces(name: str, hosts: Sequence[str]) -> Iterator[LabLayout]:
    """A layout of namespaces for as long as the block runs. Raises as `up`."""
    layout = up(name, hosts)
    try:
        yield layout
    finally:
        if layout.etcd is not None:
            layout.etcd.kill()
        down(name)


@contextlib.contextmanager
def loopback(name: str, hosts: Sequence[str], *, own_session: bool = True) -> Iterator[LabLayout]:
    """Lay the hosts out on loopback: no namespaces, and no root needed.

    Args:
        own_session: of etcd, see `Etcd`.

    Raises:
        LayoutError: a layout of this name was not taken down.
    """
    folder = _make_folder(name)
    etcd = None
    try:
        address = "127.0.0.1"
        clients, peers = free_ports(2)
        etcd = Etcd(folder, address, clients, peers, own_session=own_session) if is_installed() else None
        places = tuple(Host(host, address, "lo") for host in hosts)
        yield LabLayout(name, places, _registry(name, folder, address, clients), folder, is_apart=False, etcd=etcd)
    finally:
        if etcd is not None:
            etcd.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _folder(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{name}.layout"


def _make_folder(name: str) -> Path:
    folder = _folder(name)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        raise LayoutError(f"{folder} is there already: a layout of this name was not taken down") from None
    return folder


def _registry(name: str, folder: Path, address: str, port: int) -> str:
    """The registry; where there is no etcd a folder, which all hosts of this machine see."""
    return f"etcd://{address}:{port}/{name}" if is_installed() else f"file://{folder}/members"


# --- on the command line ----------------------------------------------------------------------
def main() -> int:
    """`up NAME` and `down NAME`."""
    parser = argparse.ArgumentParser(prog="python -m nanokv.check.lab.layout", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("up", "down"))
    parser.add_argument("name")
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    try:
        if given.what == "down":
            down(given.name)
            return 0
        layout = up(given.name, [f"node{i}" for i in range(1, given.nodes + 1)])
    except LayoutError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"registry  {layout.registry}")
    for host in layout.hosts:
        print(f'{host.name}  bind="{host.address}", devices="{host.device}"  {" ".join(host.enter)} COMMAND')
    return 0


if __name__ == "__main__":
    sys.exit(main())

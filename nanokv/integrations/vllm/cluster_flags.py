"""The flags about a cluster: `nanokv.cluster`, and those that go with it. Imports no vLLM.

The secret of a cluster is no flag, but the variable NANOKV_CLUSTER_SECRET (docs/cluster.md): everybody on a host sees
command lines, and vLLM logs its configuration.
"""

import re
import socket
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import xxhash

from nanokv.arguments import positive_seconds
from nanokv.cluster.membership.addresses import EtcdAddress, parse
from nanokv.cluster.options import ClusterOptions
from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from nanokv.integrations.vllm.settings import Settings

#: flags that say something about a cluster only, and the options of `NanoKVCluster` that they become
OPTIONS = {
    "node": "node",
    "link": "link",
    "devices": "devices",
    "bind": "bind",
    "advertise": "advertise",
    "ports": "ports",
    "cluster_timeout": "timeout",
    "cluster_ttl": "ttl",
}
_LONGEST_HOST = 39  #: characters: a node's name has 48, of which nine tell engines of a host apart


def check_cluster(settings: "Settings") -> None:
    """Refuse flags that do not go together, or that no cluster takes.

    Raises:
        InvalidArgument: it names the flag.
    """
    if not settings.cluster:
        _check_no_cluster(settings)
        return
    if settings.alloc != "device":
        raise InvalidArgument("nanokv.cluster needs nanokv.alloc=device: objects of v1 are found by its master only")
    for name in ("cluster_timeout", "cluster_ttl"):
        positive_seconds(f"nanokv.{name}", getattr(settings, name))
    try:
        ClusterOptions(**options_of(settings, settings.node or "default"))
    except InvalidArgument as error:
        raise InvalidArgument(f"nanokv.{error}") from None  # the options that are left have the names of their flags
    _check_url(settings.cluster)


def _check_no_cluster(settings: "Settings") -> None:
    for flag in fields(settings):
        if flag.name in OPTIONS and getattr(settings, flag.name) != flag.default:
            raise InvalidArgument(f"nanokv.{flag.name} is about a cluster: give nanokv.cluster too")


def _check_url(url: str) -> None:
    try:
        address = parse(url)
    except InvalidArgument as error:
        raise InvalidArgument(f"nanokv.cluster: {error}") from None
    if isinstance(address, EtcdAddress) and address.password:
        raise InvalidArgument(
            "nanokv.cluster has a password, which a command line shows to everybody on the host: let etcd know this "
            "process by a certificate, etcds://host:port/name?cert=FILE&key=FILE"
        )


def options_of(settings: "Settings", node: str) -> dict[str, Any]:
    """The options of `NanoKVCluster`; without a node's name it takes its default."""
    found = {option: getattr(settings, flag) for flag, option in OPTIONS.items()} | {"node": node}
    return {option: value for option, value in found.items() if option != "node" or node}


def node_of(settings: "Settings", engine: str, replica: int) -> str:
    """The name of the node that an engine's workers are members of: one node for each world.

    Args:
        engine: what vLLM calls the engine, another name at each start.
        replica: as for `Settings.ranks`.

    Returns "" for the default of `NanoKVCluster`, the names of host and world.
    """
    if settings.name:
        return settings.node
    if settings.node:  # data-parallel engines of one server have the same flags, and worlds of their own
        return f"{settings.node}-{replica}" if replica else settings.node
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().split(".")[0])[:_LONGEST_HOST].lstrip("-_")
    return f"{host or 'node'}-{xxhash.xxh32_hexdigest(engine.encode())}"

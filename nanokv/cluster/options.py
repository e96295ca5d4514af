"""The options of a member of a cluster, declared once."""

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from nanokv.arguments import FLAG, WORDS, check_options, is_a, one_of, option, positive_seconds, refuse_unknown, whole
from nanokv.cluster.links import KINDS
from nanokv.cluster.messages import unix
from nanokv.cluster.seals import ALL, HEADS, SEALS
from nanokv.errors import InvalidArgument

WAYS = ("auto", "wire", *KINDS)  #: how members exchange objects: see `ClusterOptions.link`
SECRET_VARIABLE = "NANOKV_CLUSTER_SECRET"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_LOOPBACK = "lo"
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_LEAST_PORTS, _LAST_PORT = 4, 65535
_ALL = ("0.0.0.0", "::", "*")  #: no address at which anybody can be reached
_HOST = re.compile(r"[^\s/]*")
_SHORTEST_SECRET = 16  #: bytes
_SECRET = is_a(bytes, "at least 16 bytes", lambda secret: not 0 < len(secret) < _SHORTEST_SECRET, hides=True)
_SOCKETS = is_a(
    str,
    f"the absolute path of a folder, of at most {unix.LONGEST_FOLDER} bytes",
    lambda path: not path or (path[0] == "/" and "\0" not in path and len(os.fsencode(path)) <= unix.LONGEST_FOLDER),
)
_ABOUT = is_a(str, f"a str of at most {1 << 16} characters", lambda about: len(about) <= 1 << 16, hides=True)


def _is_port_range(text: str) -> bool:
    found = _PORTS.fullmatch(text)
    first, last = map(int, found.groups()) if found else (0, 0)
    return not text or (0 < first <= last + 1 - _LEAST_PORTS and last <= _LAST_PORT)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of `NanoKVCluster`.

    Attributes:
        node: the name of this node, the same for all processes of its world: 1 to 48 letters, digits, `_` and `-`.
            Default: the name of the host, and that of the world if it has one.
        secret: at least 16 bytes that all members know; the variable NANOKV_CLUSTER_SECRET, as text. Default: one that
            lies in the registry, so whoever may read the registry is trusted.
        link: what moves objects. "wire": sockets of NanoKV's own, for segments in host memory. "nixl" or "mooncake":
            one-sided reads by that library, for RDMA and for memory of GPUs; nodes without it are reached by the wire.
            "auto": the wire, if this world's segments lie in host memory; else "nixl".
        seal: what of that is sealed. "heads": questions, answers and objects of up to 4 KiB have a MAC, and nothing is
            enciphered. "all": all that goes over the wire, and events, is enciphered and covered, by AES-256-GCM; the
            same for all members, and not with a link. It needs the system's libcrypto (docs/cluster.md, "Security").
        maps: whether the memory of nodes on this host is mapped that let guests in (`guests` of their worlds), by the
            same user: puts and gets there copy once, and wait for nobody.
        devices: the network device that the link "nixl" uses, as UCX_NET_DEVICES: "lo", "eth0", "mlx5_0:1", or "all".
            Without effect where objects go over the wire.
            The variable UCX_NET_DEVICES goes before it, and may name several.
        ports: the range of ports at which this member listens, such as "40000-40999": two, of questions and events, and
            two more with UCX's TCP. Default: any that are free.
        bind: the interface or address at which this member takes questions. "0.0.0.0" is all, and only if given.
        sockets: a folder for this member's UNIX socket. Processes of this host in other network namespaces, such as
            those of other containers, reach it there, and map its memory, if they see the folder by the same path.
            Default: none; then the socket is for its network namespace alone.
        advertise: the host name or address by which the others reach it. Default: `bind`; needed if that is all.
        timeout: seconds that a node has for an exchange, or each round of a get over NIXL, beside the time for bytes.
        lost: what a read answers if a node that may have the object cannot be reached, and no other one has it: "raise"
            PeerLost, or "miss", as if there were none; then `stats()["peer_lost"]` alone tells. Calls about
            many keys raise for all of them. Puts, and `remove`, raise always: what they did is not known.
        ttl: seconds after which the others see that this process has died, or cannot reach the registry.
        locations: of how many objects of other nodes this process remembers where they lie; 72 bytes each. 0: of
            none; then it follows no events of others, which spares a large cluster that traffic, and its gets find
            what lies at the key's home; over NIXL they take four rounds.
        join_timeout: seconds to try to reach the registry.
        about: a text of at most 64 KiB that the other members can read (`NanoKVCluster.about`): what the keys of this
            one mean, for an engine's connector.
    """

    node: str = option(is_a(str, "1 to 48 letters, digits, `_` and `-`", _NAME.fullmatch), "")
    secret: bytes = option(_SECRET, b"", shown=False)
    link: str = option(one_of(WAYS), "auto")
    seal: str = option(one_of(SEALS), HEADS)
    maps: bool = option(FLAG, True)
    devices: str = option(WORDS, _LOOPBACK)
    bind: str = option(WORDS, "127.0.0.1")
    sockets: str = option(_SOCKETS, "")
    advertise: str = option(is_a(str, "a host name or an address", _HOST.fullmatch), "")
    ports: str = option(is_a(str, f"a range of {_LEAST_PORTS} or more: 40000-40999", _is_port_range), "")
    timeout: float = option(positive_seconds, 1.0)
    lost: str = option(one_of(("raise", "miss")), "raise")
    ttl: float = option(positive_seconds, 3.0)
    join_timeout: float = option(positive_seconds, 10.0)
    locations: int = option(whole(0, 1 << 30), 1 << 17)
    about: str = option(_ABOUT, "")

    def __post_init__(self) -> None:
        check_options(self)
        if "," in self.devices:
            raise InvalidArgument(
                f"devices is one device, or all; for {self.devices!r} set the variable UCX_NET_DEVICES"
            )
        if self.bind in _ALL and not self.advertise:
            raise InvalidArgument(f"with bind={self.bind!r} advertise must say how other hosts reach this one")
        if self.link in ("wire", "mooncake") and self.devices != _LOOPBACK:
            raise InvalidArgument(f"devices are for the link nixl, not {self.link}")
        if self.seal == ALL and self.link in KINDS:
            raise InvalidArgument(
                f"seal={ALL!r} is of the wire, and the link {self.link} moves objects past it: take link='wire'"
            )
        if self.link == "mooncake" and self.ports:
            raise InvalidArgument("the link mooncake takes ports of its own choice: ports cannot be given")

    def port_range(self) -> Sequence[int]:
        """The ports that this member may listen at; 0: any that is free."""
        if not self.ports:
            return (0,)
        first, last = map(int, self.ports.split("-"))
        return range(first, last + 1)

    def link_options(self, link: str) -> dict[str, str]:
        """What the class of a link is given."""
        if link == "mooncake":
            return {"host": self.advertise or self.bind}
        return {"devices": self.devices, "ports": self.ports}

    def device_names(self, link: str) -> str:
        """The network devices of a link, as UCX takes them; "": it has no such."""
        return os.environ.get("UCX_NET_DEVICES", self.devices) if link == "nixl" else ""

    def advertised(self, address: str) -> str:
        """An address of this member, as the others need it: "tcp://host:port"."""
        host = f"[{self.advertise}]" if ":" in self.advertise else self.advertise
        return f"tcp://{host}:{address.rpartition(':')[2]}" if host else address


def given_secret() -> bytes:
    """The secret in the environment; b"": there is none.

    Raises:
        InvalidArgument: it is too short, or the variable is set and empty: that is nobody's wish.
    """
    found = os.environ.get(SECRET_VARIABLE)
    if found is not None and len(found.encode()) < _SHORTEST_SECRET:
        raise InvalidArgument(f"{SECRET_VARIABLE} must have at least {_SHORTEST_SECRET} bytes, or be unset")
    return (found or "").encode()


def make_cluster_options(world_name: str, given: dict[str, Any]) -> ClusterOptions:
    """Options from keyword arguments and the environment.

    Raises:
        InvalidArgument: an option that does not exist, or a value that is not allowed.
    """
    refuse_unknown(given, [each.name for each in fields(ClusterOptions)], "option", " of a cluster")
    found: dict[str, Any] = {"node": _default_node(world_name)}
    found["secret"] = given_secret()
    return ClusterOptions(**(found | given))


def _default_node(world_name: str) -> str:
    host = socket.gethostname().split(".")[0]
    name = host if world_name in ("", "local") else f"{host}-{world_name}"
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[-48:].lstrip("-_") or "node"

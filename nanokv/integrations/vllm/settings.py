"""The flags of the connector: `nanokv.*` in vLLM's `kv_connector_extra_config`. Imports no vLLM.

The secret of a cluster is no flag, but the variable NANOKV_CLUSTER_SECRET (docs/cluster.md): everybody on a host sees
command lines, and vLLM logs its configuration.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import xxhash

from nanokv.arguments import (
    JSON_FLAG,
    check_options,
    is_a,
    one_of,
    option,
    or_none,
    positive_seconds,
    refuse_unknown,
    seconds,
    whole,
)
from nanokv.arguments import size as parsed_size
from nanokv.cluster.membership import addresses
from nanokv.cluster.options import WAYS, ClusterOptions
from nanokv.cluster.seals import HEADS, SEALS
from nanokv.config import Alloc
from nanokv.errors import InvalidArgument
from nanokv.heap import KINDS, HeapKind
from nanokv.heap.world_spec import Stale

PREFIX = "nanokv."
PRODUCER_HOLD = 60.0  #: seconds
Load = Literal["async", "layer"]
Write = Literal["engine", "kernel"]
#: flags that say something about a cluster only, and the options of `NanoKVCluster` that they become
CLUSTER_OPTIONS = {
    "node": "node",
    "link": "link",
    "seal": "seal",
    "devices": "devices",
    "bind": "bind",
    "sockets": "sockets",
    "advertise": "advertise",
    "ports": "ports",
    "cluster_timeout": "timeout",
    "cluster_ttl": "ttl",
}
_LONGEST_HOST = 39  #: characters: a node's name has 48, of which nine tell engines of a host apart
_TEXT = is_a(str, "a string")


@dataclass(frozen=True, slots=True)
class Settings:
    """One field per flag, which is `nanokv.` and its name. `nanokv vllm-flags` shows the texts."""

    name: str = option(
        _TEXT, "", "of the world on this host: engines that share KV give the same. Default: of this engine"
    )
    alloc: Alloc = option(
        one_of(get_args(Alloc)), "device", "device: the producer allocates (v2); host: rank 0 does (v1)"
    )
    heap: HeapKind | None = option(
        one_of((None, *KINDS)), None, "where segments lie. Default: local for one rank, else shm, or torch_symm on GPUs"
    )
    size: int = option(partial(parsed_size, low=1), 1 << 30, "bytes of each rank's segment, as 4GiB")
    page_bytes: int = option(
        parsed_size, 0, "of a page, the same for all engines. Default: so that a block fills its pages, at any TP"
    )
    world_size: int = option(whole(0), 0, "ranks of all engines together. Default: those of this engine")
    rank: int = option(whole(0), 0, "this engine's first rank; its workers take the ranks from there on")
    target: int = option(
        whole(-1), -1, "the first rank of the engine that reads what this one stores. Default: this one"
    )
    namespace: str = option(_TEXT, "", "engines of different namespaces share nothing: a tenant, an experiment")
    model: str = option(_TEXT, "", "the name of the model in keys. Default: as vLLM was given it")
    hold: float | None = option(
        or_none(seconds), None, "seconds that a block waits for its first reader. Default: 60 for a kv_producer, else 0"
    )
    load: Load = option(
        one_of(get_args(Load)),
        "async",
        "async: a request waits outside of steps; layer: each layer waits for its own KV",
    )
    write: Write = option(
        one_of(get_args(Write)), "engine", "who writes the engine's cache: engine; or, on a GPU, NanoKV's kernel"
    )
    save_generated: bool = option(JSON_FLAG, True, "whether blocks of generated tokens are stored too")
    save_tails: bool | None = option(
        or_none(JSON_FLAG),
        None,
        "whether the last block of a prompt is stored if it is not full. Default: by a kv_producer",
    )
    checksum: bool = option(JSON_FLAG, False, "store a checksum with each block, and verify it at each load")
    attach_timeout: float = option(seconds, 600.0, "seconds to wait for the other engines at start")
    on_stale: Stale = option(
        one_of(get_args(Stale)),
        "replace",
        "what to do with a world whose engines have all died: replace, recover, error",
    )
    cluster: str = option(
        _TEXT,
        "",
        "URL of a cluster's registry, etcd://host:port/name or file:///folder: KV is shared between hosts",
    )
    node: str = option(_TEXT, "", "this node's name; engines of one world give the same. Default: of the host")
    link: str = option(one_of(WAYS), "auto", f"what moves bytes between nodes: {', '.join(WAYS)}")
    seal: str = option(one_of(SEALS), HEADS, "all: all bytes between nodes are enciphered, by AES-256-GCM; heads: none")
    devices: str = option(_TEXT, "lo", "the network device of the link, as eth0 or mlx5_0:1; or all")
    bind: str = option(_TEXT, "127.0.0.1", "the interface or address at which this node takes questions of others")
    sockets: str = option(
        _TEXT, "", "a folder for its UNIX socket, which engines in other containers of this host see by the same path"
    )
    advertise: str = option(_TEXT, "", "the host name or address by which others reach it, if that is not bind")
    ports: str = option(_TEXT, "", "the range of ports at which this node listens: 40000-40999. Default: any")
    guests: int | None = option(
        or_none(whole(0)),
        None,
        "how many engines of other nodes on this host may map its segment, on a CPU (docs/cluster.md): by "
        "default 16 where its segment is shared memory anyway, as with a name; else none",
    )
    cluster_timeout: float = option(seconds, 1.0, "seconds that another node has for each round of a read")
    cluster_ttl: float = option(seconds, 3.0, "seconds after which a node that died is dropped, the same on all nodes")

    def __post_init__(self) -> None:
        check_options(self, PREFIX)
        if (self.hold is not None and self.hold < 0) or not self.attach_timeout > 0:
            raise InvalidArgument(f"{PREFIX}hold must not be negative, and {PREFIX}attach_timeout must be positive")
        self._check_cluster()

    def _check_cluster(self) -> None:
        """Refuse flags about a cluster that do not go together, or that no cluster takes."""
        if not self.cluster:
            for flag in fields(self):
                if flag.name in {*CLUSTER_OPTIONS, "guests"} and getattr(self, flag.name) != flag.default:
                    raise InvalidArgument(f"{PREFIX}{flag.name} is about a cluster: give {PREFIX}cluster too")
            return
        if self.alloc != "device":
            raise InvalidArgument(
                f"{PREFIX}cluster needs {PREFIX}alloc=device: objects of v1 are found by its master only"
            )
        for name in ("cluster_timeout", "cluster_ttl"):
            positive_seconds(f"{PREFIX}{name}", getattr(self, name))
        try:
            ClusterOptions(**self.cluster_options(self.node or "default"))
        except InvalidArgument as error:  # the options that are left have the names of their flags
            raise InvalidArgument(f"{PREFIX}{error}") from None
        try:
            address = addresses.parse(self.cluster)
        except InvalidArgument as error:
            raise InvalidArgument(f"{PREFIX}cluster: {error}") from None
        if isinstance(address, addresses.EtcdAddress) and address.password:
            raise InvalidArgument(
                f"{PREFIX}cluster has a password, which a command line shows to everybody on the host: let etcd know "
                "this process by a certificate, etcds://host:port/name?cert=FILE&key=FILE"
            )

    def cluster_options(self, node: str) -> dict[str, Any]:
        """The options of `NanoKVCluster`; without a node's name it takes its default."""
        found = {option: getattr(self, flag) for flag, option in CLUSTER_OPTIONS.items()} | {"node": node}
        return {option: value for option, value in found.items() if option != "node" or node}

    def node_name(self, engine: str, replica: int) -> str:
        """The name of the node that an engine's workers are members of: one node for each world.

        Args:
            engine: what vLLM calls the engine, another name at each start.
            replica: as for `ranks`.

        Returns "" for the default of `NanoKVCluster`, the names of host and world.
        """
        if self.name:
            return self.node
        if self.node:  # data-parallel engines of one server have the same flags, and worlds of their own
            return f"{self.node}-{replica}" if replica else self.node
        host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().split(".")[0])[:_LONGEST_HOST].lstrip("-_")
        return f"{host or 'node'}-{xxhash.xxh32_hexdigest(engine.encode())}"

    def lease(self, role: str | None) -> float | None:
        """Seconds for which an engine of this role leases what it stores; None for no lease."""
        hold = self.hold if self.hold is not None else PRODUCER_HOLD if role == "kv_producer" else 0.0
        return hold or None

    def ranks(self, workers: int, replica: int = 0) -> "Ranks":
        """The ranks of an engine of so many workers.

        Args:
            replica: the number of the engine among those of a data-parallel server, which have the same flags. In a
                world with a name each takes the next ranks; without a name each has a world of its own.

        Raises:
            InvalidArgument: the ranks of this engine, or the target, are not in the world.
        """
        first = self.rank + (replica * workers if self.name else 0)
        world_size = self.world_size or first + workers
        if first + workers > world_size:
            raise InvalidArgument(
                f"{workers} workers from rank {first} on are more than {PREFIX}world_size={world_size} has"
            )
        target = first if self.target < 0 else self.target
        if target >= world_size:
            raise InvalidArgument(f"{PREFIX}target={target} is no rank: {PREFIX}world_size is {world_size}")
        if world_size > workers and not self.name:
            raise InvalidArgument(f"engines that share a world need the same {PREFIX}name")
        return Ranks(world_size, first, target)


class Ranks(NamedTuple):
    """Where an engine is in its world."""

    world_size: int
    first: int  #: rank of its workers
    target: int  #: the first rank of the engine that reads what it stores


def parse(extra: Mapping[str, Any]) -> Settings:
    """The settings in a `kv_connector_extra_config`.

    Raises:
        InvalidArgument: an unknown flag, or a value that is not allowed.
    """
    known = sorted(PREFIX + flag.name for flag in fields(Settings))
    refuse_unknown(extra, known, "flag", " in kv_connector_extra_config")
    return Settings(**{flag.removeprefix(PREFIX): value for flag, value in extra.items()})

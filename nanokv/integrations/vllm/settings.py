"""The flags of the connector: `nanokv.*` in vLLM's `kv_connector_extra_config`. Imports no vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args

from nanokv.arguments import integer, seconds, size
from nanokv.cluster.links import KINDS as LINKS
from nanokv.cluster.links import LinkKind
from nanokv.config import Alloc
from nanokv.errors import InvalidArgument
from nanokv.heap import KINDS, HeapKind
from nanokv.heap.world_spec import Stale
from nanokv.integrations.vllm.cluster_flags import check_cluster

PREFIX = "nanokv."
PRODUCER_HOLD = 60.0  #: seconds
Load = Literal["async", "layer"]
Write = Literal["engine", "kernel"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One field per flag, which is `nanokv.` and its name. `nanokv vllm-flags` shows the texts."""

    name: Annotated[str, "of the world on this host: engines that share KV give the same. Default: of this engine"] = ""
    alloc: Annotated[Alloc, "device: the producer allocates (v2); host: rank 0 does (v1)"] = "device"
    heap: Annotated[
        HeapKind | None, "where segments lie. Default: local for one rank, else shm, or torch_symm on GPUs"
    ] = None
    size: Annotated[int, "bytes of each rank's segment, as 4GiB"] = 1 << 30
    page_bytes: Annotated[
        int, "of a page, the same for all engines. Default: so that a block fills its pages, at any TP"
    ] = 0
    world_size: Annotated[int, "ranks of all engines together. Default: those of this engine"] = 0
    rank: Annotated[int, "this engine's first rank; its workers take the ranks from there on"] = 0
    target: Annotated[int, "the first rank of the engine that reads what this one stores. Default: this one"] = -1
    namespace: Annotated[str, "engines of different namespaces share nothing: a tenant, an experiment"] = ""
    model: Annotated[str, "the name of the model in keys. Default: as vLLM was given it"] = ""
    hold: Annotated[
        float | None, "seconds that a block waits for its first reader. Default: 60 for a kv_producer, else 0"
    ] = None
    load: Annotated[Load, "async: a request waits outside of steps; layer: each layer waits for its own KV"] = "async"
    write: Annotated[Write, "who writes the engine's cache: engine; or, on a GPU, NanoKV's kernel"] = "engine"
    save_generated: Annotated[bool, "whether blocks of generated tokens are stored too"] = True
    save_tails: Annotated[
        bool | None, "whether the last block of a prompt is stored if it is not full. Default: by a kv_producer"
    ] = None
    checksum: Annotated[bool, "store a checksum with each block, and verify it at each load"] = False
    attach_timeout: Annotated[float, "seconds to wait for the other engines at start"] = 600.0
    on_stale: Annotated[Stale, "what to do with a world whose engines have all died: replace, recover, error"] = (
        "replace"
    )
    cluster: Annotated[
        str, "URL of a cluster's registry, etcd://host:port/name or file:///folder: KV is shared between hosts"
    ] = ""
    node: Annotated[str, "this node's name; engines of one world give the same. Default: of the host"] = ""
    link: Annotated[LinkKind, "what moves bytes between nodes: nixl, mooncake"] = "nixl"
    devices: Annotated[str, "the network device of the link, as eth0 or mlx5_0:1; or all"] = "lo"
    bind: Annotated[str, "the interface or address at which this node takes messages of others"] = "127.0.0.1"
    advertise: Annotated[str, "the host name or address by which others reach it, if that is not bind"] = ""
    ports: Annotated[str, "the range of ports at which this node listens: 40000-40999. Default: any"] = ""
    cluster_timeout: Annotated[float, "seconds that another node has for each round of a read"] = 1.0
    cluster_ttl: Annotated[float, "seconds after which a node that died is dropped, the same on all nodes"] = 3.0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("alloc", get_args(Alloc)),
            ("heap", (None, *KINDS)),
            ("load", get_args(Load)),
            ("write", get_args(Write)),
            ("on_stale", get_args(Stale)),
            ("link", LINKS),
        ):
            if getattr(self, name) not in allowed:
                shown = ", ".join(map(str, allowed))
                raise InvalidArgument(f"{PREFIX}{name} must be one of {shown}, not {getattr(self, name)!r}")
        for name in ("name", "namespace", "model", "cluster", "node", "devices", "bind", "advertise", "ports"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgument(f"{PREFIX}{name} must be a string, not {getattr(self, name)!r}")
        for name, allowed_type in (("save_generated", bool), ("save_tails", bool | None), ("checksum", bool)):
            if not isinstance(getattr(self, name), allowed_type):
                raise InvalidArgument(f"{PREFIX}{name} must be true or false, not {getattr(self, name)!r}")
        for name, low in (("size", 1), ("page_bytes", 0), ("world_size", 0), ("rank", 0), ("target", -1)):
            object.__setattr__(self, name, integer(PREFIX + name, getattr(self, name), low))
        for name in ("hold", "attach_timeout", "cluster_timeout", "cluster_ttl"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, seconds(PREFIX + name, getattr(self, name)))
        if (self.hold is not None and self.hold < 0) or not self.attach_timeout > 0:
            raise InvalidArgument(f"{PREFIX}hold must not be negative, and {PREFIX}attach_timeout must be positive")
        check_cluster(self)

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
    known = {flag.name for flag in fields(Settings)}
    given: dict[str, Any] = {}
    for flag, value in extra.items():
        name = flag.removeprefix(PREFIX)
        if flag == name or name not in known:
            flags = ", ".join(PREFIX + each for each in sorted(known))
            raise InvalidArgument(f"there is no flag {flag!r} in kv_connector_extra_config; the flags are {flags}")
        given[name] = size(flag, value) if name in ("size", "page_bytes") else value
    return Settings(**given)

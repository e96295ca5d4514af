"""The world or the cluster that a drop-in stores in, from settings as an engine's configuration has them.

Processes that give the same name share what they store. Each takes the first rank of that elastic world that no living
process has (docs/elastic.md): two that come at once ask for the same rank, one of them gets it, and the other one asks
for the next. So nobody has to number processes, which an engine's plug-in cannot.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Union

from nanokv.arguments import JSON_FLAG, TEXT, WORDS, check_options, option, refuse_unknown, seconds, whole
from nanokv.arguments import size as parsed_size
from nanokv.cache.cache import NanoKVCache
from nanokv.cache.ending import refuse_fork
from nanokv.device.segment.layout import SIZE_CLASSES
from nanokv.errors import HeapUnavailable, InvalidArgument, LinkUnavailable, RankTaken
from nanokv.keys.identity import Identity

if TYPE_CHECKING:
    from nanokv.cluster import NanoKVCluster

Store = Union[NanoKVCache, "NanoKVCluster"]

_OF_A_CLUSTER = ("node", "link", "seal", "devices", "bind", "sockets", "advertise", "ports", "timeout", "ttl")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a drop-in may be told about its store.

    Attributes:
        name: of the world on this host: processes that give the same share what they store.
        size: bytes of each process' segment; or a text, such as "4GiB".
        page_bytes: of a page; an object takes whole pages.
        ranks: the most processes that there can be at a time.
        namespace: stores of different namespaces share nothing: a tenant, an experiment.
        checksum: store a checksum with each object, and verify it at each read.
        max_object: bytes of the largest object that is stored; 0: as many as 128 pages have.
        attach_timeout: seconds to wait for the world.
        cluster: the registry of a cluster, "etcd://host:port/name" or "file:///folder": what is stored is shared with
            other hosts. The settings from `node` on are options of `NanoKVCluster`, and need `cluster`.
    """

    name: str = option(WORDS, "nanokv")
    size: int = option(parsed_size, 1 << 30)
    page_bytes: int = option(parsed_size, 256 << 10)
    ranks: int = option(whole(1), 16)
    namespace: str = ""
    checksum: bool = option(JSON_FLAG, False)
    max_object: int = option(parsed_size, 0)
    attach_timeout: float = option(seconds, 60.0)
    cluster: str = option(TEXT, "", shown=False)  # it may have a password
    node: str = ""
    link: str = "auto"
    seal: str = "heads"
    devices: str = "lo"
    bind: str = "127.0.0.1"
    sockets: str = ""
    advertise: str = ""
    ports: str = ""
    timeout: float = 1.0
    ttl: float = 3.0

    def __post_init__(self) -> None:
        check_options(self)
        if not self.cluster:
            for each in fields(self):
                if each.name in _OF_A_CLUSTER and getattr(self, each.name) != each.default:
                    raise InvalidArgument(f"{each.name} is about a cluster: give cluster too")


def parse(given: Mapping[str, Any]) -> Settings:
    """The settings in a configuration.

    Raises:
        InvalidArgument: a setting that does not exist, or a value that is not allowed.
    """
    return split(given, ())[1]


def split(given: Mapping[str, Any], own: Sequence[str]) -> tuple[dict[str, Any], Settings]:
    """The settings in a configuration: those of a drop-in itself, whose names are `own`, and those of its store.

    Raises:
        InvalidArgument: as `parse`.
    """
    refuse_unknown(given, [*(each.name for each in fields(Settings)), *own], "setting")
    mine = {name: value for name, value in given.items() if name in own}
    return mine, Settings(**{name: value for name, value in given.items() if name not in own})


class JoinedStore:
    """A store that this process has joined: `cache` is the world, or the cluster over it."""

    def __init__(self, world: NanoKVCache, cache: Store) -> None:
        self.world, self.cache = world, cache
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raise Forked in a child of a fork: its threads are missing, and the rank is its parent's."""
        refuse_fork(self._process)

    def close(self) -> None:
        """Leave the cluster and the world. What this process has stored stays, as long as others are in the world."""
        self.world.close()  # which leaves the cluster first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def join(settings: Settings, identity: Identity | None = None, **options: Any) -> JoinedStore:
    """Join the store that the settings name, and make it if this is the first process.

    Args:
        identity: of the model whose KV is stored: see `nanokv.Identity`.
        options: more options of `NanoKVCache`, which all processes of the store must give alike.

    Raises:
        InvalidArgument: a setting is wrong.
        HeapUnavailable: all ranks are taken, or a process of that name asked for other settings.
        ClusterUnavailable, LinkUnavailable: see `NanoKVCluster`.
    """
    world = _join_world(settings, identity, options)
    if not settings.cluster:
        return JoinedStore(world, world)
    try:
        return JoinedStore(world, _join_cluster(world, settings))
    except BaseException:
        world.close()
        raise


def _join_world(settings: Settings, identity: Identity | None, options: Mapping[str, Any]) -> NanoKVCache:
    if settings.max_object:
        options = {"size_classes": classes(settings.max_object, settings.page_bytes), **options}
    common: dict[str, Any] = {
        "name": settings.name,
        "page_bytes": settings.page_bytes,
        "world_size": settings.ranks,
        "namespace": settings.namespace,
        "checksum": settings.checksum,
        "attach_timeout": settings.attach_timeout,
        "identity": identity,
        "elastic": True,
        "on_stale": "replace",
    }
    for rank in range(settings.ranks):
        try:
            return NanoKVCache(settings.size, rank=rank, **(common | dict(options)))
        except RankTaken:
            continue
    raise HeapUnavailable(f"all {settings.ranks} ranks of world {settings.name!r} are taken: give it more ranks")


def classes(max_object: int, page_bytes: int) -> tuple[int, ...]:
    """Size classes up to an object of `max_object` bytes: powers of two, and between the small ones."""
    powers = [1]
    while powers[-1] * page_bytes < max_object:
        powers.append(powers[-1] * 2)
    between = [3 * power // 2 for power in powers[1:-1]]
    return tuple(sorted(powers + between[: max(SIZE_CLASSES - len(powers), 0)]))


def cluster_class() -> "type[NanoKVCluster]":
    """Import `NanoKVCluster`. Raises LinkUnavailable if ZeroMQ is not installed."""
    try:
        from nanokv.cluster import NanoKVCluster
    except ModuleNotFoundError as error:
        if error.name != "zmq":
            raise
        raise LinkUnavailable("nanokv.cluster needs ZeroMQ: pip install pyzmq") from None
    return NanoKVCluster


def _join_cluster(world: NanoKVCache, settings: Settings) -> "NanoKVCluster":
    options = {name: getattr(settings, name) for name in _OF_A_CLUSTER}
    if not settings.node:
        del options["node"]
    if settings.link in ("wire", "mooncake"):
        del options["devices"]
    if settings.link == "mooncake":
        del options["ports"]
    return cluster_class()(world, settings.cluster, lost="miss", **options)  # to an engine that is all it is

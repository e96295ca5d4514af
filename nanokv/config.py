"""Every option and every environment variable of a cache, declared once.

An argument overrides its variable, a variable the default. Two variables are read by modules that import nothing of the
API: NANOKV_CACHE_DIR (the folder of compiled code, `device/machines/code_cache.py`) and NANOKV_SHM_DIR (the
folder of worlds of processes, default /dev/shm, `heap/world_file_layout.py`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, get_args

from nanokv.arguments import (
    FLAG,
    check_options,
    integer,
    is_a,
    listed,
    number,
    one_of,
    option,
    or_none,
    positive_seconds,
    refuse_unknown,
    whole,
    whole_number,
)
from nanokv.device.segment.geometry import MODES
from nanokv.errors import InvalidArgument
from nanokv.heap import KINDS, HeapKind
from nanokv.heap.world_spec import Stale
from nanokv.keys.identity import Identity

Alloc = Literal["device", "host"]
Policy = Literal["lifetimes", "clock", "fifo", "last_access"]
_WATER: dict[Alloc, tuple[int, int]] = {"device": (100, 100), "host": (85, 95)}
_ELASTIC: tuple[HeapKind, ...] = ("shm", "local")
_POLICIES: dict[Alloc, tuple[Policy, ...]] = {"device": ("lifetimes", "clock", "fifo"), "host": ("last_access", "fifo")}


def _checked_classes(name: str, classes: Sequence[int]) -> tuple[int, ...]:
    return tuple(integer("a size class", pages, 1) for pages in listed(name, classes))


def _checked_costs(name: str, costs: Sequence[float]) -> tuple[float, ...]:
    found = tuple(number("a cost", cost) for cost in listed(name, costs))
    if not all(0 <= cost < float("inf") for cost in found):
        raise InvalidArgument(f"{name} must be finite numbers >= 0, not {costs!r}")
    return found


def _checked_water(name: str, water: object) -> tuple[int, int]:
    if isinstance(water, Sequence) and len(water) == 2:
        low, high = map(whole_number, water)
        if low is not None and high is not None and 0 < low <= high <= 100:
            return low, high
    raise InvalidArgument(
        f"{name} must be (low, high), two integers with 0 < low <= high <= 100 (percent), not {water!r}"
    )


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a cache beyond its size. All ranks of a world give the same ones, except for timeouts, `namespace`,
    `identity`, `promote`, `costs`, `on_stale` and `heap_options`. Ranks that attach with others are refused
    (`heap.world_spec`).

    Attributes:
        alloc: "device": the producer allocates (v2). "host": the master does (v1). Variable NANOKV_ALLOC.
        namespace: the same key in another namespace is another key.
        identity: the same key of another model, revision, tokenizer, adapter, tenant or layout is another key, and
            digests of another identity are refused: ReuseViolation (docs/identity.md).
        evict: whether a full heap evicts objects (docs/eviction.md). False: a put raises OutOfMemory.
        water: (low, high) percent of used pages: if more than high are in use and `evict`, the owner's poller evicts
            until low are, before producers must; v1's master does so when it allocates. Default: (100, 100), that is
            not at all; in v1 (85, 95).
        quota_bytes: how much the objects of this identity and namespace may hold of each segment, in bytes. No put is
            refused: the owner's poller evicts those that were not used for longest, soon after (docs/eviction.md).
        policy: by which a full heap evicts (docs/eviction.md): "lifetimes" (the default), "clock" or "fifo"; in v1
            "last_access" (its default) or "fifo".
        size_classes: pages of an extent of each class, ascending, at most 24; the smallest divides all others. An
            object takes an extent of the smallest class that holds it.
        max_objects: header slots per segment. Default: one per page, and 64 more.
        ring_slots: slots of the announce ring.
        shards: free lists of each kind, a power of two up to 64. More lists let more producers allocate at once.
            Default: 4 in host memory, 64 on a GPU (fewer in a small heap). In host memory up to 8 share no cache line.
        write_timeout: seconds after which an unfinished object is given up.
        rpc_timeout: seconds without an answer after which v1 takes the master for lost.
        attach_timeout: seconds to wait for the other ranks.
        on_stale: what heap "shm" does if all ranks of a world of that name are dead: see `WorldSpec`.
        checksum: store a checksum of each object's bytes, and refuse to read objects without one: SegmentCorrupt.
            Kernels compute it by `cooperative.sum_put_part`. Variable NANOKV_CHECKSUM: 0 or 1.
        elastic: ranks come and go while the world runs (docs/elastic.md); `world_size` is the most that there can be.
            Only with alloc="device", in heaps "shm" and "local".
        guests: how many processes of other nodes on this host may map the segments at a time, so that their puts and
            gets copy once, and wait for nobody (docs/cluster.md). Only with alloc="device", in heap "shm" (default: 16)
            and "local" (default: 0). There the memory is then shared too, which the system gives in pages of 4 KiB
            unless it lets shared memory have huge ones.
        promote: after so many reads by this rank of an object that lies on another rank, this rank makes a copy in its
            own segment, in the background (docs/replicas.md). 0: never.
        costs: what a read from each rank costs this one, one number >= 0 per rank: a get takes the nearest copy. This
            rank itself comes first. Default: all the same.
        heap: the provider that makes the segments (docs/providers.md). Default: "local" for one rank without a name,
            else "shm". Variable NANOKV_HEAP.
        heap_options: further options of that provider, such as `device`.
    """

    alloc: Alloc = option(one_of(MODES), "device")
    namespace: str = option(is_a(str, "a str without NUL", lambda text: "\0" not in text), "")
    identity: Identity | None = option(is_a(Identity | None, "an Identity or None"), None)
    evict: bool = option(FLAG, True)
    water: tuple[int, int] | None = option(or_none(_checked_water), None)
    policy: Policy | None = option(one_of((None, *get_args(Policy))), None)
    quota_bytes: int | None = option(or_none(whole(1)), None)
    size_classes: tuple[int, ...] | None = option(or_none(_checked_classes), None)
    max_objects: int | None = option(or_none(whole(1)), None)
    ring_slots: int | None = option(or_none(whole(1)), None)
    shards: int | None = option(or_none(whole(1)), None)
    write_timeout: float = option(positive_seconds, 30.0)
    rpc_timeout: float = option(positive_seconds, 5.0)
    attach_timeout: float = option(positive_seconds, 60.0)
    on_stale: Stale = option(one_of(get_args(Stale)), "error")
    checksum: bool = option(FLAG, False)
    elastic: bool = option(FLAG, False)
    guests: int | None = option(or_none(whole(0)), None)
    promote: int = option(whole(0), 0)
    costs: tuple[float, ...] | None = option(or_none(_checked_costs), None)
    heap: HeapKind | None = option(one_of((None, *KINDS)), None)
    heap_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)
        is_a(Mapping, "a dict of the provider's options")("heap_options", self.heap_options)
        object.__setattr__(self, "policy", _checked_policy(self.policy, self.alloc))
        _check_elastic(self.elastic, self.alloc, self.heap)
        if self.guests and (self.alloc != "device" or self.heap not in (None, "local", "shm")):
            raise InvalidArgument("guests needs alloc='device', and heap='local' or 'shm': no others can map segments")
        if self.promote and self.alloc != "device":
            raise InvalidArgument('promote needs alloc="device": v1 has no copies')
        self._check_quota()

    def _check_quota(self) -> None:
        if self.quota_bytes is None:
            return
        if not self.evict:
            raise InvalidArgument("quota_bytes needs evict=True: what is too much is evicted")
        if self.identity is None and not self.namespace:
            raise InvalidArgument("quota_bytes needs an identity or a namespace, whose objects it limits")

    @property
    def water_marks(self) -> tuple[int, int]:
        """`water`, or its default."""
        return self.water or _WATER[self.alloc]


def _check_elastic(elastic: bool, alloc: Alloc, heap: HeapKind | None) -> None:
    if not elastic:
        return
    if alloc != "device":
        raise InvalidArgument("elastic=True needs alloc='device': in v1 no object is found without the master")
    if heap not in (None, *_ELASTIC):
        raise InvalidArgument(
            f"elastic=True needs one of the heaps {_ELASTIC}: the library of heap={heap!r} makes all segments at once, "
            "when all ranks are there"
        )


def _checked_policy(policy: Policy | None, alloc: Alloc) -> Policy:
    allowed = _POLICIES[alloc]
    if policy is not None and policy not in allowed:
        raise InvalidArgument(f"with alloc={alloc!r}, policy must be one of {allowed}, not {policy!r}")
    return policy or allowed[0]


class LocalOptions(TypedDict, total=False):
    """The options of `local_world`: see `Options`."""

    alloc: Alloc
    namespace: str
    identity: Identity | None
    evict: bool
    water: tuple[int, int] | None
    policy: Policy | None
    quota_bytes: int | None
    size_classes: Sequence[int] | None
    max_objects: int | None
    ring_slots: int | None
    shards: int | None
    write_timeout: float
    rpc_timeout: float
    checksum: bool
    elastic: bool
    guests: int | None
    promote: int
    costs: Sequence[float] | None


class CacheOptions(LocalOptions, total=False):
    """The options of `NanoKVCache`: see `Options`."""

    attach_timeout: float
    on_stale: Stale
    heap: HeapKind | None
    heap_options: Mapping[str, Any]


def rank_from_env() -> int:
    """RANK, as torchrun sets it; 0 without it."""
    return _integer("RANK", 0)


def world_size_from_env() -> int:
    """WORLD_SIZE, as torchrun sets it; 1 without it."""
    return _integer("WORLD_SIZE", 1)


def given_name() -> str | None:
    """NANOKV_NAME, or None."""
    return os.environ.get("NANOKV_NAME") or None


def job_name() -> str:
    """A name that the ranks of a torchrun job share."""
    job = os.environ.get("TORCHELASTIC_RUN_ID") or "job"
    return f"{job}-{os.environ.get('MASTER_PORT', '0')}"


def _integer(variable: str, default: int) -> int:
    value = os.environ.get(variable)
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"{variable} must be an integer, not {value!r}") from None


def _choice(variable: str, allowed: tuple[str, ...]) -> Any:
    return or_none(one_of(allowed))(variable, os.environ.get(variable) or None)


def make_options(given: Mapping[str, object]) -> Options:
    """Options from keyword arguments and the environment.

    Raises:
        InvalidArgument: an option that does not exist, or a value that is not allowed.
    """
    refuse_unknown(given, [each.name for each in fields(Options)], "option")
    found: dict[str, Any] = {
        "alloc": _choice("NANOKV_ALLOC", MODES) or "device",
        "checksum": _choice("NANOKV_CHECKSUM", ("0", "1")) == "1",
        "heap": _choice("NANOKV_HEAP", KINDS),
    }
    return Options(**(found | dict(given)))

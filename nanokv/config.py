"""Every option and every environment variable of NanoKV, declared once.

An argument overrides its variable, a variable the default. Two variables are read by modules that import nothing of the
API: NANOKV_CACHE_DIR (the folder of compiled code, `device/machines/native_code.py`) and NANOKV_SHM_DIR (the
folder of worlds of processes, default /dev/shm, `heap/world_file_layout.py`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from nanokv.device.segment.geometry import MODES
from nanokv.errors import InvalidArgument
from nanokv.heap import KINDS, HeapKind
from nanokv.heap.world_spec import Stale

Alloc = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a cache beyond its size. All ranks of a world give the same ones, except for timeouts, `namespace`,
    `on_stale` and `heap_options`. Ranks that attach with others are refused (`heap.world_spec`).

    Attributes:
        alloc: "device": the producer allocates (v2). "host": the master does (v1). Variable NANOKV_ALLOC.
        namespace: the same key in another namespace is another key (a model, a layout, a tenant).
        evict: whether a full heap evicts its least recently used objects. False: a put raises OutOfMemory.
        water: (low, high) percent of used pages, between which v1's master keeps each heap if `evict`.
        policy: v1's eviction order, "last_access" or "fifo".
        size_classes: pages of an extent of each class, ascending, each a multiple of the one before; at most eight.
        max_objects: header slots per segment. Default: one per page, and 64 more.
        ring_slots: slots of the announce ring.
        shards: free lists of each kind, a power of two up to 64. More lists let more producers allocate at once.
            Default: 1 in host memory, 64 on a GPU (fewer in a small heap).
        write_timeout: seconds after which an unfinished object is given up.
        rpc_timeout: seconds without an answer after which v1 takes the master for lost.
        attach_timeout: seconds to wait for the other ranks.
        on_stale: what heap "shm" does if all ranks of a world of that name are dead: see `WorldSpec`.
        checksum: store a checksum of each object's bytes, and refuse to read objects without one: SegmentCorrupt.
            Kernels compute it by `cooperative.sum_put_part`. Variable NANOKV_CHECKSUM: 0 or 1.
        heap: the provider that makes the segments (docs/providers.md). Default: "local" for one rank without a name,
            else "shm". Variable NANOKV_HEAP.
        heap_options: further options of that provider, such as `device`.
    """

    alloc: Alloc = "device"
    namespace: str = ""
    evict: bool = True
    water: tuple[int, int] = (85, 95)
    policy: Literal["last_access", "fifo"] = "last_access"
    size_classes: tuple[int, ...] | None = None
    max_objects: int | None = None
    ring_slots: int | None = None
    shards: int | None = None
    write_timeout: float = 30.0
    rpc_timeout: float = 5.0
    attach_timeout: float = 60.0
    on_stale: Stale = "error"
    checksum: bool = False
    heap: HeapKind | None = None
    heap_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("alloc", MODES),
            ("policy", ("last_access", "fifo")),
            ("on_stale", get_args(Stale)),
            ("heap", (None, *KINDS)),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidArgument(f"{name} must be one of {allowed}, not {getattr(self, name)!r}")
        if not isinstance(self.checksum, bool):
            raise InvalidArgument(f"checksum must be True or False, not {self.checksum!r}")
        low, high = self.water
        if not 0 < low <= high <= 100:
            raise InvalidArgument(f"water must be (low, high) percent with 0 < low <= high <= 100, not {self.water}")
        for name in ("write_timeout", "rpc_timeout", "attach_timeout"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} must be positive seconds, not {getattr(self, name)!r}")


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


def _choice(variable: str, allowed: tuple[str, ...]) -> str | None:
    value = os.environ.get(variable) or None
    if value not in (None, *allowed):
        raise InvalidArgument(f"{variable} must be one of {allowed}, not {value!r}")
    return value


def make_options(given: dict[str, Any]) -> Options:
    """Options from keyword arguments and the environment.

    Raises:
        InvalidArgument: an option that does not exist, or a value that is not allowed.
    """
    found: dict[str, Any] = {
        "alloc": _choice("NANOKV_ALLOC", MODES) or "device",
        "checksum": _choice("NANOKV_CHECKSUM", ("0", "1")) == "1",
        "heap": _choice("NANOKV_HEAP", KINDS),
    }
    try:
        options = Options(**(found | given))
    except TypeError as error:
        raise InvalidArgument(str(error).replace("Options.__init__() got", "NanoKVCache got")) from None
    if options.size_classes is not None:
        options = replace(options, size_classes=tuple(options.size_classes))
    return options

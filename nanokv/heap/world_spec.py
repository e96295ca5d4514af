"""The world that a rank asks a provider for, to join it or to make it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import MODES, POLICIES, Geometry
from nanokv.device.segment.layout import ABSENT
from nanokv.errors import InvalidArgument

Stale = Literal["error", "recover", "replace"]
Examine = Callable[[str, Sequence[npt.NDArray[np.uint8]], Geometry, str], None]


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world of any provider. Its ranks may differ only in `timeout`, `on_stale` and `examine`.

    Attributes:
        geometry: of every segment; its `world_size` ranks have to come, or may (`elastic`).
        mode: the allocating side, "device" (v2) or "host" (v1).
        may_evict, water, policy: of this rank's segment, see `Geometry.control_block`.
        name: processes of this host meet by it.
        timeout: seconds to wait for the other ranks.
        on_stale: for "shm", if all ranks of that name are dead: raise HeapUnavailable ("error"), take the world over
            with its objects ("recover"), or make an empty one ("replace"). An incomplete world is always replaced.
        examine: called with the name, the segments, the geometry and the mode of a dead world before it is taken over;
            it raises if the world must not be used. None: no look.
        alike: further options that all ranks must give alike, by name; their values are those of JSON.
        elastic: ranks come and go while the world runs; nobody waits for those that are not there.

    Raises:
        InvalidArgument: a mode or an `on_stale` that does not exist.
    """

    geometry: Geometry
    mode: str
    may_evict: bool
    water: tuple[int, int]
    name: str = "local"
    timeout: float = 60.0
    on_stale: Stale = "error"
    examine: Examine | None = None
    policy: str = POLICIES[0]
    alike: Mapping[str, Any] = field(default_factory=dict)
    elastic: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (("mode", self.mode, MODES), ("on_stale", self.on_stale, get_args(Stale))):
            if value not in allowed:
                raise InvalidArgument(f"{name} must be one of {allowed}, not {value!r}")

    def check_rank(self, rank: int) -> None:
        """Raise InvalidArgument for a rank that the world does not have."""
        if not 0 <= rank < self.geometry.world_size:
            raise InvalidArgument(f"rank must be 0 to {self.geometry.world_size - 1}, not {rank}")

    def options(self) -> dict[str, Any]:
        """What all ranks must ask for alike, in the terms of `NanoKVCache`, as JSON gives it back."""
        geometry = self.geometry
        return {
            "world_size": geometry.world_size,
            "heap_bytes": geometry.n_pages * geometry.page_bytes,
            "page_bytes": geometry.page_bytes,
            "size_classes": [pages for pages in geometry.class_pages if pages],
            "max_objects": geometry.hdr_count,
            "ring_slots": geometry.ann_capacity,
            "shards": geometry.shards,
            "guests": geometry.guests,
            "alloc": self.mode,
            "evict": self.may_evict,
            "water": list(self.water),
            "elastic": self.elastic,
            **self.alike,
        }

    def control_block(self, rank: int, world_id: int) -> npt.NDArray[Any]:
        """The HeapCtl of a new segment, an array of one: see `Geometry.control_block`."""
        return self.geometry.control_block(
            rank, world_id, self.mode, may_evict=self.may_evict, water=self.water, policy=self.policy
        )

    def absent_block(self, rank: int, world_id: int) -> npt.NDArray[Any]:
        """The HeapCtl of a segment whose rank has not come yet: its directory works, and it has no page to give."""
        ctl = self.control_block(rank, world_id)
        ctl["closed"], ctl["bump_ptr"] = ABSENT, self.geometry.offsets["heap_limit"]
        return ctl


_SIZES = ("world_size", "heap_bytes", "page_bytes")
_FROM_SIZES = ("size_classes", "max_objects", "ring_slots", "shards")  # their defaults follow from the sizes
STORED = (
    *_SIZES,
    *_FROM_SIZES,
    "guests",
    "alloc",
    "elastic",
)  #: options that cannot change while a world keeps its objects


def differing(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The options in which two ranks differ. Where a size differs, those with a default that follows from it are not
    named."""
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if any(name in _SIZES for name in names):
        names = [name for name in names if name not in _FROM_SIZES]
    return names

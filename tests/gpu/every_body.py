"""All bodies, in groups, each of which takes the interpreter about a minute."""

from collections.abc import Callable

import torch

from tests.gpu import (
    batch_bodies,
    bodies,
    cache_bodies,
    library_bodies,
    library_calls,
    paged_bodies,
    reshape_and_cache_bodies,
    stream_bodies,
)

Bodies = tuple[Callable[[torch.device], None], ...]

GROUPS: dict[str, Bodies] = {
    "objects": bodies.BODIES,
    "batches": (*batch_bodies.BODIES, *paged_bodies.BODIES),
    "caches": (*cache_bodies.BODIES, *library_bodies.BODIES),
    "library": library_calls.BODIES,
    "writers": reshape_and_cache_bodies.BODIES,
    "streams": stream_bodies.BODIES,
}
BODIES: Bodies = tuple(body for group in GROUPS.values() for body in group)

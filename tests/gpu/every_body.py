"""All bodies."""

from collections.abc import Callable

import torch

from tests.gpu import batch_bodies, bodies, cache_bodies, library_bodies, paged_bodies

BODIES: tuple[Callable[[torch.device], None], ...] = (
    *bodies.BODIES,
    *batch_bodies.BODIES,
    *paged_bodies.BODIES,
    *cache_bodies.BODIES,
    *library_bodies.BODIES,
)

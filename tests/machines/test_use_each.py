"""`use_each`: many look-ups that count as uses, natively and one by one."""

import numpy as np
import pytest
import torch

import nanokv
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import unpack


@pytest.mark.parametrize("native", [True, False])
def test_what_is_found_was_used(native: bool) -> None:
    with nanokv.NanoKVCache(1 << 20, page_bytes=4096) as cache:
        for number in range(40):
            cache.put(f"k{number}", torch.full((8,), number))
        names = [f"k{number}" for number in range(0, 40, 2)] + [f"none{number}" for number in range(20)]
        machine = cache.engine.machine
        look = machine.use_each if native else lambda keys, now: Machine.use_each(machine, keys, now)
        statuses = look(cache.digests(names).words, now_ns())
        assert statuses.tolist() == [Status.OK] * 20 + [Status.MISS] * 20
        used = [int(unpack("ACCESS", "use", int(_access(cache, f"k{number}")))) for number in range(40)]
        assert [bool(use) for use in used] == [number % 2 == 0 for number in range(40)]


def _access(cache: nanokv.NanoKVCache, key: str) -> np.uint64:
    place = cache.engine.allocation.locate(cache.digest(key)).place
    access: np.uint64 = cache.engine.machine.headers(place.owner, place.slot, 1)["last_access"][0]
    return access

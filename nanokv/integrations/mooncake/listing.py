"""The keys of a store: NanoKV keeps their digests only, so they are read from behind the values (`stored`)."""

import ctypes
from collections.abc import Iterator
from typing import Any

from nanokv.cache import NanoKVCache
from nanokv.device.segment.layout import READY, STATE_MASK
from nanokv.host_poller.index import key_of
from nanokv.integrations.mooncake.stored import TAIL, key_length

_SLICE = 16 << 10  #: header slots that are looked at together


def keys_of(world: NanoKVCache) -> Iterator[bytes]:
    """The keys of all values that can be read, in no order."""
    seen: set[bytes] = set()
    for owner in range(world.world_size):
        for first in range(0, world.engine.geometry.hdr_count, _SLICE):
            headers = world.engine.machine.headers(owner, first, _SLICE)
            for at in ((headers["state"] & STATE_MASK.value) == READY.value).nonzero()[0].tolist():
                key = _key_of(world, owner, headers[at])
                if key is not None and key not in seen:
                    seen.add(key)
                    yield key


def _key_of(world: NanoKVCache, owner: int, header: Any) -> bytes | None:
    """The key of a READY object of this tenant; None if it is another's, or gone."""
    nbytes, base = int(header["bytes_total"]), int(header["payload_base"])
    if nbytes < TAIL or base + nbytes > world.engine.geometry.segment_bytes:
        return None
    end = world.engine.heap.bases[owner] + base + nbytes - TAIL
    length = key_length(ctypes.string_at(end, TAIL), nbytes)
    if not length:
        return None
    key = ctypes.string_at(end - length, length)
    return key if tuple(world.digest(key)) == tuple(key_of(header)) else None  # else it was replaced just now

"""Put, get and exists of v2 against those of v1, as a caller of the API sees them: the time until a call returns.

Both ranks are in this process, and so is v1's master, which gets no message. So v1 looks better than between processes,
by the cost of the round trip (`python -m bench objects --heap shm` measures that).
"""

from collections.abc import Callable
from typing import Any

import torch

from nanokv import NanoKVCache, local_world
from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request

OWNER = 1
VERSIONS = {"host": "v1", "device": "v2"}
SLOTS = 8  #: the heap has room for so many objects


def measure(device: torch.device, settings: GpuSettings, alloc: str, size: int) -> dict[str, Any]:
    """One row: calls of one version at one size, puts of v2 also as a batch of one; beside a copy and a wait.

    Raises:
        Unsound: other bytes were read than were put.
    """
    extent = settings.page_bytes << (-(-size // settings.page_bytes) - 1).bit_length()
    options: dict[str, Any] = {"page_bytes": settings.page_bytes, "alloc": alloc, "evict": False}
    caches = local_world(2, SLOTS * extent, master_rank=OWNER, device=device, **options)
    try:
        source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
        twin, back = torch.zeros_like(source), torch.zeros_like(source)
        timer = Timer(device)
        puts = {"put": _api_put(caches[0], source)}
        if alloc == "device":
            puts["batch_put"] = BatchPut(caches[0], source)
        for i in range(settings.version_rounds + settings.warm):
            if i == settings.warm:
                timer.clear()
            timer.time_call("copy", lambda: twin.copy_(source))
            for name, put in puts.items():
                key = f"{name} {i}"
                timer.time_call(name, lambda put=put, key=key: put(key))  # type: ignore[misc]
                _check(caches[1], key, source)
                timer.time_call(f"exists after {name}", lambda key=key: caches[0].exists(key))  # type: ignore[misc]
                back.zero_()
                timer.time_call(f"get after {name}", lambda key=key: caches[0].get(key, dst=back))  # type: ignore[misc]
                if not torch.equal(back, source):
                    raise Unsound(f"other bytes were got than were put, at {size} bytes")
                caches[0].remove(key)
    finally:
        for cache in caches:
            cache.close()
    return {"version": VERSIONS[alloc], "size": size, "us": timer.summaries(), "checked": len(puts) * (i + 1)}


def _api_put(cache: NanoKVCache, source: torch.Tensor) -> Callable[[str], None]:
    return lambda key: cache.put(key, source, preferred_segment=OWNER)


class BatchPut:
    """Fills a table of one request, launches it as put_many does, and waits for the answer.

    It puts from the caller's own world table, as a kernel of an engine does.
    """

    def __init__(self, cache: NanoKVCache, source: torch.Tensor) -> None:
        self._cache, self._source = cache, source
        self._table = world_table(cache)
        self._batch = Batch(self._table.data_ptr(), 1, cache.device)

    def __call__(self, key: str) -> None:
        address, nbytes = self._source.data_ptr(), self._source.numel()
        self._batch.fill([Request(self._cache.digest(key), address, nbytes, OWNER)])
        self._batch.put()
        said = self._batch.answers()
        if said != [0]:
            raise Unsound(f"a put of {nbytes} bytes answered {said}")


def world_table(cache: NanoKVCache) -> torch.Tensor:
    """The `world` of device functions, for a kernel that acts as this rank: int64, on the cache's device."""
    heap = cache.engine.heap
    words = heap.geometry.world_table(heap.rank, heap.incarnation, heap.bases, checksum=cache.options.checksum)
    return torch.from_numpy(words).to(cache.device)


def _check(cache: NanoKVCache, key: str, source: torch.Tensor) -> None:
    if not torch.equal(cache.get(key).view(torch.uint8).reshape(-1), source):
        raise Unsound(f"other bytes were read than were put, at {len(source)} bytes")


def meet(rows: list[dict[str, Any]], name: str = "put") -> int | None:
    """The smallest size such that v1's p50 is at most v2's from there on; None if there is none."""
    p50 = {(row["version"], row["size"]): row["us"][name if row["version"] == "v2" else "put"]["p50"] for row in rows}
    sizes = sorted({row["size"] for row in rows})
    slower = [size for size in sizes if p50["v1", size] > p50["v2", size]]
    above = [size for size in sizes if not slower or size > max(slower)]
    return min(above) if above else None


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each size and version, then the size at which they meet."""
    rows = []
    for size in settings.sizes:
        for alloc in VERSIONS:
            rows.append(measure(device, settings, alloc, size))
            keep(rows[-1])
    ways = {name: meet(rows, name) for name in ("put", "batch_put")}
    keep({"meet_bytes": ways, "note": "v1's master is in this process and is sent no message"})

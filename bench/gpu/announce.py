"""From the commit in a kernel to the owner's listener on the host, while the GPU is idle and while it is busy; and how
many hints a second the host takes in, and how many are missed, when kernels put at full speed.

The kernel reads the GPU's clock right before its commit; the listener reads the host's. Handshakes before and after
compare the two clocks. So a figure includes the commit, the announcement, the poller's pause or sleep, its launches
that drain the ring and read headers, the index and the call of the listener; `clock_error_us` bounds its error.
"""

import time
from typing import Any

import torch

from nanokv import NanoKVCache, local_world
from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.clock import Offset, compare_clocks, launch
from nanokv.bench.gpu.kernels import put_stamped_kernel, put_storm_kernel
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer, synchronize
from nanokv.bench.gpu.versions import OWNER, world_table
from nanokv.bench.suite.owner import OwnerHere
from nanokv.bench.suite.timing import summarise

HEAP_BYTES = 16 << 20
PAGE_BYTES = 4096
NBYTES = 256
#: seconds between puts; the poller of a GPU goes on looking for 1,000 rounds, some 0.1 s, and then sleeps
PAUSES = {"asleep": 0.3, "awake": 0.001}
FLUSH_SECONDS = 60.0  #: until all hints of a storm are in the index, at most


class Load:
    """Keeps the GPU busy with products of matrices on a stream of its own; call `feed` often."""

    DEPTH = 4  #: rounds of `matmuls` in the queue at most

    def __init__(self, device: torch.device, settings: GpuSettings) -> None:
        self._on_gpu = device.type == "cuda"
        self._count = settings.matmuls
        kind = torch.bfloat16 if self._on_gpu else torch.float32
        self._matrix = torch.randn(settings.matmul, settings.matmul, device=device).to(kind)
        self._out = torch.empty_like(self._matrix)
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._queued: list[Any] = []
        self.rounds = 0

    def feed(self) -> None:
        """Queue more products, unless enough are queued."""
        self._queued = [event for event in self._queued if not event.query()]
        while len(self._queued) < self.DEPTH:
            self.rounds += 1
            if self._stream is None:
                torch.mm(self._matrix, self._matrix, out=self._out)
                return
            with torch.cuda.stream(self._stream):
                for _ in range(self._count):
                    torch.mm(self._matrix, self._matrix, out=self._out)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
            self._queued.append(event)


class Putter:
    """Puts small objects by a kernel of one CTA on a stream of its own, and notes the GPU's time of each commit."""

    def __init__(self, cache: NanoKVCache, most: int) -> None:
        self._cache = cache
        device = cache.device
        self._table = world_table(cache)
        self._source = torch.arange(NBYTES, device=device).to(torch.uint8)
        self._keys = torch.zeros(most, 2, dtype=torch.int64, device=device)
        self._out = torch.full((most, 2), -1, dtype=torch.int64, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def put_all(self, name: str, pause: float, load: Load | None) -> dict[int, int]:
        """Put `most` objects, `pause` seconds apart. Returns the GPU's time of each commit, by key_hash.

        Raises:
            Unsound: a put was not OK.
        """
        digests = [self._cache.digest(f"{name} {i}") for i in range(len(self._keys))]
        self._keys.copy_(torch.tensor(digests, dtype=torch.int64))
        synchronize(self._cache.device)
        for i in range(len(digests)):
            _wait(pause, load)
            with torch.cuda.stream(self._stream):
                self._launch(i)
        synchronize(self._cache.device)
        said = self._out.tolist()
        if any(status for status, _ in said):
            raise Unsound(f"puts answered {sorted({status for status, _ in said})}")
        return {digest.key_hash: when for digest, (_, when) in zip(digests, said, strict=True)}

    def _launch(self, i: int) -> None:
        source, key, out = self._source.data_ptr(), self._keys[i].data_ptr(), self._out[i].data_ptr()
        launch(put_stamped_kernel, 1, self._table.data_ptr(), OWNER, key, source, NBYTES, out)

    def compile(self) -> None:
        """Put one object under a key of zeros, so that the kernel is compiled."""
        self._launch(0)
        synchronize(self._cache.device)


def _wait(pause: float, load: Load | None) -> None:
    wake = time.perf_counter() + pause
    while time.perf_counter() < wake:
        if load is not None:
            load.feed()
        time.sleep(min(0.002, pause))


def host_time(stamp: int, before: Offset, after: Offset) -> float:
    """The host's time of a GPU's stamp, which lies between two comparisons of the clocks."""
    span = max(after.at_ns - before.at_ns, 1)
    rough = stamp - before.ns
    part = min(max((rough - before.at_ns) / span, 0.0), 1.0)
    return rough - part * (after.ns - before.ns)


def measure(device: torch.device, settings: GpuSettings, poller: str, busy: bool) -> dict[str, Any]:
    """One row. 0 means that the listener was faster than the error of the clocks.

    Raises:
        Unsound: a put failed, or its bytes are wrong. TimeoutError: an object never reached the listener.
    """
    options: dict[str, Any] = {"page_bytes": PAGE_BYTES, "evict": False}
    caches = local_world(2, HEAP_BYTES, device=device, **options)
    try:
        puts = settings.asleep_puts if poller == "asleep" else settings.awake_puts
        putter, load = Putter(caches[0], puts), Load(device, settings) if busy else None
        owner = OwnerHere(caches[OWNER])
        owner.listen()
        putter.compile()
        before = compare_clocks(device, settings.handshakes)
        stamps = putter.put_all("announced", PAUSES[poller], load)
        seen = dict(owner.stored(len(stamps) + 1))
        after = compare_clocks(device, settings.handshakes)
        _check_bytes(caches[OWNER])
    finally:
        for cache in caches:
            cache.close()
    ns = [max(round(seen[key] - host_time(stamp, before, after)), 0) for key, stamp in stamps.items()]
    return {
        "poller": poller,
        "gpu": "busy" if busy else "idle",
        "us": summarise(ns),
        "clock_error_us": max(before.uncertainty_ns, after.uncertainty_ns) / 1e3,
        "clock_drift_us": (after.ns - before.ns) / 1e3,
        "matmul_rounds": load.rounds if load is not None else 0,
    }


def _check_bytes(cache: NanoKVCache) -> None:
    found = cache.get("announced 0").view(torch.uint8).reshape(-1).cpu()
    if not torch.equal(found, torch.arange(NBYTES).to(torch.uint8)):
        raise Unsound("other bytes were read than were put")


def ingest(device: torch.device, settings: GpuSettings, ctas: int) -> dict[str, Any]:
    """One row: CTAs put objects without payload at full speed; how fast their hints come into the owner's index.

    A hint that finds no room in the ring is missed: the owner finds the object by itself, later. Rates are over all
    objects, and `ingest_per_s` is until `flush` returns.

    Raises:
        Unsound: a put failed, or an object is not in the index after `flush`.
    """
    count = settings.ingest_objects
    options: dict[str, Any] = {"page_bytes": PAGE_BYTES, "evict": False}
    caches = local_world(2, 2 * count * PAGE_BYTES, device=device, **options)
    try:
        table, owner, timer = world_table(caches[0]), caches[OWNER], Timer(device)
        out = torch.zeros(ctas, dtype=torch.int64, device=device)

        def put(first: int, objects: int) -> None:
            words = (table.data_ptr(), OWNER, first, objects, PAGE_BYTES, out.data_ptr())
            launch(put_storm_kernel, ctas, *words)

        put(0, min(ctas, count // 2))  # compiles
        owner.flush(timeout=FLUSH_SECONDS)
        before = owner.stats()
        start = time.perf_counter()
        timer.time("put", lambda: put(count, count))
        synchronize(device)
        put_all = time.perf_counter()
        owner.flush(timeout=FLUSH_SECONDS)
        end = time.perf_counter()
        after = owner.stats()
        indexed = after["indexed"] - before["indexed"]
        if int(out.sum()) or indexed != count:
            raise Unsound(f"{int(out.sum())} of {count} puts failed, {indexed} are in the index")
    finally:
        for cache in caches:
            cache.close()
    return {
        "what": "ingest",
        "ctas": ctas,
        "objects": count,
        "put_per_s": count / timer.summaries()["put"]["p50"] * 1e6,
        "ingest_per_s": count / (end - start),
        "after_puts_ms": (end - put_all) * 1e3,
        "missed": after["ring_missed"] - before["ring_missed"],
        "hints": after["hints"] - before["hints"],
    }


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each state of the poller and of the GPU, then one for each number of CTAs that put at full speed."""
    for poller in PAUSES:
        for busy in (False, True):
            keep({"what": "commit to listener"} | measure(device, settings, poller, busy))
    for ctas in settings.ingest_ctas:
        keep(ingest(device, settings, ctas))

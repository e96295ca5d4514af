"""From the commit in a kernel to the owner's listener on the host, while the GPU is idle and while it is busy.

The kernel reads the GPU's clock right before its commit; the listener reads the host's. Handshakes before and after
compare the two clocks. So a figure includes the commit, the announcement, the poller's pause or sleep, its launches
that drain the ring and read headers, the index and the call of the listener; `clock_error_us` bounds its error.
"""

import time
from typing import Any

import torch

from nanokv import NanoKVCache, local_world
from nanokv.bench.gpu.clock import Offset, compare_clocks, launch
from nanokv.bench.gpu.kernels import put_stamped_kernel
from nanokv.bench.gpu.many import Keep
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import synchronize
from nanokv.bench.gpu.versions import OWNER, world_table
from nanokv.bench.suite.owner import OwnerHere
from nanokv.bench.suite.timing import summarise

HEAP_BYTES = 16 << 20
PAGE_BYTES = 4096
NBYTES = 256
PAUSES = {"asleep": 0.03, "awake": 0.001}  #: seconds between puts; the poller goes to sleep after about 10 ms


class Load:
    """Keeps the GPU busy with products of matrices on a stream of its own; call `feed` often."""

    DEPTH = 4  #: rounds of `matmuls` in the queue at most

    def __init__(self, device: torch.device, settings: GpuSettings) -> None:
        self._on_gpu = device.type == "cuda"
        self._count = settings.matmuls
        kind = torch.bfloat16 if self._on_gpu else torch.float32
        self._matrix = torch.ones(settings.matmul, settings.matmul, dtype=kind, device=device)
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
        putter, load = Putter(caches[0], settings.announce_puts), Load(device, settings) if busy else None
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


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each state of the poller and of the GPU."""
    for poller in PAUSES:
        for busy in (False, True):
            keep(measure(device, settings, poller, busy))

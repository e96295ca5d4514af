"""What an object costs its owner's host in memory, and what the control regions take of a segment.

The index is in the owner's process. Its private memory (RssAnon of Linux: what the process has touched and shares with
nobody; the segment is shared memory and not in it) is looked at before a world is opened and when all objects are in
the index; the difference, divided by the objects, is the figure. `tracemalloc` would count arrays that are reserved and
never touched, and miss what is allocated past Python. Each look is at a new process, since memory that was freed may
stay with one.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from nanokv import NanoKVCache, local_world
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.turns import in_turns
from nanokv.bench.suite.worlds import OWNER, PAGE_BYTES, Worlds
from nanokv.cache.engine import plan_geometry
from nanokv.config import Options
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import REGIONS

SIZE = 64  #: bytes of an object, and of a page
SPARE = 1024  #: pages
MANY = 1000  #: keys of one call
GIB = 1 << 30
SEGMENTS = (GIB, 16 * GIB, 64 * GIB)
LARGEST = 3  #: regions that the note names
FEWER = 5  #: times as many objects in the larger world
REPEATS = 3  #: at most: a process always touches the same arrays
HERE = "nanokv.bench.questions.memory"


def private_bytes(cache: NanoKVCache | None) -> int:
    """RssAnon of this process. `cache`: as `Peer.call` passes it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) << 10
    raise OSError("/proc/self/status has no RssAnon")


def warm(cache: NanoKVCache | None) -> None:
    """Load all code that a world needs, and use it once."""
    (one,) = local_world(1, 1 << 20, page_bytes=4096)
    with one:
        one.put("k", torch.ones(3))
        one.flush()
        one.remove("k")


def flush(cache: NanoKVCache) -> int:
    """How many objects the index has, after a flush."""
    cache.flush()
    return cache.segment_count()


def index_bytes(objects: int) -> float:
    """Bytes of the owner's private memory an object, with so many objects in its index.

    Raises:
        RuntimeError: the index has not all objects.
    """
    value = torch.zeros(SIZE, dtype=torch.uint8)
    with Worlds() as worlds:
        peer = worlds.peer()
        peer.call(f"{HERE}:warm")
        before = peer.call(f"{HERE}:private_bytes")
        heap_bytes = (objects + SPARE) * SIZE
        with worlds.open("shm", "device", heap_bytes, page_bytes=SIZE, max_objects=objects) as world:
            for first in range(0, objects, MANY):
                keys = [world.cache.digest(f"{i}") for i in range(first, min(first + MANY, objects))]
                world.cache.put_many(keys, [value] * len(keys), preferred_segment=OWNER)
            indexed = peer.call(f"{HERE}:flush")
            after = peer.call(f"{HERE}:private_bytes")
    if indexed != objects:
        raise RuntimeError(f"the index has {indexed} objects, not {objects}")
    return float(after - before) / objects


def control_share(segment_bytes: int) -> tuple[float, str]:
    """Percent of a segment of about so many bytes that the control regions take, and which take the most."""
    geometry = plan_geometry(segment_bytes, PAGE_BYTES, 1 + OWNER, Options())
    share = 100 * geometry.offsets["heap_base"] / geometry.segment_bytes
    sizes = region_bytes(geometry)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
    return share, ", ".join(f"{name} {sizes[name] / geometry.n_pages:.0f} B a page" for name in largest)


def region_bytes(geometry: Geometry) -> dict[str, int]:
    """Bytes of each region of a segment, by name."""
    return {region.name: region.dtype.itemsize * geometry.records_in(region) for region in REGIONS}


def measure(run: Run) -> Iterator[Figure]:
    """The regions, which are computed; and two sizes of the index, in turns."""
    settings = run.settings
    for nbytes in SEGMENTS:
        share, note = control_share(nbytes)
        case: Case = {"what": "control regions, of the segment", "GiB": nbytes // GIB}
        yield quantity("memory", case, "%", "lower", [share], f"{nbytes // GIB} GiB: {note}")
    if why_no_index(settings) is None:
        counts = (max(settings.objects // FEWER, 1), settings.objects)
        ways = {count: partial(index_bytes, count) for count in counts}
        found = in_turns(ways, min(settings.repeats, REPEATS), say=run.say)
        for count, values in found.items():
            yield quantity("memory", {"what": "index, bytes per object", "objects": count}, "bytes", "lower", values)


def why_no_index(settings: Settings) -> str | None:
    """Why the index cannot be measured, or None."""
    if not Path("/proc/self/status").exists():
        return "this system does not tell how much private memory a process has"
    return needs_processes(settings)


QUESTION = Question(
    "memory",
    "How much memory does an object cost beside its bytes?",
    measure,
    "The index: private memory (RssAnon) that the owner's process has gained, a new process each time, when so many "
    "objects of another process are in its index; divided by them. Code is loaded before the first look. The control "
    "regions: computed from the geometry of a segment with pages of 256 KiB and default options: there is one value.",
)

"""The settings of a run: what to measure, and how often. The command line makes them."""

from dataclasses import dataclass, replace

KIB = 1 << 10
MIB = 1 << 20
SIZES = (64, KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 8 * MIB)
MAX_SIZE = 32 * MIB  #: the largest object of a heap with default size classes
ROUND_BYTES = 4 << 30  #: bytes that the rounds of one repetition put at most
V1_ROUNDS = 2000
_UNITS = {"K": KIB, "M": MIB}


@dataclass(frozen=True, slots=True)
class Settings:
    """Counts and choices of one run.

    Attributes:
        sizes: payload bytes of the objects.
        rounds: samples of each call in one repetition, at most: see `rounds_of`. p99.99 needs 100,000.
        repeats: repetitions of every figure, whose median and spread are shown.
        heaps: of "local" (both ranks in this process) and "shm" (two processes).
        allocs: of "device" (v2) and "host" (v1).
        ring_bytes: bytes of the objects in the heap during the measurement, and of the plain copies beside them.
        threads: torch's intra-op threads, for NanoKV and the plain copies alike.
        objects: in the largest segment, where the number of objects is what counts.
        pages: of the segments that are filled until they are full.
        pairs: pops and pushes per thread in one run of the free list.
        topologies: numbers of producers and owners that work at once; empty: small ones, and those with a core each.
        idle_puts: puts that find the poller asleep; each costs a pause of 30 ms.
    """

    sizes: tuple[int, ...] = SIZES
    rounds: int = 100_000
    repeats: int = 5
    heaps: tuple[str, ...] = ("local", "shm")
    allocs: tuple[str, ...] = ("device", "host")
    ring_bytes: int = 256 * MIB
    threads: int = 1
    objects: int = 1_000_000
    pages: int = 8192
    pairs: int = 50_000
    topologies: tuple[tuple[int, int], ...] = ()
    idle_puts: int = 100

    def rounds_of(self, size: int, alloc: str = "device") -> int:
        """Rounds with objects of `size` bytes: `rounds`, or what moves 4 GiB once; for v1 at most 2,000.

        So a repetition takes a few seconds at every size, also where each allocation is a message.
        """
        most = self.rounds if alloc == "device" else min(self.rounds, V1_ROUNDS)
        return max(min(most, ROUND_BYTES // size), 1)


def quick(settings: Settings) -> Settings:
    """Settings with small counts: they show that everything works; the figures mean little."""
    small = replace(settings, rounds=50, repeats=2, ring_bytes=32 * MIB, idle_puts=5)
    return replace(small, objects=5000, pages=1024, pairs=20_000)


def parse_size(text: str) -> int:
    """Bytes, as "64", "1K" or "8M" (KiB, MiB).

    Raises:
        ValueError: the text has another form, or is not positive.
    """
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"a size is a positive number of bytes, KiB (K) or MiB (M), not {text!r}")
    return int(number) * unit


def show_size(nbytes: int) -> str:
    """Bytes as text for people, such as "8 MiB"."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"

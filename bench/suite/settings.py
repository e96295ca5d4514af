"""The settings of a run: what to measure, and how often. The command line makes them."""

from dataclasses import dataclass, replace

KIB = 1 << 10
MIB = 1 << 20
SIZES = (64, KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 8 * MIB)
_UNITS = {"K": KIB, "M": MIB}


@dataclass(frozen=True, slots=True)
class Settings:
    """Counts and choices of one run.

    Attributes:
        sizes: payload bytes of the objects.
        rounds: measurements of each operation per size; below 1000, p99.9 is the slowest of them.
        heaps: of "local" (both ranks in this process) and "shm" (two processes).
        allocs: of "device" (v2) and "host" (v1).
        ring_bytes: bytes of the objects in the heap during the measurement, and of the plain copies beside them.
        threads: torch's intra-op threads, for NanoKV and the plain copies alike.
        pairs: pops and pushes per thread in one run of the free list.
        repeats: runs of the free list (that count) and of each import; the median is shown.
        idle_puts: puts that find the poller asleep; each costs a pause of 30 ms.
    """

    sizes: tuple[int, ...] = SIZES
    rounds: int = 2000
    heaps: tuple[str, ...] = ("local", "shm")
    allocs: tuple[str, ...] = ("device", "host")
    ring_bytes: int = 256 * MIB
    threads: int = 1
    pairs: int = 200_000
    repeats: int = 5
    idle_puts: int = 100


def quick(settings: Settings) -> Settings:
    """The same with small counts: shows that everything works; the figures mean little."""
    return replace(settings, rounds=50, ring_bytes=32 * MIB, pairs=20_000, repeats=1, idle_puts=5)


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

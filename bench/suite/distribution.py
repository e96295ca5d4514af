"""What samples say: percentiles to p99.99, and buckets that can be merged and drawn."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from nanokv.bench.suite.figure import AnyCase, Bucket, Figure
from nanokv.bench.suite.timing import Samples

Durations = npt.NDArray[np.int64]  #: nanoseconds

PERCENTILES = {"p50": 5000, "p90": 9000, "p99": 9900, "p99.9": 9990, "p99.99": 9999}  #: name -> of ten thousand
ABOVE = 10  #: as many samples must lie above a percentile: p99.99 needs 100,000 samples, p99 needs 1,000
_BITS = 7  #: of a duration's leading bits a bucket keeps so many, so it is at most 1/64 of its lower bound wide


def percentiles(ns: Durations) -> dict[str, float]:
    """ "n", the percentiles that at least ten samples lie above, and "max", in microseconds.

    Each is one of the samples, never between two. p50 needs no sample above it.

    Raises:
        ValueError: there are no samples.
    """
    count = len(ns)
    if not count:
        raise ValueError("there are no samples")
    ordered = np.sort(ns)
    ranks = {name: -(-count * share // 10_000) for name, share in PERCENTILES.items()}
    shown = {name: rank for name, rank in ranks.items() if name == "p50" or count - rank >= ABOVE}
    found = {name: float(ordered[rank - 1]) / 1e3 for name, rank in shown.items()}
    return {"n": float(count)} | found | {"max": float(ordered[-1]) / 1e3}


def buckets(ns: Durations) -> list[Bucket]:
    """How many samples lie in each bucket that has any. Below 128 ns a bucket is one nanosecond."""
    dropped = np.maximum(np.frexp(ns)[1] - _BITS, 0)
    lower, counts = np.unique(ns >> dropped << dropped, return_counts=True)
    return list(zip(lower.tolist(), counts.tolist(), strict=True))


def merged(parts: Iterable[Iterable[Bucket]]) -> list[Bucket]:
    """The buckets of all parts together."""
    counts: dict[int, int] = {}
    for lower, count in (bucket for part in parts for bucket in part):
        counts[lower] = counts.get(lower, 0) + count
    return sorted(counts.items())


def width(lower: int) -> int:
    """The width of the bucket with this lower bound, in nanoseconds."""
    return 1 << max(lower.bit_length() - _BITS, 0)


def latency(question: str, case: AnyCase, repetitions: Sequence[Samples | Durations], note: str = "") -> Figure:
    """The figure of a latency: one of `repetitions` for each time that it was measured.

    Raises:
        ValueError: there is no repetition, or one without samples.
    """
    if not repetitions:
        raise ValueError(f"{question}, {case}: there are no repetitions")
    all_ns = [one.ns if isinstance(one, Samples) else np.asarray(one, np.int64) for one in repetitions]
    values = [percentiles(ns) for ns in all_ns]
    return Figure(question, dict(case), "us", "lower", values, merged(map(buckets, all_ns)), note)

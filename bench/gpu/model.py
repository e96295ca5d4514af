"""A model of the time that one operation takes on a GPU: `python -m bench.gpu.model`. No GPU has confirmed it yet.

The PTX machine runs the compiled operation and adds up, along the chain of what waits for what (`ptx.counting`), what
each instruction takes by ASSUMPTIONS. Each of those has a lower and an upper value, and so has the result. The share of
each kind of step on the longest chain says which one to shorten next.

Not in the model: other work on the GPU and on its links, the order that ptxas gives instructions, misses of the
instruction cache (put_many's code is larger than it), and the launch: a kernel from a graph begins in 2 to 3 us.

    python -m bench.gpu.model                                    # the estimate
    python -m bench.gpu.model --measured bench/results/gpu.json  # beside what `bench.gpu.plan` measured
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nanokv.bench.gpu.budget import MeteredSegment
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.suite.settings import show_size
from nanokv.device import ptx
from nanokv.device.ptx.operands import Instruction

LOW, HIGH = 0, 1


class Assumption(NamedTuple):
    """What the model assumes: a range, and where it comes from."""

    low: float
    high: float
    unit: str
    source: str

    def at(self, bound: int) -> float:
        """LOW or HIGH."""
        return self.high if bound == HIGH else self.low


_HOPPER = "measured on an H100 (arXiv 2402.13499, table of memory latencies)"
ASSUMPTIONS = {
    "clock": Assumption(1.98, 1.755, "GHz", "H100 SXM: boost at most, and as reported for the PCIe card"),
    "alu": Assumption(4, 6, "cycles", "a dependent integer instruction; common to NVIDIA GPUs since Volta"),
    "shuffle": Assumption(22, 26, "cycles", "assumed like Volta's"),
    "shared": Assumption(29, 33, "cycles", _HOPPER),
    "barrier": Assumption(16, 30, "cycles", "of one warp; assumed"),
    "load": Assumption(263, 479, "cycles", f"L2 hit, and global memory: {_HOPPER}"),
    "atomic": Assumption(263, 479, "cycles", "done in L2: assumed as slow as a load"),
    "acquire": Assumption(20, 100, "cycles", "empties the L1 cache after the atomic; assumed"),
    "release": Assumption(400, 900, "ns", "waits for all stores, system scope; assumed, no published figure"),
    "link": Assumption(500, 1000, "ns", "NVLink, there and back, on top; public estimates of 500 to 700, loaded more"),
    "copy": Assumption(1250, 1100, "GB/s", "payload within an H100: half of 2,500 (NVIDIA/nccl issue 1264, at best)"),
    "nvlink": Assumption(376, 330, "GB/s", "payload to a peer: the same issue"),
    "launch": Assumption(2000, 3500, "ns", "a kernel from a graph; usual"),
}


class Span(float):
    """A time in ns that knows its parts. The sum of two has the parts of both; `max` keeps one of them."""

    parts: Counter[str]

    def __new__(cls, value: float, parts: Counter[str] | None = None) -> "Span":
        """`parts`: kind -> ns."""
        made = super().__new__(cls, value)
        made.parts = parts if parts is not None else Counter()
        return made

    def __add__(self, other: float) -> "Span":
        parts = other.parts if isinstance(other, Span) else Counter[str]()
        return Span(float(self) + float(other), self.parts + parts)

    __radd__ = __add__


class Prices:
    """What an instruction takes, in ns.

    Args:
        bound: LOW or HIGH.
        remote: (first, end) of the addresses that lie behind a link; None: none.
    """

    def __init__(self, bound: int, remote: tuple[int, int] | None) -> None:
        self._remote = remote or (0, 0)
        cycle = 1 / ASSUMPTIONS["clock"].at(bound)
        self._ns = {
            name: each.at(bound) * (cycle if each.unit == "cycles" else 1) for name, each in ASSUMPTIONS.items()
        }

    def __call__(self, i: Instruction, address: int | None) -> Span:
        """The price of an instruction whose operands are there."""
        steps = self._steps(i, address)
        parts = Counter({name: self._ns[name] for name in steps})
        return Span(sum(parts.values()), parts)

    def _steps(self, i: Instruction, address: int | None) -> list[str]:
        if address is None:
            return [self._inside(i)]
        link = ["link"] if self._remote[0] <= address < self._remote[1] else []
        if i.opcode not in ("atom", "red"):
            return ["load", *link] if i.opcode == "ld" else ["alu"]  # nobody waits for a store but a release
        release = ["release"] if {"release", "acq_rel"} & set(i.modifiers) else []
        acquire = ["acquire"] if {"acquire", "acq_rel"} & set(i.modifiers) else []
        return [*release, "atomic", *link, *acquire]

    @staticmethod
    def _inside(i: Instruction) -> str:
        if i.opcode in ("fence", "membar"):
            return "release"
        if i.opcode in ("bar", "barrier"):
            return "barrier"
        if i.opcode in ("ld", "st") and "shared" in "".join(i.modifiers):
            return "shared"
        return "shuffle" if i.opcode == "shfl" else "alu"


class Estimate(NamedTuple):
    """Ranges of one operation's cost.

    Attributes:
        low, high: ns, without the launch.
        parts: of `high`: kind -> ns.
    """

    operation: str
    where: str
    low: float
    high: float
    parts: Counter[str]


def estimates() -> Iterator[Estimate]:
    """A put and a get of one small object, into a segment of the same GPU and over a link."""
    for where in ("own", "peer"):
        spans = [_spans(bound, peer=where == "peer") for bound in (LOW, HIGH)]
        for name in spans[LOW]:
            yield Estimate(name, where, spans[LOW][name], spans[HIGH][name], spans[HIGH][name].parts)


def _spans(bound: int, *, peer: bool) -> dict[str, Span]:
    remote: list[tuple[int, int]] = []

    def price(i: Instruction, address: int | None) -> Span:
        return Prices(bound, remote[0] if remote else None)(i, address)

    with ptx.machine(memory=ptx.HostMemory(), count=True, price=price) as machine:
        counted = MeteredSegment(machine)
        if peer:
            first = counted.segment.raw.data_ptr()
            remote.append((first, first + counted.segment.raw.nbytes))
        counted.fill_lists()
        one, single = counted.new_keys(1), counted.single
        found = {
            name: counted.done(single, one, do).most.chain for name, do in (("put", single.put), ("get", single.get))
        }
    return {name: span if isinstance(span, Span) else Span(span) for name, span in found.items()}


def bandwidths(puts: dict[str, Estimate]) -> Iterator[tuple[int, str, float]]:
    """(bytes per object, where, payload bandwidth of put_many from a graph, of a plain copy's), by the upper values."""
    settings, launch = GpuSettings(), ASSUMPTIONS["launch"].high
    for where, kind in (("own", "copy"), ("peer", "nvlink")):
        for size in settings.sizes:
            copying = size * settings.objects / ASSUMPTIONS[kind].high
            yield size, where, (copying + launch) / (copying + launch + puts[where].high)


def measured(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What a run on a GPU says of a put and a get without payload, inside a kernel, by one CTA
    (or as few as there were).

    Returns:
        operation -> "p50" and "p99" of warm rounds, and "cold": p50 of the first rounds; all in ns.
    """
    rows = [row for result in results if result["name"] == "produce" for row in result.get("rows", [])]
    bare = [row for row in rows if row.get("what") == "put and get" and row["size"] == 0]
    found = {}
    for row in (row for row in bare if row["ctas"] == min(row["ctas"] for row in bare)):
        for name in ("put", "get"):
            us, cold = row["us"][name], row["cold_us"][name]
            found[name] = {"p50": us["p50"] * 1e3, "p99": us["p99"] * 1e3, "cold": cold["p50"] * 1e3}
    return found


def report(file: Path | None) -> Iterator[str]:
    """The lines that are printed."""
    yield "Assumptions (low to high):"
    for name, assumed in ASSUMPTIONS.items():
        yield f"  {name:8} {assumed.low:g} to {assumed.high:g} {assumed.unit}: {assumed.source}"
    found = list(estimates())
    yield "One object of 100 bytes, inside a kernel, by one warp, p50 (nothing else at work):"
    for each in found:
        yield f"  {each.operation} {each.where:5} {each.low / 1000:.1f} to {each.high / 1000:.1f} us"
        shares = ", ".join(f"{name} {ns / each.high:.0%}" for name, ns in each.parts.most_common(6))
        yield f"    of the upper value: {shares}"
    puts = {each.where: each for each in found if each.operation == "put"}
    yield f"put_many of {GpuSettings().objects} objects from a graph, of a copy's bandwidth (upper values):"
    for size, where, share in bandwidths(puts):
        yield f"  {show_size(size):8} {where:5} {share:.0%}"
    if file is None:
        return
    own = {each.operation: each for each in found if each.where == "own"}
    of_gpu = measured(json.loads(file.read_text(encoding="utf-8"))["results"])
    if not of_gpu:
        raise SystemExit(f"{file} has no row of the benchmark `produce` of a put and a get without payload")
    for name, ns in of_gpu.items():
        warm, cold = ns["p50"] / 1000, ns["cold"] / 1000
        ratio = ns["p50"] / own[name].high
        yield f"Measured: {name} {warm:.1f} us, {ratio:.2f} of the model's upper value; first of a launch {cold:.1f} us"


def main() -> None:
    """Print the model."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.model", description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, metavar="FILE", help="the JSON of `make test-gpu`, to compare with")
    for line in report(parser.parse_args().measured):
        print(line)


if __name__ == "__main__":
    main()

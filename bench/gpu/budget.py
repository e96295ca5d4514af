"""What each operation costs in compiled code, counted on the PTX machine, without a GPU: `python -m bench.gpu.budget`.

One warp's instructions and accesses per object, and the longest chain of accesses that wait for each other. Counts are
exact for a compiler and a target: CI holds them down by `LIMITS` (tests/ptx/test_budget.py). Time is not
counted; `bench.gpu.model` makes an estimate of it.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from nanokv.bench.gpu.one_segment import OneSegment, Unsound
from nanokv.device import ptx
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request
from nanokv.device.protocol.status import Status

PAGE_BYTES = 4096
PAGES = 4096
NBYTES = 100  #: of an object: the protocol counts here, not the copy
MANY, CTAS = 256, 16  #: objects of one launch of many, and its CTAs
FREE_NODES = 4 * MANY  #: slots, and pages, in the free lists: runs find what they need at home
COLUMNS = ("instructions", "loads", "stores", "shuffles", "barriers", "atomics", "ordered", "waits")

#: operation -> the most that each of these may cost on sm_90
LIMITED = ("instructions", "loads", "atomics", "ordered", "waits")
LIMITS = {
    "put, cold heap": (1920, 131, 11, 5, 34),
    "put": (955, 59, 11, 7, 26),
    "get": (680, 55, 2, 1, 24),
    "find": (253, 16, 0, 0, 10),
    "remove": (645, 50, 7, 6, 33),
    f"put_many of {MANY}": (765, 42, 6.8, 3.6, 425),
    f"get_many of {MANY}": (580, 43, 2, 1, 345),
    f"find_many of {MANY}": (137, 9.6, 0.1, 0.1, 119),
    f"remove_many of {MANY}": (565, 35, 7.1, 6.1, 510),
}


class Cost(NamedTuple):
    """What one operation costs one warp, per object.

    Attributes:
        atomics: all of them; `ordered`: those that acquire or release.
        waits: the longest chain of dependent accesses to global memory, of a whole launch.
    """

    operation: str
    instructions: float
    loads: float
    stores: float
    shuffles: float
    barriers: float
    atomics: float
    ordered: float
    waits: float


class MeteredSegment:
    """A segment with an empty heap, on a machine that counts.

    Attributes:
        single, many: batches of one CTA, and of CTAS.
    """

    def __init__(self, machine: ptx.Machine) -> None:
        self.machine = machine
        self.segment = OneSegment(torch.device("cpu"), PAGES * PAGE_BYTES, PAGE_BYTES, slots=PAGES)
        self.payload = torch.arange(NBYTES, dtype=torch.uint8)
        self.single = Batch(self.segment.world, 1, self.segment.device, ctas=1)
        self.many = Batch(self.segment.world, MANY, self.segment.device, ctas=CTAS)
        self.keys = 0

    def new_keys(self, count: int) -> list[Request]:
        """Requests of objects that were never put."""
        self.keys += count
        address = self.payload.data_ptr()
        return [Request((key, key * 7919), address, NBYTES) for key in range(self.keys - count, self.keys)]

    def done(self, batch: Batch, requests: list[Request], do: Callable[[], None]) -> ptx.LaunchCounts:
        """Do it once; what was counted.

        Raises:
            Unsound: a status is not OK.
        """
        batch.fill(requests)
        do()
        if batch.answers() != [Status.OK] * len(requests):
            raise Unsound(f"the statuses {batch.answers()}")
        return self.machine.report().counts[-1]

    def fill_lists(self) -> None:
        """Put and remove many objects: the lists have free slots and extents then, as in a heap that is in use."""
        batches = [self.new_keys(MANY) for _ in range(FREE_NODES // MANY)]
        with ptx.machine(memory=ptx.HostMemory()):  # which does not count, and is faster
            for do in (self.many.put, self.many.remove):
                for requests in batches:
                    self.many.fill(requests)
                    do()

    def cost(self, operation: str, batch: Batch, requests: list[Request], do: Callable[[], None]) -> Cost:
        """Do it once, and say what it cost."""
        counts, each = self.done(batch, requests, do), len(requests)
        total = counts.total
        accesses = total.relaxed_atomics + total.ordered_atomics, total.ordered_atomics
        sums = total.instructions, total.loads, total.stores, total.shuffles, total.barriers, *accesses
        per_object = [value / each for value in sums]
        return Cost._make([operation, *per_object, counts.most.chain])


def costs(capability: int = 90) -> Iterator[Cost]:
    """Count every operation.

    Args:
        capability: of the GPU that kernels are compiled for: 80, 90, 100.
    """
    with ptx.machine(capability=capability, memory=ptx.HostMemory(), count=True) as machine:
        counted = MeteredSegment(machine)
        single, many = counted.single, counted.many
        yield counted.cost("put, cold heap", single, counted.new_keys(1), single.put)
        counted.fill_lists()
        one = counted.new_keys(1)
        yield counted.cost("put", single, one, single.put)
        yield counted.cost("get", single, one, single.get)
        yield counted.cost("find", single, one, single.find)
        yield counted.cost("remove", single, one, single.remove)
        objects = counted.new_keys(MANY)
        yield counted.cost(f"put_many of {MANY}", many, objects, many.put)
        yield counted.cost(f"get_many of {MANY}", many, objects, many.get)
        yield counted.cost(f"find_many of {MANY}", many, objects, many.find)
        yield counted.cost(f"remove_many of {MANY}", many, objects, many.remove)


def table(rows: list[Cost]) -> str:
    """The costs, as text of at most 100 columns."""
    lines = [["per object", *COLUMNS]]
    lines += [
        [row.operation, *(f"{value:.0f}" if value >= 20 else f"{value:.3g}" for value in row[1:])] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.budget", description=__doc__.splitlines()[0])
    parser.add_argument("--capability", type=int, default=90, help="of the GPU: 80, 90 (default), 100")
    print(table(list(costs(parser.parse_args().capability))))


if __name__ == "__main__":
    main()

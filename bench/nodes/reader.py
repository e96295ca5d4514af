"""The process that measures: a node that reads from the owner and puts to it, call by call beside bare transfers.

`python -m nanokv.bench.nodes.reader FOLDER PLACES`. It answers each line of its input, a JSON object of arguments of
`Reader.lap`, with the durations in ns of each way.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import torch

from nanokv import NanoKVCache
from nanokv.bench.nodes.bare import Bare
from nanokv.bench.nodes.owner import NODE, PATIENCE
from nanokv.bench.suite.settings import KIB, MIB
from nanokv.cluster import NanoKVCluster
from nanokv.cluster.kinds import Kind

LINE = 64
SINGLE = (KIB, 64 * KIB, MIB, 8 * MIB)
BATCH = 256
BATCHED = (4 * KIB, 64 * KIB)
PLACE_BYTES = BATCH * max(BATCHED)
RING = 4  #: objects of a size, and batches of a size
SMALL_HEAP = 1 * MIB
NODES = 3

Ways = dict[str, Callable[[int], Any]]  #: by name: what is timed, given the number of the call


class Reader:
    """The nodes "cold", which remembers no locations, and "warm", which does."""

    def __init__(self, folder: str, places: Sequence[int]) -> None:
        self._worlds = [NanoKVCache(SMALL_HEAP, page_bytes=4096, evict=False) for _ in range(2)]
        url = f"file://{folder}"
        self.cold = NanoKVCluster(self._worlds[0], url, node="cold", timeout=PATIENCE, locations=0)
        self.warm = NanoKVCluster(self._worlds[1], url, node="warm", timeout=PATIENCE)
        self._memory = torch.zeros(PLACE_BYTES, dtype=torch.uint8)
        self.warm.register(self._memory)
        self.bare = Bare(self.warm, NODE, self._memory.data_ptr(), places)
        self._count = 0
        while len(self.cold.nodes) < len(self.warm.nodes) or len(self.warm.nodes) < NODES:
            time.sleep(0.01)

    def _keys(self, what: str, count: int) -> list[str]:
        """Keys whose home is the owner: a reader that knows nothing asks it first."""
        at_home = (key for i in itertools.count() if self.cold.home(key := f"{what} {i}") == NODE)
        return list(itertools.islice(at_home, count))

    # --- what is measured ---
    def singles(self, nbytes: int) -> Ways:
        """A get of one object beside bare reads."""
        keys = self._keys(f"{nbytes}", RING)
        for key in keys:
            if not self.warm.exists(key):
                self.warm.put(key, torch.full((nbytes,), 1, dtype=torch.uint8), preferred_segment=(NODE, 0))
        dst = torch.zeros(nbytes, dtype=torch.uint8)
        self._until_known(keys)
        ways: Ways = {
            "get": lambda i: self._checked(self.cold.get(keys[i % RING])),
            "get, dst": lambda i: self.cold.get(keys[i % RING], dst=dst),
            "get, known": lambda i: self._checked(self.warm.get(keys[i % RING])),
            "bare read": lambda i: self.bare.read(nbytes),
        }
        if nbytes == min(SINGLE):
            ways["four bare reads of 64 B"] = lambda i: self.bare.read(LINE, 4)
            ways["two bare reads of 64 B"] = lambda i: self.bare.read(LINE, 2)
        return ways

    def _until_known(self, keys: list[str]) -> None:
        while not all(self.warm._parts.locations.node_of(self.warm.digest(key)) for key in keys):
            self.warm._parts.events.wait(self.warm._parts.events.heard, 0.01)

    @staticmethod
    def _checked(found: torch.Tensor) -> None:
        assert found[-1] == 1

    def single_puts(self, nbytes: int) -> Ways:
        """A put of one object beside a bare write and an echo. What was put is removed by `after`."""
        tensor = torch.full((nbytes,), 1, dtype=torch.uint8)

        def put(i: int) -> None:
            self._count += 1
            self.warm.put(f"put {self._count}", tensor, preferred_segment=(NODE, 0))

        return {
            "put": put,
            "bare write and echo": lambda i: self._write_and_echo(nbytes),
            "echo": lambda i: self.echo(),
        }

    def _write_and_echo(self, nbytes: int) -> None:
        self.bare.write(nbytes)
        self.echo()

    def echo(self) -> None:
        """A message to the owner and its answer."""
        to = self.warm._nodes[NODE].cards[0]
        self.warm._parts.asker.ask(to.messages, to.member, Kind.REMOVE, b"", PATIENCE, to_incarnation=to.incarnation)

    def batches(self, nbytes: int) -> Ways:
        """256 objects in one call, in the order in which they were put, beside one bare read of as many bytes."""
        keys = [self._keys(f"batch {nbytes} {k}", BATCH) for k in range(RING)]
        tensors, dsts = (torch.full((BATCH, nbytes), k, dtype=torch.uint8) for k in (1, 0))
        for some in keys:
            if not self.warm.exists(some[0]):
                assert not any(self.warm.put_many(some, tensors, preferred_segment=(NODE, 0)))
            self._until_known(some[-1:])
        digests = [self.cold.world._digests(some) for some in keys]

        def get(cluster: NanoKVCluster, i: int) -> None:
            assert all(cluster.get_many(digests[i % RING], dsts=dsts))

        return {
            "get_many": lambda i: get(self.cold, i),
            "get_many, known": lambda i: get(self.warm, i),
            "bare read": lambda i: self.bare.read(BATCH * nbytes),
        }

    def batch_puts(self, nbytes: int) -> Ways:
        """256 objects in one call, of registered memory, beside one bare write and an echo."""
        tensors = self._memory[: BATCH * nbytes].view(BATCH, nbytes)

        def put(i: int) -> None:
            self._count += 1
            keys = self._batch()
            assert not any(self.warm.put_many(keys, tensors, preferred_segment=(NODE, 0)))

        return {"put_many": put, "bare write and echo": lambda i: self._write_and_echo(BATCH * nbytes)}

    def _batch(self) -> list[str]:
        return [f"put {self._count} {i}" for i in range(BATCH)]

    # --- a lap ---
    def lap(self, what: str, nbytes: int, calls: int) -> Mapping[str, list[int]]:
        """Durations in ns of `calls` calls of each way, which take turns."""
        ways: Ways = getattr(self, what)(nbytes)
        found: dict[str, list[int]] = {name: [] for name in ways}
        warm_up = min(calls, RING)
        for i in range(warm_up + calls):
            for name, way in ways.items():
                start = perf_counter_ns()
                way(i)
                taken = perf_counter_ns() - start
                if i >= warm_up:
                    found[name].append(taken)
        return found

    def close(self) -> None:
        """Leave."""
        for each in (self.cold, self.warm):
            each.close()
        for world in self._worlds:
            world.close()


@contextmanager
def _answers() -> Iterator[Any]:
    """Where answers go: what was standard output. What libraries print goes to standard error."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


def main(folder: str, places: str) -> None:
    """Take laps until the input ends."""
    with _answers() as answers:
        torch.set_num_threads(1)
        reader = Reader(folder, json.loads(places))
        for line in sys.stdin:
            print(json.dumps(reader.lap(**json.loads(line))), file=answers, flush=True)
        reader.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

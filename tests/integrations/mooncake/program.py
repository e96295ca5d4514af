"""A program of random calls: it makes them to the store that `mooncake.store` is, and prints the answer of each.

`python -m MODULE SEED COUNT MASTER`, once with the real package and once with NanoKV's.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from mooncake.store import MooncakeDistributedStore


class Calls(Protocol):
    """Random calls, the same for the same seed and store."""

    def step(self) -> dict[str, Any]:
        """Do one call: what it was, its answer, and what there is then."""


def run(calls_of: Callable[[int, Any], Calls], segment: int, local: int) -> None:
    """Set up a client, do the calls, print the answers as lines of JSON.

    Args:
        calls_of: makes the calls from a seed and a store.
        segment, local: bytes of the client's segment and of its local buffer.
    """
    seed, count, master = sys.argv[1:]
    store = MooncakeDistributedStore()
    metadata = os.environ.get("MC_METADATA_SERVER", "P2PHANDSHAKE")
    if store.setup("localhost", metadata, segment, local, "tcp", "", master):
        sys.exit("set-up failed")
    calls = calls_of(int(seed), store)
    for _ in range(int(count)):
        print(json.dumps(calls.step()), flush=True)
    os._exit(0)  # the real one may fault when the interpreter ends

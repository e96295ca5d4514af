"""What a request costs v1's master, measured on this machine: `python -m bench.simulate.master`.

One process is the master, another one puts, gets and removes small objects in its own segment. What counts is processor
time of the master's process, all of its threads together, per request; a busy machine makes it longer, so run it on a
quiet one. The master has one lock and one interpreter: this is close to the least time between two of its answers.
Threads of the message library may work at the same time, so it can be shorter.
"""

import argparse
import multiprocessing
import secrets
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from nanokv import NanoKVCache

MASTER, CLIENT = 0, 1
PAGE = 4096
WARM_UP = 50  #: puts
SECONDS = 60.0  #: to wait for the other process


def world(name: str, rounds: int) -> dict[str, Any]:
    """The options of the world: room for what is put."""
    room = (rounds + WARM_UP + 256) * PAGE
    return {
        "name": name,
        "world_size": 2,
        "heap_bytes": room,
        "page_bytes": PAGE,
        "alloc": "host",
        "master_rank": MASTER,
        "evict": False,
        "attach_timeout": SECONDS,
    }


def client(options: dict[str, Any], rounds: int, pipe: Connection) -> None:
    """Put, get or remove `rounds` objects whenever the master's process says so."""
    source, target = torch.ones(256), torch.empty(256)
    with NanoKVCache(rank=CLIENT, **options) as cache:
        for i in range(WARM_UP):
            cache.put(f"warm {i}", source, preferred_segment=CLIENT)
        pipe.send("ready")
        for what in iter(pipe.recv, "end"):
            for i in range(rounds):
                if what == "put":
                    cache.put(f"{i}", source, preferred_segment=CLIENT)
                elif what == "get":
                    cache.get(f"{i}", dst=target)
                else:
                    cache.remove(f"{i}")
            pipe.send(what)


def measure(rounds: int) -> dict[str, float]:
    """Processor time in us per request of the master: by operation. A put is two requests.

    Raises:
        SystemExit: the other process has failed.
    """
    context, options = multiprocessing.get_context("spawn"), world(f"bench-{secrets.token_hex(6)}", rounds)
    mine, other = context.Pipe()
    child = context.Process(target=client, args=(options, rounds, other), daemon=True)
    child.start()
    other.close()
    found = {}
    with NanoKVCache(rank=MASTER, **options):
        _answer(mine)
        for what, requests in (("put", 2), ("get", 1), ("remove", 1)):
            before = time.process_time()
            mine.send(what)
            _answer(mine)
            found[what] = (time.process_time() - before) * 1e6 / rounds / requests
        mine.send("end")
        child.join(SECONDS)
    return found


def _answer(pipe: Connection) -> None:
    try:
        if pipe.poll(SECONDS):
            pipe.recv()
            return
    except EOFError:
        pass
    raise SystemExit("the other process has failed; its message is above")


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulate.master", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5000, help="of each operation")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds must be positive, not {rounds}")
    for what, us in measure(rounds).items():
        print(f"{what:7} {us:6.1f} us of the master's process per request")


if __name__ == "__main__":
    main()

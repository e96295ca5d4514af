"""Gets and puts of another node of a cluster, beside bare transfers over the same link."""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB, MIB, Settings, show_size

#: by size, which is that of a page too: what is asked, and calls at most in a repetition. Puts come last: they evict.
ASKED = {
    KIB: (("get", 5000), ("put", 1000)),
    4 * KIB: (("get_many", 500), ("put_many", 200)),
    64 * KIB: (("get", 2000), ("get_many", 50), ("put", 1000), ("put_many", 50)),
    MIB: (("get", 400), ("put", 400)),
    8 * MIB: (("get", 100), ("put", 100)),
}


def measure(run: Run) -> Iterator[Figure]:
    """Each transport, and each size in nodes of its own."""
    from nanokv.bench.nodes.pair import Pair
    from nanokv.bench.nodes.transports import TRANSPORTS

    for transport in TRANSPORTS:
        for size, asked in ASKED.items():
            with Pair(transport, size) as pair:
                for what, most in asked:
                    run.say(f"{transport}, {what}, {show_size(size)}")
                    calls = min(run.settings.rounds, most)
                    laps = [pair.lap(what, size, calls) for _ in range(run.settings.repeats)]
                    for call, systems in laps[0].items():
                        for system in systems:
                            case: Case = {"transport": transport, "call": call, "size": size, "system": system}
                            yield latency("cluster", case, [np.array(lap[call][system], np.int64) for lap in laps])


def why_not(settings: Settings) -> str | None:
    """Why nothing can be measured: what moves bytes or messages is not installed; or None."""
    if find_spec("zmq") is None:
        return "ZeroMQ is not installed (pip install 'nanokv[cluster]')"
    from nanokv.cluster.links.base import LinkUnavailable
    from nanokv.cluster.links.nixl_library import library

    try:
        library()
    except LinkUnavailable as error:
        return str(error)
    return None


QUESTION = Question(
    "cluster",
    "How long do get and put take at another node of a cluster, beside bare transfers?",
    measure,
    "Two processes, each a node: one has the objects, the other one calls; beside each call, in turns, NIXL "
    "alone over the same link, each transfer made anew. Beside a get of 1 KiB: four reads of 64 B, or two where "
    "events have told the location; beside a larger one: one read of as many bytes. Beside a put: a write of as "
    "many bytes, which nobody could fence, and a message with its answer. Bare transfers go to 64 MiB in turn, "
    "as objects lie in different places. A get_many goes into the rows of a tensor, or (new tensors) returns a "
    "list. What is put lies in registered memory, as an engine's cache does; up to 64 KiB travel in the "
    "question. It evicts what was put before.",
    beside=("system", "NIXL alone"),
    why_not=why_not,
)

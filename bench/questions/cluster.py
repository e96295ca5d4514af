"""Gets and puts of another node of a cluster, over each transport, beside the bytes alone over the same."""

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
        if transport.startswith("NIXL") and (why := lacks_nixl()):
            run.say(f"{transport}: left out: {why}")
            continue
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
    for module, name in (("zmq", "ZeroMQ"), ("cryptography", "cryptography")):
        if find_spec(module) is None:
            return f"{name} is not installed (pip install 'nanokv[cluster]')"
    return None


def lacks_nixl() -> str | None:
    """Why nothing can be measured over NIXL; or None."""
    from nanokv.cluster.links.base import LinkUnavailable
    from nanokv.cluster.links.nixl_library import library

    try:
        library()
    except LinkUnavailable as error:
        return str(error)
    return None


QUESTION = Question(
    "cluster",
    "How long do get and put take at another node of a cluster, beside the bytes alone?",
    measure,
    "Two processes, each a node: one has the objects, the other one calls; beside each call, in turns, the bytes "
    "alone. Over the wire these are one exchange by a socket of the same kind, native code at both ends: beside a put "
    "as many bytes and an answer of 64, beside a get 64 and as many bytes. Over NIXL, each transfer made anew: beside "
    "a get of 1 KiB four reads of 64 B, or two where events have told the location; beside a larger one one read of as "
    "many bytes; beside a put a write of as many bytes, which nobody could fence, and an exchange of 64 bytes by a "
    "socket. In mapped memory: one copy of as many bytes. Bare bytes go to 64 MiB in turn, as objects lie in different "
    "places. A get_many goes into the rows of a tensor, or (new tensors) returns a list. What is put evicts what was "
    "put before.",
    beside=("system", "the bytes alone"),
    why_not=why_not,
)

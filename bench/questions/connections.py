"""What an owner pays for many connections over the wire, and how many puts it takes by them."""

import resource
from collections.abc import Iterator

from nanokv.bench.questions.cluster import why_not
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB

CONNECTIONS = 1000
CALLS = 5000  #: puts of each thread, at most
_UNITS = {
    "us a handshake": "us",
    "KiB a connection": "KiB",
    "% of a core, idle": "%",
    "us of the owner's core a put, 1 threads": "us",
    "us of the owner's core a put, 4 threads": "us",
}
_FILES = 3000  #: descriptors: both ends, and what else there is


def measure(run: Run) -> Iterator[Figure]:
    """A pair of nodes for each repetition: memory that was touched once stays with a process."""
    from nanokv.bench.nodes.pair import Pair

    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(most[0], min(_FILES, most[1])), most[1])
    )  # the processes have it too
    try:
        found = []
        for _ in range(run.settings.repeats):
            with Pair("wire, UNIX socket", KIB) as pair:
                found.append(pair.connections(CONNECTIONS, min(CALLS, run.settings.rounds)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    for name in found[0]:
        case: Case = {"what": name, "connections": CONNECTIONS}
        unit = _UNITS.get(name, "/s")
        yield quantity("connections", case, unit, "higher" if unit == "/s" else "lower", [each[name] for each in found])


QUESTION = Question(
    "connections",
    "What does an owner pay for 1,000 connections, and how many puts does it take?",
    measure,
    "Two processes, each a node, and each with half of the processors. KiB a connection: private memory of the owner, "
    "after one small question by each. Idle: what the owner's process runs with all connections open, less what it "
    "runs without. Puts of 1 KiB by UNIX sockets, one connection for each thread of one process in Python; what the "
    "owner's threads run for one, telling the other node of it included.",
    why_not=why_not,
)

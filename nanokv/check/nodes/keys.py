"""Numbers of keys and of versions: every round, and every thread in it, has its own.

A payload holds key and version in each word (`check/machine/payloads.py`), so it tells who wrote it, and whether it is
whole.
"""

from nanokv.check.machine.payloads import VERSION_BITS

A_ROUND = 100_000  #: keys of a round; rounds count from 1
MIXED = 18  #: keys that all threads share: the first ones of a round
_CANARIES = 1000
CANARY_TRIES = 100  #: numbers among which the canary of a node is sought
PROBES = 16
_OWN = 10_000  #: the first number of the first thread's own keys
OWN_KEYS = 5000  #: of each thread
CALLERS = 3  #: threads of a node
_COUNT_BITS = 20  #: of a version: puts of a thread in a round
MOST_ROUNDS = (1 << 31) // A_ROUND - 2  #: the number of a key has 31 bits
_RUNS = 1 << (VERSION_BITS - _COUNT_BITS - 6)  #: of a node's process, until numbers come again, in later rounds


def mixed(round_: int) -> list[int]:
    """The keys that all threads put, read and remove."""
    return [round_ * A_ROUND + i for i in range(MIXED)]


def canaries(round_: int, node: int) -> range:
    """Keys of which one, whose home is the node, is the object that others look at."""
    first = round_ * A_ROUND + _CANARIES + node * CANARY_TRIES
    return range(first, first + CANARY_TRIES)


def probes(round_: int, node: int) -> range:
    """Keys of objects that the node puts to each other node, by their numbers, when all must be well again."""
    return canaries(round_, node)[-PROBES:]


def is_canary(key: int) -> bool:
    """Whether a key is one of `canaries`."""
    return _CANARIES <= key % A_ROUND < _OWN


def own(round_: int, node: int, thread: int) -> range:
    """Keys that only one thread puts, each of them once."""
    first = round_ * A_ROUND + _OWN + (node * CALLERS + thread) * OWN_KEYS
    return range(first, first + OWN_KEYS)


def is_own(key: int) -> bool:
    """Whether a key is one of `own`."""
    return key % A_ROUND >= _OWN


def first_version(node: int, run: int, thread: int) -> int:
    """The first of the versions that a thread puts; run: of the node's process, 0 the first."""
    return ((run % _RUNS * 8 + node) * 8 + thread) << _COUNT_BITS | 1

"""How nodes come to one generation of an identity (`nanokv.allocation.generations`): each tells the others its number,
and all take the highest.

A node that does not answer is told again, once a second, until it does or has left. Until then it and this node share
nothing that is stored after a reset: their keys differ.
"""

import logging
import struct
import threading
from collections.abc import Iterable

from nanokv.allocation.generations import Generations
from nanokv.cluster.at_once import AtOnce
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.nodes import Node, Nodes
from nanokv.cluster.pull_message import BadMessage
from nanokv.cluster.wire.ways import Ways
from nanokv.device.segment.layout import PLACES_OF_GENERATIONS
from nanokv.errors import CacheClosed, PeerLost

_log = logging.getLogger("nanokv.cluster")

_AGAIN = 1.0  #: seconds between two tries
_MESSAGE = struct.Struct("<QQ")  #: place, number; the answer is the same


def message(place: int, number: int) -> bytes:
    """The question, and its answer."""
    return _MESSAGE.pack(place, number)


def parse(body: bytes) -> tuple[int, int]:
    """The place and the number of a message.

    Raises:
        BadMessage: it is none.
    """
    if len(body) != _MESSAGE.size:
        raise BadMessage(f"{len(body)} bytes are no generation")
    place, number = _MESSAGE.unpack(body)
    if place >= PLACES_OF_GENERATIONS or number >= 1 << 62:
        raise BadMessage(f"{number} at {place} is no generation")
    return place, number


class GenerationTeller:
    """Tells other nodes the generation of this world's identity, and learns theirs.

    Args:
        mine: of the world.
        timeout: seconds that a node has to answer.
    """

    def __init__(self, mine: Generations, nodes: Nodes, ways: Ways, at_once: AtOnce, timeout: float) -> None:
        self._mine, self._nodes, self._ways, self._at_once = mine, nodes, ways, at_once
        self._timeout = timeout
        self._lock = threading.Lock()
        self._unheard: set[str] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, names: Iterable[str] | None = None) -> list[str]:
        """Tell nodes (default: all others); returns the names of those that did not answer, who are told again."""
        wanted = self._nodes.names if names is None else names
        nodes = [node for name in wanted if (node := self._nodes.find(name)) is not None]
        if not nodes:
            return []
        number = self._mine.now()
        answers = self._at_once.ask([(node, number) for node in nodes], self._ask)
        unheard = [node.name for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, PeerLost)]
        self._mine.raise_to(max([number, *(answer for answer in answers if isinstance(answer, int))]))
        for name in unheard:
            self._tell_again(name)
        return unheard

    def _ask(self, node: Node, number: int) -> int:
        why = "it has left"
        for card in node.cards:  # any member speaks for all ranks of its world
            try:
                body = self._ways.ask(card, Kind.GENERATION, message(self._mine.place, number), self._timeout)
                return parse(body)[1]
            except (Unanswered, Refused, BadMessage) as error:
                why = str(error)
        raise PeerLost(f"node {node.name} was not told of generation {number}: {why}")

    def _tell_again(self, name: str) -> None:
        with self._lock:
            self._unheard.add(name)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._repeat, name="nanokv-generations", daemon=True)
                self._thread.start()

    def _repeat(self) -> None:
        while not self._closed.wait(_AGAIN):
            with self._lock:
                names, self._unheard = self._unheard, set()
                if not names:
                    self._thread = None
                    return
            try:
                still = self.tell(names)
            except CacheClosed:
                return
            for name in names.difference(still):
                _log.info("node %s has been told of the generation", name)

    def close(self) -> None:
        """Tell nobody any more. Idempotent."""
        self._closed.set()

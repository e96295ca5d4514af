"""What becomes of objects, told to all nodes: each member publishes the events of its rank, and follows all others.

Events feed the table of locations, which saves two rounds of a get, and wake those who wait for an object. They are
hints: where some were missed, the table forgets the node and reads its headers anew, and nothing else depends on them.

No object of Python is made for an object that comes or goes, at its node or at another, unless somebody listens
(`changes`): the poller's native code writes rows (LOCATION), a thread sends them as they are, and followers take them
in one native call for each message. If the thread is slower than puts for long, rows are dropped and counted, and all
are told that they have missed some.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from nanokv.cache.cache import NanoKVCache
from nanokv.cluster.card import WorldId
from nanokv.cluster.changes import Changes
from nanokv.cluster.links.base import LinkLost
from nanokv.cluster.locations import Locations
from nanokv.cluster.messages.feed import Publisher, Subscriber
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.nodes import AVOIDED, Node, Nodes
from nanokv.cluster.seals import HEADS
from nanokv.cluster.transfers import Gets
from nanokv.device.machines.outbox import Outbox, Told
from nanokv.device.segment.location import LOCATION
from nanokv.errors import NanoKVError
from nanokv.heap.futex import system_call_number
from nanokv.host_poller.index import as_words

# --- what nodes have of which events were missed: their headers are read anew, by a thread, until it succeeds ---
Heard: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.void]]"  #: events: LOCATIONs
_log = logging.getLogger("nanokv.cluster")

_REST = 2 * AVOIDED  #: seconds until a node is tried again that could not be read


class CatchingUp:
    """The nodes whose headers are to be read.

    Args:
        read: reads those of a node; a NanoKVError or LinkLost means that it is tried again later.
    """

    def __init__(self, nodes: Nodes, read: Callable[[Node], None]) -> None:
        self._nodes, self._read = nodes, read
        self._wanted: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._failed: dict[str, float] = {}  # by name: when it is tried again
        self._thread = threading.Thread(target=self._run, name="nanokv-cluster-scan", daemon=True)
        self._thread.start()

    def add(self, node: str) -> None:
        """Read the headers of a node, soon. From any thread."""
        self._wanted.put(node)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._wanted.put(None)
        if self._thread is not threading.current_thread():  # a listener closes
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                name = self._wanted.get(timeout=self._pause())
            except queue.Empty:
                name = min(self._failed, key=self._failed.__getitem__)
            if name is None:
                return
            self._try(name)

    def _pause(self) -> float | None:
        """Seconds until the first node is tried again; None: there is none."""
        return max(min(self._failed.values()) - time.monotonic(), 0.0) if self._failed else None

    def _try(self, name: str) -> None:
        self._failed.pop(name, None)
        node = self._nodes.find(name)
        if node is None:  # it has left; when it comes back, it is heard for the first time again
            return
        try:
            self._read(node)
        except (NanoKVError, LinkLost) as error:
            _log.info("the headers of node %s are read later: %s", name, error)
            self._failed[name] = time.monotonic() + _REST


# --- the events -------------------------------------------------------------------------------
MOST_EVENTS = 8192  #: of one message
ROOM = 1 << 16  #: events that wait to be told; for more there is no room, and followers read the headers instead
_MOST_MEANWHILE = 16  #: messages of events that are kept while headers are read: 10 MB; what is older may be missed
_GATHER = 0.002  #: seconds between two messages: a first event goes at once, and those of many puts go together
assert {LOCATION.dtype[name].str for name in LOCATION.offsets} == {"<i8"}  # so rows of words are LOCATIONs


class Events:
    """A member's events, out and in.

    Args:
        world: its poller tells of this rank's segment.
        publisher: tells the other nodes. Who made it closes it, after this.
        gets: by which the headers of a node are read anew.
        changes: told of all that is heard.
        follows: whether the events of others are wanted. seal: of the cluster.
    """

    def __init__(
        self,
        world: NanoKVCache,
        nodes: Nodes,
        publisher: Publisher,
        secret: bytes,
        locations: Locations,
        gets: Callable[[Node], Gets],
        changes: Changes,
        *,
        follows: bool,
        seal: str = HEADS,
    ) -> None:
        self._nodes, self._publisher, self._locations, self._gets = nodes, publisher, locations, gets
        self._rank, self._index = world.engine.heap.rank, world.engine.poller.index
        self._changes, self._follows = changes, follows
        self._followed: dict[str, str] = {}  # address -> member
        self._of: dict[Sender, WorldId] = {}  # members as their cards have them -> their worlds
        self._known: set[WorldId] = set()  # worlds that were heard
        self._doubtful: set[WorldId] = set()  # of which events were missed: what is known of them is forgotten
        self._taking = threading.Lock()  # of what is learnt: an event, or headers with what was heard meanwhile
        self._meanwhile: deque[tuple[WorldId, Heard]] | None = None  # since headers are being read: what was heard
        self._waiting = threading.Condition()
        self._heard = 0
        with ExitStack() as ends:
            ends.callback(self._wake)
            self._catching_up = CatchingUp(nodes, self._read_headers)
            ends.callback(self._catching_up.close)
            self._subscriber = Subscriber(secret, self.hear, self.lost, seal=seal)
            ends.callback(self._subscriber.close)
            self._outbox = Outbox(self._rank, ROOM, MOST_EVENTS, system_call_number())
            self._over = False
            self._teller = threading.Thread(target=self._run, name="nanokv-cluster-tell", daemon=True)
            self._teller.start()
            ends.callback(self._end_telling)
            ends.callback(world.engine.poller.tell_to(self._outbox))
            self._ends = ends.pop_all()

    # --- out ---
    def _run(self) -> None:
        rest = 0.0
        while not self._over:
            told = self._outbox.take(rest)
            try:
                self._tell(told)
            except Exception:  # they are hints: the objects are found at their homes all the same
                _log.exception("%d events could not be told", len(told.rows))
            rest = _GATHER if 0 < len(told.rows) < MOST_EVENTS else 0.0

    def _end_telling(self) -> None:
        self._over = True
        self._outbox.end()
        if self._teller is not threading.current_thread():  # a listener closes
            self._teller.join()

    def _tell(self, told: Told) -> None:
        """Tell the others, and the listeners of this process."""
        if len(told.rows):
            self._publisher.publish(told.rows.tobytes())
            self._changes.rows(self._nodes.here, told.rows.view(np.int64).reshape(len(told.rows), -1))
        if told.lost:
            self._tell_loss()
        if len(told.rows) or told.lost:
            self._wake()

    def _tell_loss(self) -> None:
        """Let all who follow read the headers of this node; its own listeners are told of what they say now."""
        self._publisher.skip()
        self._changes.missed(self._nodes.here)
        _, headers = self._index.rows()
        self._changes.headers(self._nodes.here, self._rank, as_words(headers))

    # --- in ---
    def follow(self) -> None:
        """Follow the members that there are, and no others. Nobody, if no locations are kept."""
        if not self._follows:
            return
        cards = {card.events: card for node in self._nodes.others() for card in node.cards if card.events}
        before = self._of
        self._of = {Sender(card.member, card.incarnation): card.world for card in cards.values()}
        self._known &= set(self._of.values())
        self._doubtful &= set(self._of.values())
        for card in cards.values():  # the first events of a new process at a known address came before its card
            if card.events in self._followed and Sender(card.member, card.incarnation) not in before:
                self._subscriber.follow(card.events, card.member)  # its host may have another address now
                self._catching_up.add(card.node)
        for address in self._followed.keys() - cards.keys():
            self._subscriber.unfollow(address)
            del self._followed[address]
        for address in cards.keys() - self._followed.keys():
            self._followed[address] = cards[address].member
            self._subscriber.follow(address, cards[address].member)

    def hear(self, sender: Sender, body: bytes) -> None:
        """Take an event of another member."""
        world = self._of.get(sender)  # of another incarnation: of a world that is not known, or not there any more
        if world is None or len(body) % LOCATION.size:
            return
        events = np.frombuffer(body, LOCATION.dtype)
        with self._taking:
            self._take(world, events)
            if self._meanwhile is not None:
                self._meanwhile.append((world, events))
        self._wake()

    def _take(self, world: WorldId, events: Heard) -> None:
        self._locations.learn(world, events)
        self._changes.rows(world.node, events.view(np.int64).reshape(len(events), -1))

    def lost(self, sender: Sender) -> None:
        """Read anew what a member has: it is heard for the first time, or events of it were missed."""
        world = self._of.get(sender)
        if world is None:
            return
        if world in self._known:
            self._doubtful.add(world)
        self._changes.missed(world.node)
        self._changes.tell()
        self._known.add(world)  # the first time all that is known of it are this process' own puts
        self._catching_up.add(world.node)

    def _read_headers(self, node: Node) -> None:
        """Learn what the headers of a node say, and then once more what its events say that came meanwhile.

        Else an object that goes after its header was read, and whose event comes before the header is learnt, would be
        looked for there for ever: no other event is told of it.
        """
        meanwhile = self._meanwhile = deque(maxlen=_MOST_MEANWHILE)
        try:
            for rank in range(node.ranks):
                for world, first, headers in self._gets(node).headers(node, rank):
                    with self._taking:
                        if world in self._doubtful:  # not before it answers: meanwhile it may have what it had
                            self._doubtful.discard(world)
                            self._locations.forget(world)
                        self._locations.learn_headers(world, rank, first, headers)
                        self._changes.headers(node.name, rank, headers)
                        for of, events in meanwhile:
                            self._take(of, events)
                        meanwhile.clear()  # the next part is read now: it knows of these
        finally:
            self._meanwhile = None
            self._wake()

    @property
    def figures(self) -> dict[str, int]:
        """How many objects that came or went the others were told of, and how many not, for want of room."""
        return {"events_told": self._outbox.told, "events_untold": self._outbox.lost}

    @property
    def counts(self) -> Mapping[StrEnum, int]:
        """Events that were refused, by `Reason`."""
        return self._subscriber.counts

    # --- waiting ---
    def _wake(self) -> None:
        """Tell listeners, and wake those who wait."""
        self._changes.tell()
        with self._waiting:
            self._heard += 1
            self._waiting.notify_all()

    @property
    def heard(self) -> int:
        """How many times something was heard."""
        return self._heard

    def wait(self, heard: int, seconds: float, matters: Callable[[], bool] = lambda: True) -> None:
        """Return when something that matters was heard since `heard`, at the latest after some time.

        Args:
            matters: called after each time that something was heard: a look at what is known here.
        """
        end = time.monotonic() + seconds
        while True:
            with self._waiting:
                if self._heard == heard and not self._waiting.wait(end - time.monotonic()):
                    return
                heard = self._heard
            if matters():
                return

    def close(self) -> None:
        """End threads, and wake those who wait. Idempotent."""
        self._ends.close()

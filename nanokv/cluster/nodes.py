"""The nodes of a cluster as this process knows them: from the cards of the registry, and from what the link says.

Objects of a node go over the link if both have the same one, and over the wire otherwise. Of two nodes each reaches the
other, or both leave each other out. A third one may know both, and computes other homes of keys than these: who is left
out is told in the log, with what to set.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence

from nanokv.cluster.card import Card, CardRefused
from nanokv.cluster.homes import Homes
from nanokv.cluster.links.base import Link, LinkLost
from nanokv.cluster.place import why_unreachable
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.seals import HEADS, other_seal
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError, PeerLost

_log = logging.getLogger("nanokv.cluster")

LAST_JOINS = 4  #: so many are thought away, one by one, for keys that are missed: see `Nodes.homes`
AVOIDED = 0.5  #: seconds for which a node is not asked again that was lost: callers are told at once


class Node:
    """One node: its members, and the way to one of them.

    Any member of a node has all segments of its world mapped, so a reader needs one. It takes the lowest rank, and the
    next one if that is lost.

    Attributes:
        number: that no other node has.
        cards: of its members, the lowest rank first.
        by_link: whether its objects go over the link, and not over the wire.
        serves: whether all of its members can be asked for objects over the wire.

    Args:
        far: why no process of this host can reach a member, over the wire, or by the link (True), in the words of
            `place`; "": it may.
    """

    def __init__(self, name: str, link: Link, number: int, far: Callable[[Card, bool], str]) -> None:
        self.name, self.number = name, number
        self._link, self._far = link, far
        self._lock = threading.Lock()
        self.cards: Sequence[Card] = []
        self._reached: tuple[Card, RemoteWorld] | None = None
        self.by_link, self.serves, self._is_over = False, True, False
        self._lost: dict[int, tuple[float, str]] = {}  # by incarnation: until when it is avoided, and why

    @property
    def joined(self) -> int:
        """When its first member that is there came, in ns by its own clock."""
        return min(card.incarnation for card in self.cards)

    @property
    def geometry(self) -> Geometry:
        """The geometry of its segments.

        Raises:
            PeerLost: it has left. CacheClosed: this process has.
        """
        cards = self.cards
        if not cards:
            raise self._lost_for("it has left")
        return cards[0].geometry

    @property
    def ranks(self) -> int:
        """How many ranks its world has. Raises as `geometry`."""
        return self.geometry.world_size

    def _has_link(self, card: Card) -> bool:
        return bool(self._link.name) and card.link == self._link.name

    def update(self, cards: Mapping[int, Card]) -> None:
        """Take the cards of all members, by rank."""
        with self._lock:
            gone = self._reached is not None and self._reached[0] not in cards.values()
            self.cards = [card for _, card in sorted(cards.items())]
            self.by_link = any(map(self._has_link, cards.values()))
            living = {card.incarnation for card in cards.values()}
            self._lost = {incarnation: why for incarnation, why in self._lost.items() if incarnation in living}
            self.serves = all(card.serves for card in cards.values())
            if gone:
                self._let_go()

    def world(self) -> RemoteWorld:
        """The world of the node, over the link.

        Raises:
            PeerLost: no member can be reached, or each was lost just now.
        """
        reached = self._reached
        if reached is not None:
            return reached[1]
        with self._lock:
            if self._reached is None:
                self._reached = self._reach()
            return self._reached[1]

    def puller(self) -> Card:
        """The member that pulls what is put: one that has the link.

        Raises:
            PeerLost: there is none (any more), or it cannot be reached from this host.
        """
        why = "it has left"
        for card in filter(self._has_link, self.cards):
            if not (why := self._far(card, True)):
                return card
        raise self._lost_for(why)

    def reachable(self, but: Container[int] = ()) -> Card:
        """The member that is asked over the wire: the first that was not lost just now.

        but: incarnations of those that are not wanted.

        Raises:
            PeerLost: there is none.
        """
        cards, why = self.cards, "it has left"
        if cards and not self._lost and not but and not self._far(cards[0], False):  # as nearly always
            return cards[0]
        for card in cards:
            if card.incarnation in but:
                continue
            if far := self._far(card, False):
                why = far
                continue
            until, why = self._lost.get(card.incarnation, (0.0, ""))
            if time.monotonic() >= until:
                self._lost.pop(card.incarnation, None)
                return card
        raise self._lost_for(why)

    def avoid(self, card: Card, why: str) -> None:
        """A member was lost: ask another one, or this one later."""
        self._lost[card.incarnation] = time.monotonic() + AVOIDED, why

    def _reach(self) -> tuple[Card, RemoteWorld]:
        why = "it has left"
        for card in filter(self._has_link, self.cards):
            if far := self._far(card, True):
                why = far
                continue
            until, reason = self._lost.get(card.incarnation, (0.0, ""))
            if time.monotonic() < until:
                why = reason
                continue
            try:
                peer = self._link.connect(card.metadata)
            except LinkLost as error:
                why = str(error)
                self._lost[card.incarnation] = time.monotonic() + AVOIDED, why
                continue
            return card, RemoteWorld(self.name, peer, card.geometry, card.bases, card.controls, checksum=card.checksum)
        raise self._lost_for(why)

    def lost(self, world: RemoteWorld, why: str) -> None:
        """A transfer from `world` has failed, or did not end in time: reach another member, or this one later."""
        with self._lock:
            if self._reached is not None and self._reached[1] is world:
                self._lost[self._reached[0].incarnation] = time.monotonic() + AVOIDED, why
                self._let_go()

    def _let_go(self) -> None:
        assert self._reached is not None
        _, world = self._reached
        self._reached = None
        self._link.disconnect(world.peer)

    def _lost_for(self, why: str) -> NanoKVError:
        if self._is_over:
            return CacheClosed("this member has left the cluster")
        return PeerLost(f"node {self.name} cannot be reached: {why}")

    def close(self, *, ours: bool = False) -> None:
        """Let go of the node, which has left; or this process has (`ours`)."""
        with self._lock:
            self._is_over = ours
            self.cards = []
            if self._reached is not None:
                self._let_go()


class Nodes:
    """All nodes, this one too.

    Args:
        here: the name of this node.
        link: the link to the others.
        secret: of the cluster.
        joined: this member's incarnation.
        serves: whether this member can be asked for its objects over the wire.
        place: of this process (`place.here`); "": it is not known, and nobody is taken to be far.
        seal: of this member: who has another one is left out.

    Attributes:
        homes: the home of each key; and before it, as it was without the node that joined last, without the last two,
            and so on. Objects that were put before a node joined lie there. A node that was away, and whose lease had
            ended, has joined when it came back. The first is the same for all members; the others are where this one
            looks too.
    """

    def __init__(
        self, here: str, link: Link, secret: bytes, joined: int, serves: bool, place: str = "", seal: str = HEADS
    ) -> None:
        self._seal = seal
        self.here, self._joined, self._lapses, self._serves, self._place = here, joined, 0, serves, place
        self._left: set[str] = set()  # names of nodes that have left
        self._back: dict[str, int] = {}  # by name: when a node came back, in ns
        self._link, self._secret = link, secret
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._numbers = itertools.count()
        self.homes: tuple[Homes, ...] = (Homes([here]),)
        self._refused: set[tuple[str, str]] = set()
        self.changed: Callable[[], None] = lambda: None

    def update(self, members: Mapping[str, bytes], lapses: int = 0) -> None:
        """Take the members of the registry, with their sealed cards.

        lapses: how often this process has come back (`Membership.lapses`).
        """
        with self._lock:
            if lapses != self._lapses:
                self._lapses, self._joined = lapses, self._latest() + 1
            found: dict[str, dict[int, Card]] = {}
            for member, sealed in members.items():
                card = self._opened(member, sealed)
                if card is not None and card.node != self.here:
                    found.setdefault(card.node, {})[card.rank] = card
            gone = [self._nodes[name] for name in self._nodes.keys() - found.keys()]
            nodes = {
                name: self._nodes.get(name) or Node(name, self._link, next(self._numbers), self._far) for name in found
            }
            for name, cards in found.items():
                nodes[name].update(cards)
            self._left.update(node.name for node in gone)
            for name in self._left & nodes.keys():
                self._left.remove(name)
                self._back[name] = self._latest() + 1
            self._nodes = nodes
            self.homes = self._homes()
            for card in (card for node in nodes.values() for card in node.cards):
                # told as soon as it is seen, and not with the first call
                self._far(card, bool(card.link) and card.link == self._link.name)
        for node in gone:
            node.close()
        self.changed()

    def _latest(self) -> int:
        """When the last one joined that is known; clocks of hosts differ, and so this is no time of any of them."""
        joined = [node.joined for node in self._nodes.values() if node.cards]
        return max(time.time_ns(), self._joined, *self._back.values(), *joined)

    def _far(self, card: Card, by_link: bool) -> str:
        """Why nobody on this host reaches a member; "": it may be reached. Told once in the log."""
        why = why_unreachable(card, self._place, by_link=by_link)
        if why and (card.member, why) not in self._refused:
            self._refused.add((card.member, why))
            _log.warning("member %s cannot be reached from here: %s", card.member, why)
        return why

    def _homes(self) -> tuple[Homes, ...]:
        ages = [(max(node.joined, self._back.get(node.name, 0)), node.name) for node in self._nodes.values()]
        ages.append((self._joined, self.here))
        names = [name for _, name in sorted(ages)]
        return tuple(Homes(names[: len(names) - left_out]) for left_out in range(min(LAST_JOINS + 1, len(names))))

    def _opened(self, member: str, sealed: bytes) -> Card | None:
        try:
            card = Card.opened(sealed, self._secret)
            if card.member != member:
                raise CardRefused(f"the card is that of {card.member}")
            if card.seal != self._seal:
                raise CardRefused(other_seal(card.seal, self._seal))
            if not (card.serves and self._serves) and card.link != self._link.name:
                where = "its segments lie" if not card.serves else "this member's segments lie"
                raise CardRefused(
                    f"{where} in memory of a GPU, where the wire does not reach; its link is {card.link or 'none'}, "
                    f"this member's {self._link.name or 'none'}: give both the same link, such as link='nixl'"
                )
            return card
        except CardRefused as error:
            if (member, str(error)) not in self._refused:
                self._refused.add((member, str(error)))
                _log.warning("member %s is left out: %s", member, error)
            return None

    @property
    def refused(self) -> int:
        """How many members were left out, or cannot be reached from this host."""
        return len(self._refused)

    @property
    def names(self) -> Sequence[str]:
        """The names of all nodes, this one too, ascending."""
        return self.homes[0].nodes

    def others(self) -> list[Node]:
        """All nodes but this one."""
        return list(self._nodes.values())

    def find(self, name: str) -> Node | None:
        """A node other than this one; None if there is none of the name (any more)."""
        return self._nodes.get(name)

    def __getitem__(self, name: str) -> Node:
        found = self._nodes.get(name)
        if found is None:
            if name == self.here:
                raise InvalidArgument(f"node {name} is this one")
            raise PeerLost(f"the cluster has no node {name!r}; it has {', '.join(self.names)}")
        return found

    def close(self) -> None:
        """Let go of all nodes."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.close(ours=True)

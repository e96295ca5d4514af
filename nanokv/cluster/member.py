"""The parts of one member of a cluster, joined: what a `NanoKVCluster` works with, and what the project takes from it.

    membership       who is in the cluster, by the registry
    nodes            the other nodes
    gets, puts       gets from a node, and puts to it: in mapped memory, over the wire, or over the link
    ways, server     the wire: questions to others, and their answers
    mapped           memory of other nodes of this host, which this process has mapped
    link             moves bytes between processes: `NoLink` where objects go over the wire alone
    link_gets, link_puts, puller    over the link: gets from nodes, puts to them, and their puts to this one
    staging, shared_staging  registered memory: what is read by the link comes there, and what others read lies there
    publisher, events, changes, uses, generations                    what members tell each other
    locations, registered, at_once, counts, figures, segments        what these use

A part is taken by name (`cluster.member.link`).
"""

import errno
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from nanokv.allocation.producer import ProducerAllocation
from nanokv.cache.cache import NanoKVCache
from nanokv.cluster import place
from nanokv.cluster.at_once import AtOnce
from nanokv.cluster.card import Card, member_name
from nanokv.cluster.changes import Changes
from nanokv.cluster.counts import MemberCounts
from nanokv.cluster.events import Events
from nanokv.cluster.generations import GenerationTeller
from nanokv.cluster.links import open_link
from nanokv.cluster.links.base import Link
from nanokv.cluster.links.none import NoLink
from nanokv.cluster.locations import Locations
from nanokv.cluster.mapped import MappedGets, MappedPuts, MappedWorlds
from nanokv.cluster.membership import open_membership
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.feed import Publisher
from nanokv.cluster.messages.ports import at_first_free
from nanokv.cluster.messages.sealed import Reason, Sender
from nanokv.cluster.nodes import Node, Nodes
from nanokv.cluster.offering import RegisteredMemory
from nanokv.cluster.options import ClusterOptions
from nanokv.cluster.pulling import Puller
from nanokv.cluster.putting import RemotePuts
from nanokv.cluster.reading import RemoteGets
from nanokv.cluster.rounds import rounds_over
from nanokv.cluster.seals import ALL
from nanokv.cluster.serving import Handlers
from nanokv.cluster.staging import Staging
from nanokv.cluster.transfers import Gets, Puts
from nanokv.cluster.uses import Uses
from nanokv.cluster.wire.ciphers import libcrypto
from nanokv.cluster.wire.exchanges import WireGets, WirePuts
from nanokv.cluster.wire.server import WireServer, World
from nanokv.cluster.wire.ways import Ways
from nanokv.device.fabric.records import LOOK_LINE
from nanokv.device.machines.native import NativeMachine
from nanokv.errors import ClusterUnavailable, InvalidArgument, LinkUnavailable
from nanokv.heap.base import Heap
from nanokv.transfer.object_calls import Routing
from nanokv.types import Key, KeyDigest

T = TypeVar("T")


# --- what a member counts of its part in the cluster, as `NanoKVCluster.stats` and `nanokv stats` show it ---
class MessagePart(Protocol):
    """A server, or a follower of events."""

    @property
    def counts(self) -> Mapping[StrEnum, int]:
        """What it refused or dropped, by `Reason` or `DropReason`."""
        ...


class Figures:
    """The figures of one member.

    Args:
        counts: what it has done with other nodes.
        staging: its reads by a link; puller: the puts of others over it; puts: its own over it. None: it has no link.
    """

    def __init__(
        self, counts: MemberCounts, staging: Staging, puller: Puller | None, puts: RemotePuts | None, nodes: Nodes
    ) -> None:
        self._counts, self._staging, self._puller, self._puts, self._nodes = counts, staging, puller, puts, nodes
        self._counting: list[MessagePart] = []
        self.of_wire: Callable[[], dict[str, int]] = dict  #: `WireServer.figures`, once there is one
        self.of_events: Callable[[], dict[str, int]] = dict  #: `Events.figures`, likewise

    def follow(self, *counting: MessagePart) -> None:
        """Show what these count too."""
        self._counting += counting

    def as_dict(self) -> dict[str, int]:
        """The figures by name. Each reason for which messages are refused or dropped has a name, though it be 0."""
        late = {
            "late_reads": self._staging.late,
            "late_pulls": 0 if self._puller is None else self._puller.late,
            "late_puts": 0 if self._puts is None else self._puts.late,
            "late_put_bytes": 0 if self._puts is None else self._puts.kept_bytes,
            "members_refused": self._nodes.refused,
        }
        found = {"messages_refused": 0, "messages_dropped": 0}
        found |= {f"messages_refused_{reason.name.lower()}": 0 for reason in Reason}
        found |= {f"messages_dropped_{reason.name.lower()}": 0 for reason in DropReason}
        for each in self._counting:
            for reason, count in each.counts.items():
                total = "messages_refused" if isinstance(reason, Reason) else "messages_dropped"
                found[total] += count
                found[f"{total}_{reason.name.lower()}"] += count
        return self._counts.as_dict() | late | found | self.of_wire() | self.of_events()


# --- members that have left: what was kept for them here is let go of, as the registry tells ---
class Departures:
    """Notices who has left.

    Args:
        nodes: the members that there are.
        gone: called with the card of each process that is no member any more.
    """

    def __init__(self, nodes: Nodes, gone: Callable[[Card], None]) -> None:
        self._nodes, self._gone = nodes, gone
        self._known: dict[int, Card] = {}

    def look(self) -> None:
        """Tell of all that have left since the last look. From one thread."""
        known = self._known
        self._known = {card.incarnation: card for node in self._nodes.others() for card in node.cards}
        for incarnation in known.keys() - self._known.keys():
            self._gone(known[incarnation])


# --- the member -------------------------------------------------------------------------------
class Member:
    """The parts of one member that has joined. On failure nothing is left open.

    Args:
        world: of this node; it stays open when the member leaves.
        cluster: the URL of the registry.

    Raises:
        ClusterUnavailable: the registry does not answer, or another living process is this member.
        LinkUnavailable: the link, or the seal, does not work here.
    """

    def __init__(self, world: NanoKVCache, cluster: str, options: ClusterOptions) -> None:
        self._world, self._options = world, options
        self.name = member_name(options.node, world.engine.heap.rank)
        self.hash_of: Callable[[Key], KeyDigest] = world.engine.hasher  #: the digest of a key
        self.ends = ExitStack()  #: closes the parts, the last one first
        # Two parts of the end that are filled later: they come after all that is added to `ends` itself. The registry
        # is opened first, and left before anything that other members use is closed. Memory needs the link, and is
        # given back when that is closed and nobody can read it any more.
        self._memory = self.ends.enter_context(ExitStack())
        self._working = self.ends.enter_context(ExitStack())
        try:
            self._reach_registry(cluster)
            self._open_link()
            self._make_transfers()
            self._serve_others()
            self._follow_events()
            self._join()
        except BaseException:
            self.ends.close()
            raise

    def close(self) -> None:
        """Leave the cluster; then let nobody read, and only then give memory back. Idempotent."""
        self.ends.close()

    # --- step by step ---
    def _reach_registry(self, cluster: str) -> None:
        options = self._options
        self.membership = open_membership(cluster, ttl=options.ttl, timeout=options.join_timeout)
        self.ends.callback(self.membership.close)
        self.incarnation = self.membership.next_incarnation()
        self._secret = options.secret or self.membership.secret()

    def _open_link(self) -> None:
        options, heap = self._options, self._world.engine.heap
        self._served = served_world(self._world)
        link = options.link
        if options.seal == ALL:
            libcrypto()
            if self._served is None:
                raise LinkUnavailable(
                    "seal='all' is of the wire, which serves segments in host memory, on a system with futexes, and "
                    "this world's are of another kind"
                )
        if link == "auto":
            link = "nixl" if self._served is None else "wire"
        if link == "wire" and self._served is None:
            raise LinkUnavailable(
                "link='wire' serves segments in host memory, on a system with futexes, and this world's are of another "
                "kind: take link='nixl'"
            )
        self.link: Link = NoLink()
        if link != "wire":
            self.link = open_link(link, f"{self.name}.{secrets.token_hex(4)}", **options.link_options(link))
        self._working.callback(self.link.close)
        #: keeps the memory mapped as long as other nodes may read it
        self.segments = _readable_segments(heap, self.link)
        self.shared_staging = Staging(self.link, shared=True)
        self._memory.callback(self.shared_staging.close)
        self.staging = Staging(self.link)
        self._memory.callback(self.staging.close)
        self.registered = RegisteredMemory(self.link)
        serves = self._served is not None
        self.nodes = Nodes(options.node, self.link, self._secret, self.incarnation, serves, place.here(), options.seal)
        self._working.callback(self.nodes.close)
        self.ways = Ways(self._secret, Sender(self.name, self.incarnation), place.here())
        self._working.callback(self.ways.close)
        place_of_maps = place.here() if options.maps else ""
        me = Sender(self.name, self.incarnation)
        self.mapped = MappedWorlds(self._secret, me, place_of_maps, self._world.options)
        self._working.callback(self.mapped.close)

    def _make_transfers(self) -> None:
        engine, timeout, ways = self._world.engine, self._options.timeout, self.ways
        self.locations, self.counts = Locations(self._options.locations), MemberCounts()
        self._wire_gets = WireGets(ways, self.staging, self.locations, self.counts, engine.hasher)
        self._wire_puts = WirePuts(ways, self.locations, engine.hasher)
        self._mapped_gets = MappedGets(self.mapped, self.staging, self.counts)
        self._mapped_puts = MappedPuts(self.mapped, self.locations, self.nodes)
        self.link_gets: RemoteGets | None = None
        self.link_puts: RemotePuts | None = None
        self.puller: Puller | None = None
        if self.link.name:
            rounds = rounds_over(self.link, self.locations, engine.hasher)
            self.link_gets = RemoteGets(
                self.link, rounds, self.staging, self.locations, self.counts, engine.hasher, timeout
            )
            self.link_puts = RemotePuts(
                self.link, ways, self._wire_puts, self.shared_staging, self.registered, self.locations, timeout
            )
            self.ends.callback(self.link_puts.close)
            self.puller = Puller(engine.machine, engine.allocation, self.link, self.staging, engine.heap.wake)
            self._working.callback(self.puller.close)

    def gets(self, node: Node) -> Gets:
        """What gets objects from a node."""
        if self.mapped.of(node) is not None:
            return self._mapped_gets
        return self.link_gets if self.link_gets is not None and node.by_link else self._wire_gets

    def puts(self, node: Node) -> Puts:
        """What puts objects to a node, and removes them there."""
        if self.mapped.of(node) is not None:
            return self._mapped_puts
        return self.link_puts if self.link_puts is not None and node.by_link else self._wire_puts

    def way(self, node: Node) -> str:
        """How objects of a node are reached: "mapped", "nixl", "wire: tcp://host:port"; "wire": by nothing yet."""
        if self.mapped.known(node):
            return "mapped"
        if self.link_gets is not None and node.by_link:
            return self.link.name
        found = next(filter(None, (self.ways.way(card) for card in node.cards)), "")
        return f"wire: {found}" if found else "wire"

    def ways_to_nodes(self) -> dict[str, str]:
        """How each other node is reached, by its name."""
        return {node.name: self.way(node) for node in self.nodes.others()}

    def _serve_others(self) -> None:
        world, options = self._world, self._options
        self.figures = figures = Figures(self.counts, self.staging, self.puller, self.link_puts, self.nodes)

        def stats() -> dict[str, Any]:
            return {**world.stats(), **figures.as_dict(), "ways": self.ways_to_nodes()}

        handlers = Handlers(world, self.puller, stats).handlers()
        serve_at = partial(
            WireServer,
            self._served,
            Sender(self.name, self.incarnation),
            self._secret,
            handlers,
            bind=options.bind,
            folder=options.sockets,
            patience=options.timeout,
            seal=options.seal,
        )
        self.server = self._listen(lambda port: serve_at(port=port))
        self._working.callback(self.server.close)
        figures.of_wire = lambda: self.server.figures
        if self.link_gets is not None:  # over the wire the owner sees each read
            self.uses = Uses(self.nodes, self.ways)
            self._working.callback(self.uses.close)
            self.link_gets.note_use, self.link_gets.note_uses = self.uses.note, self.uses.note_each

    def _listen(self, listen: Callable[[int], T]) -> T:
        """What listens at a port of this member. Raises InvalidArgument or ClusterUnavailable: nothing can."""
        options = self._options
        try:
            return at_first_free(options.port_range(), listen)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ClusterUnavailable(f"ports={options.ports!r}: {error.strerror}; each member takes two") from None
            raise InvalidArgument(f"bind={options.bind!r}: {error.strerror}") from None

    def _follow_events(self) -> None:
        options = self._options
        publish_at = partial(Publisher, self.name, self.incarnation, self._secret, options.bind, seal=options.seal)
        self.publisher = self._listen(publish_at)
        self._working.callback(self.publisher.close)
        self.changes = Changes(options.node)
        self.events = Events(
            self._world,
            self.nodes,
            self.publisher,
            self._secret,
            self.locations,
            self.gets,
            self.changes,
            follows=options.locations > 0,
            seal=options.seal,
        )
        self._working.callback(self.events.close)
        self.figures.follow(self.server, self.events)
        self.figures.of_events = lambda: self.events.figures
        self.at_once = AtOnce()
        self._working.callback(self.at_once.close)
        mine = self._world.engine.generations()
        self.generations = GenerationTeller(mine, self.nodes, self.ways, self.at_once, options.timeout)
        self.ends.callback(self.generations.close)

    def _join(self) -> None:
        nodes, membership = self.nodes, self.membership
        nodes.changed = _notice(nodes, self.changes, self.events, self._gone)
        membership.join(self.name, self._card().sealed(self._secret))
        nodes.update(membership.members())
        membership.listen(lambda members: nodes.update(members, membership.lapses))

    def _gone(self, card: Card) -> None:
        """Let go of what was kept for a process that is no member any more."""
        self.ways.forget(card.incarnation)
        self.mapped.forget(card.incarnation)
        if self.link_puts is not None:
            self.link_puts.forget(card.incarnation)
        if self.puller is not None:
            self.puller.left(card.member, card.incarnation)

    def _card(self) -> Card:
        """What the member tells the others of itself."""
        heap, options = self._world.engine.heap, self._options
        return Card(
            options.node,
            heap.rank,
            self.incarnation,
            heap.geometry,
            tuple(heap.bases),
            tuple(segment[:LOOK_LINE].cpu().numpy().tobytes() for segment in self.segments),
            self._world.options.checksum,
            self.link.name,
            self.link.card(),
            options.advertised(self.server.address),
            options.advertised(self.publisher.address),
            options.about,
            place.here(),
            options.device_names(self.link.name),
            self.server.local,
            self._served is not None,
            options.seal,
        )


def served_world(world: NanoKVCache) -> World | None:
    """What the wire serves of a world; None: native code cannot write to its segments, or nobody can be woken."""
    engine = world.engine
    allocation, machine = engine.allocation, engine.machine
    if not isinstance(machine, NativeMachine) or not isinstance(allocation, ProducerAllocation):
        return None
    if engine.heap.world_bell() is None:
        return None
    return World(engine.heap, machine.table_address, allocation, Routing(engine.heap, machine, allocation))


def _notice(nodes: Nodes, changes: Changes, events: Events, gone: Callable[[Card], None]) -> Callable[[], None]:
    """What is done whenever the members may be others."""
    departures = Departures(nodes, gone)

    def changed() -> None:
        changes.nodes(nodes.names)
        events.follow()
        departures.look()

    return changed


def _readable_segments(heap: Heap, link: Link) -> list[torch.Tensor]:
    """The segments of a world, which other nodes may read from now on."""
    segments = [heap.segment(rank) for rank in range(heap.world_size)]
    for segment in segments:
        device = segment.device.index if segment.device.type != "cpu" else None
        link.register(segment.data_ptr(), segment.nbytes, device)
    return segments

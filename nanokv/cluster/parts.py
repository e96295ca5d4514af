"""How a member of a cluster is put together: its link, its messages, and what serves the others."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from nanokv.cache import NanoKVCache
from nanokv.cluster import place
from nanokv.cluster.at_once import AtOnce
from nanokv.cluster.card import Card, member_name
from nanokv.cluster.changes import Changes
from nanokv.cluster.counts import Counts
from nanokv.cluster.departures import Departures
from nanokv.cluster.events import Events
from nanokv.cluster.figures import Figures
from nanokv.cluster.generations import GenerationTeller
from nanokv.cluster.links import open_link
from nanokv.cluster.links.base import Link
from nanokv.cluster.locations import Locations
from nanokv.cluster.membership import Membership, open_membership
from nanokv.cluster.messages.asker import Asker
from nanokv.cluster.messages.feed import Publisher
from nanokv.cluster.messages.ports import at_first_free
from nanokv.cluster.messages.server import Server
from nanokv.cluster.nodes import Nodes
from nanokv.cluster.offering import Registered
from nanokv.cluster.options import ClusterOptions
from nanokv.cluster.pulling import Puller
from nanokv.cluster.putting import Putting
from nanokv.cluster.reading import Reading
from nanokv.cluster.rounds import rounds_over
from nanokv.cluster.serving import Serving
from nanokv.cluster.staging import Staging
from nanokv.cluster.uses import Uses
from nanokv.device.fabric.records import LOOK_LINE
from nanokv.heap.base import Heap


class Parts(NamedTuple):
    """The parts of a member."""

    membership: Membership
    link: Link
    nodes: Nodes
    server: Server
    asker: Asker
    staging: Staging
    offers: Staging
    reading: Reading
    putting: Putting
    puller: Puller
    registered: Registered
    locations: Locations
    counts: Counts
    figures: Figures
    events: Events
    changes: Changes
    uses: Uses
    at_once: AtOnce
    generations: GenerationTeller
    segments: list[Any]  #: keeps the memory mapped as long as other nodes may read it

    def close(self) -> None:
        """Leave the cluster; then let nobody read, and only then give memory back."""
        self.generations.close()
        self.putting.kept.close()
        self.membership.close()
        self.at_once.close()
        self.events.close()
        self.uses.close()
        self.server.close()
        self.puller.close()
        self.asker.close()
        self.nodes.close()
        self.link.close()
        self.staging.close()
        self.offers.close()


def assemble(world: NanoKVCache, cluster: str, options: ClusterOptions) -> Parts:
    """The parts of a member that has joined.

    Raises:
        ClusterUnavailable: the registry does not answer, or another living process is this member.
        LinkUnavailable: the link does not work here.
    """
    heap = world.engine.heap
    member = member_name(options.node, heap.rank)
    membership = open_membership(cluster, ttl=options.ttl, timeout=options.join_timeout)
    opened: list[Any] = [membership]
    try:
        incarnation = membership.next_incarnation()
        secret = options.secret or membership.secret()
        link = open_link(options.link, f"{member}.{secrets.token_hex(4)}", **options.link_options())
        opened.append(link)
        segments = _readable_segments(heap, link)
        staging, offers = Staging(link), Staging(link, shared=True)
        registered = Registered(link)
        asker = Asker(member, incarnation, secret)
        opened.append(asker)
        nodes = Nodes(options.node, link, secret, incarnation, place.here())
        locations, counts, at_once = Locations(options.locations), Counts(), AtOnce()
        reading = Reading(link, rounds_over(link), staging, locations, counts, options.timeout)
        putting = Putting(link, asker, reading, offers, registered, locations, options.timeout)
        uses = Uses(nodes, asker)
        opened.append(uses)
        reading.note_use, reading.note_uses = uses.note, uses.note_each
        puller = Puller(world.engine.machine, world.engine.allocation, link, staging, heap.wake)
        figures = Figures(counts, staging, puller, putting, nodes)
        serving = Serving(world, puller, lambda: {**world.stats(), **figures.as_dict()})
        server = _server(member, incarnation, secret, serving, options)
        opened.append(server)
        publish_at = partial(Publisher, member, incarnation, secret, options.bind)
        publisher = at_first_free(options.port_range(), publish_at)
        opened.append(publisher)
        changes = Changes(options.node)
        follows = options.locations > 0
        events = Events(world, nodes, publisher, secret, locations, reading, changes, follows=follows)
        opened.append(events)
        figures.follow(asker, server, events)
        nodes.changed = _notice(nodes, changes, events, putting, puller, asker)
        card = _card_of(world, options, incarnation, segments, link, server, publisher)
        membership.join(member, card.sealed(secret))
        nodes.update(membership.members())
        membership.listen(lambda members: nodes.update(members, membership.lapses))
    except BaseException:
        for part in reversed(opened):
            part.close()
        raise
    return Parts(
        membership,
        link,
        nodes,
        server,
        asker,
        staging,
        offers,
        reading,
        putting,
        puller,
        registered,
        locations,
        counts,
        figures,
        events,
        changes,
        uses,
        at_once,
        GenerationTeller(world.engine.generations(), nodes, asker, at_once, options.timeout),
        segments,
    )


def _notice(
    nodes: Nodes, changes: Changes, events: Events, putting: Putting, puller: Puller, asker: Asker
) -> Callable[[], None]:
    """What is done whenever the members may be others."""

    def gone(card: Card) -> None:
        putting.forget(card.incarnation)
        puller.left(card.member, card.incarnation)
        asker.forget(card.messages)

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


def _server(member: str, incarnation: int, secret: bytes, serving: Serving, options: ClusterOptions) -> Server:
    """The server, at a port that it may have."""
    handlers = serving.handlers()
    return at_first_free(
        options.port_range(),
        lambda port: Server(member, incarnation, secret, handlers, bind=options.bind, port=port),
    )


def _card_of(
    world: NanoKVCache,
    options: ClusterOptions,
    incarnation: int,
    segments: Sequence[torch.Tensor],
    link: Link,
    server: Server,
    publisher: Publisher,
) -> Card:
    """What the member tells the others of itself."""
    heap = world.engine.heap
    return Card(
        options.node,
        heap.rank,
        incarnation,
        heap.geometry,
        tuple(heap.bases),
        tuple(segment[:LOOK_LINE].cpu().numpy().tobytes() for segment in segments),
        world.options.checksum,
        link.name,
        link.card(),
        options.advertised(server.address),
        options.advertised(publisher.address),
        options.about,
        place.here(),
        options.device_names(),
    )

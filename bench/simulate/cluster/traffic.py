"""What events and membership cost each member of a cluster: computed, not simulated."""

import math
from typing import NamedTuple

from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.cluster.messages.sealed import HEADER_BYTES, MAC_BYTES
from nanokv.device.segment.layout import OBJ_HEADER
from nanokv.device.segment.location import LOCATION

MOST_PUTS = 1e5  #: a second: where the search ends
BEATS = 1.0  #: a second: `nanokv/cluster/messages/feed.py`
FRAME = 66 + 9  #: bytes around a message: Ethernet, IP and TCP; and those of ZeroMQ
ENVELOPE = HEADER_BYTES + MAC_BYTES + FRAME


class Feed(NamedTuple):
    """The events of one member, whose node has `puts` a second.

    Attributes:
        followers: members of other nodes.
        sent: messages of events a second, before they are copied for each follower.
        messages: that come in, each second, beats too; as many go out.
        nbytes: a second, out; as many come in.
        cores: processor time for both directions, as a number of cores.
        known: the share of the cluster's objects of which the table of locations knows the place, at most.
    """

    followers: int
    sent: float
    messages: float
    nbytes: float
    cores: float
    known: float


def batches(given: ClusterAssumptions, puts: float) -> float:
    """Messages a second for so many puts: one begins a batch, and the next ones wait for the pause to end."""
    pause = given.pause_ms / 1e3
    return (1 - math.exp(-puts * pause)) / pause


def feed(given: ClusterAssumptions, nodes: int, puts: float) -> Feed:
    """`puts`: a second of each node; an event each, without evictions and removals."""
    followers = (nodes - 1) * given.members
    own = puts / given.members
    sent = batches(given, own)
    messages = (sent + BEATS) * followers
    nbytes = messages * ENVELOPE + own * followers * LOCATION.size
    us = (sent + BEATS) * given.publish_us + messages * given.follow_us + own * followers * given.learn_us
    known = min(given.locations / max((nodes - 1) * given.objects, 1), 1.0)
    return Feed(followers, sent, messages, nbytes, us / 1e6, known)


def most_puts(given: ClusterAssumptions, nodes: int, cores: float = 1.0) -> float:
    """Puts a second of each node with which a member spends so many cores on events, at most MOST_PUTS.

    0: beats alone take more.
    """
    low, high = 0.0, MOST_PUTS
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if feed(given, nodes, middle).cores <= cores else (low, middle)
    return low


class MembershipCost(NamedTuple):
    """What membership costs.

    Attributes:
        renewals: of leases, a second, at the registry.
        change_bytes: that the registry sends when one node joins, to all others and to it.
        change_us: of each member's processor: it opens all cards anew, whatever has changed.
        start_s: the same, in seconds, if all nodes join one after the other, and each join is told by itself.
        scan_bytes: of headers that a node reads that joins: those of all members whom it hears for the first time.
    """

    renewals: float
    change_bytes: float
    change_us: float
    start_s: float
    scan_bytes: float


def watch(given: ClusterAssumptions, nodes: int) -> MembershipCost:
    """At so many nodes."""
    members = nodes * given.members
    change = 2.0 * members * given.card_bytes * given.members
    start = sum(range(1, members + 1)) * given.card_us / 1e6
    scan = (nodes - 1) * given.objects * OBJ_HEADER.size * given.members
    return MembershipCost(members * 3 / given.ttl, change, members * given.card_us, start, float(scan))

"""What lies between the members of a cluster: reads, messages and events, and what happens to them."""

import time
from collections.abc import Callable
from typing import Any

from nanokv.cluster import NanoKVCluster
from nanokv.cluster.card import Card
from nanokv.cluster.events import Events
from nanokv.cluster.kinds import Kind
from nanokv.cluster.links.base import LinkLost
from nanokv.cluster.messages.replies import Unanswered
from nanokv.cluster.pulling import Puller
from nanokv.cluster.putting import RemotePuts
from nanokv.cluster.reading import RemoteGets
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.rounds import TransferLate
from nanokv.cluster.wire.ways import Ways
from tests.support.faults import Calls


def over_link(member: NanoKVCluster) -> tuple[RemoteGets, RemotePuts, Puller]:
    """What gets, puts and pulls of a member that exchanges objects over a link."""
    gets, puts, puller = member.member.link_gets, member.member.link_puts, member.member.puller
    assert gets is not None and puts is not None and puller is not None
    return gets, puts, puller


def asked(member: NanoKVCluster, node: str, kind: Kind, body: bytes) -> bytes:
    """What a node answers to a message of a member."""
    return member.member.ways.ask(member.member.nodes[node].cards[0], kind, body, 10.0)


class _Silent:
    """A client of a member that answers nothing: each of its exchanges takes all of its time, the last argument."""

    def __init__(self, card: Card) -> None:
        self._name = card.member

    def __getattr__(self, name: str) -> Callable[..., None]:
        def exchange(*arguments: Any) -> None:
            time.sleep(arguments[-1])
            raise Unanswered(f"{self._name} did not answer")

        return exchange


class Network:
    """A network whose faults are said by a test. They end with it, or when all is well again."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def loses_reads(self, member: NanoKVCluster) -> None:
        """No read of this member begins."""
        self._calls.fail(member.member.link, "read", LinkLost("no way"))

    def hangs_reads(self, member: NanoKVCluster, node: str, is_over: Callable[[], bool] = lambda: True) -> None:
        """No read of this member from a node ends. What it gives up is over when `is_over` says so."""

        def late(world: RemoteWorld, *arguments: Any) -> None:
            time.sleep(arguments[-1])
            raise TransferLate(world.name, arguments[-1], is_over)

        for name in ("get_one", "locate", "fetch", "look"):
            self._calls.instead(over_link(member)[0].rounds, name, late, when=lambda world, *_: world.name == node)

    def hangs_messages(self, member: NanoKVCluster) -> None:
        """Nobody answers this member, and it waits as long as it can."""

        self._calls.instead(member.member.ways, "to", _Silent)

    def loses_messages(self, to: str) -> None:
        """A process answers no question of anybody."""
        lost = Unanswered(f"{to} did not answer")
        self._calls.fail(Ways, "to", lost, when=lambda ways, card: card.member == to)

    def loses_events(self, of: NanoKVCluster | None = None) -> None:
        """Nobody hears of what this member stores and removes; None: of any."""
        if of is None:
            self._calls.answer(Events, "hear", None)
        else:
            self._calls.answer(of.member.publisher, "publish", None)

    def is_well(self) -> None:
        """All works again."""
        self._calls.go_on()

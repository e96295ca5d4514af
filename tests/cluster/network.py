"""What lies between the members of a cluster: reads, messages and events, and what happens to them."""

import time
from collections.abc import Callable
from typing import Any

from nanokv.cluster import NanoKVCluster
from nanokv.cluster.events import Events
from nanokv.cluster.links.base import LinkLost
from nanokv.cluster.messages.asker import Asker
from nanokv.cluster.messages.replies import Unanswered
from nanokv.cluster.pulling import Puller
from nanokv.cluster.putting import RemotePuts
from nanokv.cluster.reading import RemoteGets
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.rounds import TransferLate
from tests.support.faults import Calls


def over_link(member: NanoKVCluster) -> tuple[RemoteGets, RemotePuts, Puller]:
    """What gets, puts and pulls of a member that exchanges objects over a link."""
    parts = member.member.reading, member.member.putting, member.member.puller
    assert isinstance(parts[0], RemoteGets) and isinstance(parts[1], RemotePuts) and parts[2] is not None
    return parts[0], parts[1], parts[2]


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

        def late(address: str, to: str, kind: int, body: bytes, timeout: float, **_: Any) -> None:
            time.sleep(timeout)
            raise Unanswered(f"{to} did not answer")

        self._calls.instead(member.member.asker, "ask", late)

    def loses_messages(self, to: str) -> None:
        """A process answers no question of anybody."""
        lost = Unanswered(f"{to} did not answer")
        self._calls.fail(Asker, "ask", lost, when=lambda asker, address, name, *_: name == to)

    def loses_events(self, of: NanoKVCluster | None = None) -> None:
        """Nobody hears of what this member stores and removes; None: of any."""
        if of is None:
            self._calls.answer(Events, "hear", None)
        else:
            self._calls.answer(of.member.publisher, "publish", None)

    def is_well(self) -> None:
        """All works again."""
        self._calls.go_on()

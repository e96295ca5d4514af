"""A put from another host: the producer's memory, and the owner's production code that pulls from it.

The producer's memory are words behind the segments: a ticket, and the bytes of its objects. `nanokv.cluster.putting`
sets the ticket before it asks, and clears it before it lets its caller change the bytes.
"""

import contextlib
from typing import Any, cast

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.check.protocol.model.remote_gets import shape
from nanokv.check.protocol.model.simulated_link import SimulatedLink, afar
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.cluster.links.base import LinkLost
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.pull_message import Question, answered
from nanokv.cluster.pulling import Pull, Puller
from nanokv.cluster.staging import Staging
from nanokv.device.fabric.records import LOOK_LINE, PULL
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD
from nanokv.device.sim.memory import SHARED
from nanokv.errors import OutOfMemory

_MOST_OBJECTS = 4
_MOST_WORDS = 8  #: of an object
_NUMBER = 7  #: of the question
_CHANGED = 9  #: the version that the bytes have when they were changed
_TIMEOUT = 3600.0
Offered = tuple[int, int]  #: an object: (key, words). Its version is 1


class RemoteProducer:
    """The process on another host. It offers objects, which lie one behind the other.

    Args:
        world: in which nothing has been put yet.
    """

    def __init__(self, world: SmallWorld, *offered: Offered) -> None:
        self._world, self.offered = world, offered
        world.segments.keep()
        self._ticket = SHARED + len(world.segments.words) * WORD
        world.segments.words += [0] * (LOOK_LINE // WORD + _MOST_OBJECTS * _MOST_WORDS)
        world.restart()
        world.store(self._ticket, _NUMBER, "relaxed")
        self._write(1)

    def _write(self, version: int) -> None:
        at = self._ticket + LOOK_LINE
        for key, words in self.offered:
            for _ in range(words):
                self._world.store(at, key << 32 | version, "relaxed")
                at += WORD

    def begin(self) -> None:
        """Let the objects be stored, in the execution that begins."""
        for key, words in self.offered:
            self._world.payload(key, 1, words)

    def give_up(self) -> None:
        """Wait no longer, and change the bytes. The stores are seen in their order: see `Memory.glance`."""
        self._world.simulation.vocabulary["xchg64"](self._ticket, 0, "acq_rel")
        self._write(_CHANGED)
        self._world.ended()

    def question(self) -> bytes:
        """What it asks the owner."""
        pulls = np.zeros(len(self.offered), PULL.dtype)
        at = self._ticket + LOOK_LINE
        for pull, (key, words) in zip(pulls, self.offered, strict=True):
            pull["key_hash"], pull["key_check"] = digest(key)
            pull["nbytes"], pull["what"], pull["source"] = words * WORD, shape(key, 1, words), afar(at)
            at += words * WORD
        return Question(pulls, b"card", afar(self._ticket), _NUMBER, _TIMEOUT).packed()


class _NoRoom:
    """An allocation that makes no room: FULL stays FULL."""

    def begin(self, *args: Any, **options: Any) -> Any:
        raise OutOfMemory("no room")


class RemotePut:
    """The owner's side of one put, in one execution.

    Args:
        rank: of the process, which pulls into the segment of rank 0.

    Attributes:
        link: over which it pulls.
    """

    def __init__(self, world: SmallWorld, producer: RemoteProducer, rank: int = 0) -> None:
        from nanokv.device.fabric import pulls  # which takes numba

        self._world, self._producer = world, producer
        self.link = SimulatedLink(world.simulation, looks=3, may_fail=True)
        machine, allocation = cast(Machine, world.machine(rank)), cast(Allocation, _NoRoom())
        self._puller = Puller(
            machine, allocation, self.link, Staging(self.link), lambda rank: None, failures=0, watches=False
        )
        functions = pulls.fault_of_pulls, pulls.begin_each, pulls.rows_of_pulls, pulls.end_each
        code = {function.__name__: world.simulation.host_function(function) for function in functions}
        self._puller._code = cast(Any, code)

    def pull(self) -> list[Status] | None:
        """Pull what the producer offers: a status for each object; None: it was given up in the middle."""
        simulation = self._world.simulation
        pending = cast(Pull, self._puller.handle(Sender("producer", 1), self._producer.question()))
        answer = None
        with contextlib.suppress(LinkLost):
            while (answer := pending.poll()) is None:
                if simulation.decide(2):
                    pending.abandon()
                    break
        while self._puller.late:
            pass
        for transfer in self.link.transfers:  # what nobody waits for comes all the same
            while transfer.moves():
                pass
        self._world.ended()
        if answer is None:
            return None
        return [Status(status) for status in answered(answer, len(self._producer.offered))["status"].tolist()]

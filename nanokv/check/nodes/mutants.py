"""Deliberate bugs of a node, to show that the check finds such bugs."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from nanokv.check.nodes.keys import is_canary
from nanokv.cluster.mapped import MappedPuts
from nanokv.cluster.member import Member
from nanokv.cluster.pulling import Puller
from nanokv.cluster.putting import RemotePuts
from nanokv.cluster.wire.exchanges import WirePuts
from nanokv.cluster.wire.server import WireServer
from nanokv.device.fabric.records import PULLED
from nanokv.heap.local import LocalHeap
from nanokv.types import Key, KeyDigest

_ALIKE = 3  #: digests of all keys there are, where keys are alike


def _keys_alike() -> None:
    """Keys are not compared: several have one digest, and a get returns the object of another key."""
    join = Member.__init__

    def join_with_few(self: Member, *rest: Any) -> None:
        join(self, *rest)
        hash_of = self.hash_of

        def alike(key: Key) -> KeyDigest:
            found = hash_of(key)
            is_plain = isinstance(key, str) and not is_canary(int(key.split("-")[1]))
            return KeyDigest(found[0] % _ALIKE + 1, 1) if is_plain else found

        self.hash_of = alike

    Member.__init__ = join_with_few  # type: ignore[method-assign, assignment]


def _acknowledged_early() -> None:
    """A put to another node returns before the owner has committed it, and whether it does or not."""

    def delayed(put_each: Callable[..., Any]) -> Callable[..., Any]:
        def put_later(self: object, node: Any, keys: Any, *rest: Any) -> Any:
            def put() -> None:
                try:
                    put_each(self, node, keys, *rest)
                except Exception:  # the bug: nobody is told
                    return

            threading.Timer(0.05, put).start()
            return np.zeros(len(keys), PULLED.dtype)

        return put_later

    for puts in (WirePuts, RemotePuts, MappedPuts):
        puts.put_each = delayed(puts.put_each)  # type: ignore[method-assign]


def _not_freed() -> None:
    """What a producer had begun that died, or gave up, is never freed."""
    end = Puller.end

    def end_if_well(self: Puller, pulls: Any, *, well: bool) -> None:
        if well:
            end(self, pulls, well=well)

    Puller.end = end_if_well  # type: ignore[method-assign]
    WireServer.give_up = lambda self, number: None  # type: ignore[method-assign]
    LocalHeap.alive = lambda self, rank, incarnation: True  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "keys-alike": _keys_alike,
    "acknowledged-early": _acknowledged_early,
    "not-freed": _not_freed,
}

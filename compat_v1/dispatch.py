"""How a request reaches its endpoint: by a call in the master's process, else by a message (`host_allocation`)."""

from collections.abc import Callable
from typing import Protocol

from nanokv.compat_v1.master import Master
from nanokv.compat_v1.messages import NOBODY, Op, Reply, Request
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import EVICTED
from nanokv.errors import PeerLost
from nanokv.types import KeyDigest


class Dispatch(Protocol):
    """Takes requests to the master: `LocalDispatch`, or `host_allocation.MasterClient`."""

    def ask(self, request: Request) -> Reply:
        """Return the master's reply.

        Raises:
            PeerLost: there is no master, or it does not answer. It may have done what the request asks, or not.
        """
        ...

    def close(self) -> None:
        """Close connections. Idempotent."""
        ...


def answer(master: Master, request: Request) -> Reply:
    """Call the endpoint that a request names."""
    key = KeyDigest(request.key_hash, request.key_check)
    number, place = request.number, request.place
    match request.op:
        case Op.OPEN_FOR_WRITE:
            return _open(master, request, key)
        case Op.GET_LOCATION:
            found = master.get_location(key)
            return Reply(number, found.status, found.place, descriptor=found.descriptor)
        case Op.EVICT:
            return Reply(number, Status.OK, gone=master.evict(place.owner, request.limit))
        case Op.COMMIT:
            status = master.commit(key, place)
        case Op.ABORT:
            status = master.abort(key, place)
        case Op.EXISTS:
            status = master.exists(key)
        case Op.REMOVE:
            status = master.remove(key)
        case Op.EVICT_SLOT:
            status = master.remove_slot(*place[:3], EVICTED.value)
        case _:
            status = master.remove_slot(*place[:3])
    return Reply(number, status)


def _open(master: Master, request: Request, key: KeyDigest) -> Reply:
    owner = request.place.owner
    begun = master.open_for_write(
        key,
        request.place.nbytes,
        None if owner == NOBODY else owner,
        request.descriptor,
        plan=bool(request.plan),
        producer=(request.rank, request.incarnation),
    )
    return Reply(request.number, begun.status, begun.place, begun.evicted)


class LocalDispatch:
    """A master in this process.

    Args:
        master: returns the master, or None before it was started and once it has closed.
        rank: the master's, for error messages.
    """

    def __init__(self, master: Callable[[], Master | None], rank: int) -> None:
        self._master = master
        self._rank = rank

    def ask(self, request: Request) -> Reply:
        master = self._master()
        if master is None:
            raise PeerLost(f"rank {self._rank}, the master, has closed, or was not started")
        return answer(master, request)

    def close(self) -> None:
        """Nothing to close."""

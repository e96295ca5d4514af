"""No link: members that exchange objects over the wire (`nanokv.cluster.wire`) read nobody's memory by its address."""

from typing import NoReturn

from nanokv.cluster.links.base import LinkLost, Words


class WireLink:
    """A `Link` that reaches nobody, and registers nothing.

    Args:
        member: the process's name in the cluster.
    """

    name = "wire"

    def __init__(self, member: str) -> None:
        self._member = member

    def card(self) -> bytes:
        """Nothing that another process could connect to."""
        return b""

    def register(self, address: int, nbytes: int, device: int | None = None, *, shared: bool = True) -> None:
        """Nothing: the wire reads what it is given."""

    def deregister(self, address: int) -> None:
        """Nothing."""

    def connect(self, card: bytes) -> NoReturn:
        """Raise LinkLost."""
        raise LinkLost("its memory is read over the wire, and by no address")

    def disconnect(self, peer: int) -> None:
        """Nothing."""

    def read(self, peer: int, here: Words, there: Words, nbytes: Words) -> NoReturn:
        """Raise LinkLost."""
        raise LinkLost("there is no such peer")

    def close(self) -> None:
        """Nothing."""

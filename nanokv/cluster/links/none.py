"""No link: a member that exchanges objects over the wire alone (`nanokv.cluster.wire`) reads nobody's memory."""

from typing import NoReturn

from nanokv.cluster.links.base import LinkLost, Words


class NoLink:
    """A `Link` that reaches nobody, and registers nothing."""

    name = ""

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

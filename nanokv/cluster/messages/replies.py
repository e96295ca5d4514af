"""What a handler of a server is, what it may answer, and what who asks gets if it does not."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from nanokv.cluster.messages.sealed import Sender


class Unanswered(TimeoutError):
    """A member gave no answer. Whether it took the question is not known."""


class Refused(Exception):
    """A member answered with an error; this is its text."""


class PendingReply(Protocol):
    """An answer that comes later. Only the server's thread uses it; what it raises is as if the handler had."""

    @property
    def rest(self) -> float:
        """Seconds that may pass until it is polled again."""
        ...

    def poll(self) -> bytes | None:
        """The answer once it is there, else None. Must not block."""
        ...

    def abandon(self) -> None:
        """The server closes, and nobody will poll any more."""
        ...


#: bytes: the answer. None: nothing to say; who asked gets an empty answer.
Reply: TypeAlias = bytes | PendingReply | None

#: Takes a message's sender and body. What it raises is logged, and its first line is what who asked gets.
Handler: TypeAlias = Callable[[Sender, bytes], Reply]

"""The numbers of messages that a server has taken. A message is taken once, however often it is sent.

As in IPsec: of each sender the newest incarnation, its highest number, and which of the numbers just below were taken.
What is further below is refused, for it may have been taken. Messages of one sender overtake each other, since each of
its threads has a connection of its own; the window is as large as what such connections hold of small messages.
"""

from nanokv.cluster.messages.sealed import Reason, Rejected, Sender

WINDOW = 1 << 14  #: numbers; 2 KiB for each sender
_ALL = (1 << WINDOW) - 1


class Window:
    """Which numbers of one incarnation of a sender were taken."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self._highest = 0
        self._taken = 0  # bit i: the number `highest - i`

    def take(self, number: int) -> None:
        """Take a number.

        Raises:
            Rejected: it was taken, or is too far below the highest for anyone to know.
        """
        ahead = number - self._highest
        if ahead > 0:
            self._taken = ((self._taken << ahead) & _ALL | 1) if ahead < WINDOW else 1
            self._highest = number
            return
        if -ahead >= WINDOW:
            raise Rejected(Reason.TOO_OLD)
        if self._taken >> -ahead & 1:
            raise Rejected(Reason.REPLAYED)
        self._taken |= 1 << -ahead


class Taken:
    """The windows of all senders. For one thread."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}

    def take(self, sender: Sender, number: int) -> None:
        """Take a message that is authentic.

        Raises:
            Rejected: it was taken before, or may have been, or its sender was started again since.
        """
        window = self._windows.get(sender.id)
        if window is None or window.incarnation < sender.incarnation:
            window = self._windows[sender.id] = Window(sender.incarnation)
        elif window.incarnation > sender.incarnation:
            raise Rejected(Reason.OLD_INCARNATION)
        window.take(number)

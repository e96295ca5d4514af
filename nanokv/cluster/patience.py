"""How long one call waits for nodes that do not answer: all of its tries share one time.

A node that hangs costs the timeout once, however many processes it has, and however many other nodes are asked after
it: those get what is left of the timeout, and where nothing is, a little, for they answer within milliseconds if they
live. So a call takes at most `timeout` and MORE, beside the time in which bytes come.
"""

import threading
import time

from nanokv.errors import PeerLost

MORE = 0.3  #: seconds, when the timeout is over, for all that are still to be asked
_LEAST = 0.1  #: seconds that one of those has
_NOTHING = 0.001  #: seconds in which nobody answers


class Patience:
    """How long one call waits for nodes. Each of its threads waits for itself, and all at the same time.

    Args:
        timeout: seconds that a node has for each round, or for its answer.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._before = 0.0
        self._spent: dict[int, float] = {}  # by thread: seconds that it has waited in vain since the last `meet`

    def left(self, name: str) -> float:
        """Seconds that the next try has, with a node of this name.

        Raises:
            PeerLost: none.
        """
        if not self._spent and not self._before:
            return self._timeout
        spent = self._before + self._spent.get(threading.get_ident(), 0.0)
        found = max(self._timeout - spent, min(_LEAST, self._timeout + MORE - spent))
        if found < _NOTHING:
            raise PeerLost(f"node {name} was not asked: others had not answered within {self._timeout:g} s")
        return found

    def waited(self, since: float) -> None:
        """Nothing came since that time of time.monotonic."""
        me = threading.get_ident()
        self._spent[me] = self._spent.get(me, 0.0) + time.monotonic() - since

    def meet(self) -> None:
        """All threads have ended their tries: what the slowest one has waited counts for all."""
        self._before += max(self._spent.values(), default=0.0)
        self._spent = {}

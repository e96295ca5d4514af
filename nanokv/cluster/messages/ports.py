"""Listening at one port of a range."""

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def at_first_free(ports: Sequence[int], listen: Callable[[int], T]) -> T:
    """What `listen` makes at the first port that nobody uses.

    Raises:
        OSError: all are in use; or what `listen` raises otherwise.
    """
    for port in ports:
        try:
            return listen(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"all ports from {ports[0]} to {ports[-1]} are in use")

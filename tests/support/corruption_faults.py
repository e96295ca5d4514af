"""Children of a corruption check that misbehave: the check must report it."""

import os
import signal
import time
from multiprocessing.connection import Connection


def crash(name: str, start: int, end: int, seed: int, connection: Connection) -> None:
    """Dies in its first case, like native code that reads outside of its memory."""
    connection.send(("doing", "corrupted a word"))
    connection.send(("doing", "do_get"))
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(name: str, start: int, end: int, seed: int, connection: Connection) -> None:
    """Does its first case, and never ends the second."""
    connection.send(("done", (1, 0, 0, 0)))
    connection.send(("doing", "do_put"))
    time.sleep(600)


def fail(name: str, start: int, end: int, seed: int, connection: Connection) -> None:
    """Finds something wrong in every case."""
    connection.send(("doing", "do_get"))
    connection.send(("failed", "key k3 came back as other bytes"))

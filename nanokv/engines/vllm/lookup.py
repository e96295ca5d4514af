"""How the scheduler asks the workers which blocks are there.

With one worker, scheduler and worker are one process, and the question is a call. With several, each worker answers on
a socket of this host, in a folder that only this user can enter: a block is there if every worker has its part. Both
sides know the place by the engine's id and the number of the worker's part, so nothing has to be carried between them.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import xxhash
from vllm.logger import init_logger

from nanokv.errors import HeapUnavailable

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

Prefix = Callable[[Sequence[bytes]], int]  #: how many of the first blocks are there, given by the engine's hashes

_here: dict[str, Prefix] = {}  #: the workers of this process, by their places


def place_of(engine: str | None, world: str, part: int) -> str:
    """The socket of a worker.

    Raises:
        HeapUnavailable: the folder belongs to somebody else.
    """
    folder = Path(tempfile.gettempdir()) / f"nanokv-vllm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise HeapUnavailable(f"{folder} must be a folder of this user, which nobody else can enter")
    return str(folder / f"{xxhash.xxh3_64_hexdigest(repr((engine, world)).encode())}-{part}")


class LookupServer:
    """A worker's answers, until `close`."""

    def __init__(self, place: str, prefix: Prefix) -> None:
        self._place, self._prefix = place, prefix
        self._closed = False
        for left in Path(place).parent.iterdir():  # by workers that were killed
            if _is_deserted(left):
                left.unlink(missing_ok=True)
        self._listener = Listener(place, "AF_UNIX")
        _here[place] = prefix
        threading.Thread(target=self._accept, name="nanokv-lookup", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                asker = self._listener.accept()
            except OSError:
                continue  # closed; or an asker that went away at once
            threading.Thread(target=self._answer, args=(asker,), name="nanokv-lookup-one", daemon=True).start()

    def _answer(self, asker: Connection) -> None:
        with asker, contextlib.suppress(EOFError, OSError):
            while not self._closed:
                asker.send(self._prefix(asker.recv()))

    def close(self) -> None:
        """Answer no more. Idempotent."""
        if self._closed:
            return
        self._closed = True
        _here.pop(self._place, None)
        with contextlib.suppress(OSError):
            Client(self._place, "AF_UNIX").close()  # wakes the thread that accepts
        self._listener.close()


def _is_deserted(place: Path) -> bool:
    """True for a socket that nobody listens to."""
    try:
        Client(str(place), "AF_UNIX").close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


class Lookup:
    """The scheduler's questions to all workers."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = list(places)
        self._workers: list[Connection] = []
        self._warned = False

    def __call__(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks every worker has its part of. 0 if a worker does not answer."""
        if all(place in _here for place in self._places):
            return min(_here[place](hashes) for place in self._places)
        try:
            return self._ask(list(hashes))
        except (EOFError, OSError) as error:
            self.close()  # the next question is asked anew: answers to this one must not be taken for answers to it
            if not self._warned:
                logger.warning("NanoKV: nothing is loaded, because a worker does not answer: %s", error)
            self._warned = True
            return 0

    def _ask(self, hashes: list[bytes]) -> int:
        if not self._workers:
            self._workers = [Client(place, "AF_UNIX") for place in self._places]
        for worker in self._workers:
            worker.send(hashes)
        return min(int(worker.recv()) for worker in self._workers)

    def close(self) -> None:
        """End the connections. Idempotent."""
        for worker in self._workers:
            worker.close()
        self._workers = []

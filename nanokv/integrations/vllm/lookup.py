"""How the scheduler asks the workers: which blocks are there, and to forget all of them.

With one worker, scheduler and worker are one process, and the question is a call. With several, each worker answers on
a socket of this host, in a folder that only this user can enter: a block is there if every worker has its part. Both
sides know the place by the engine's id and the number of the worker's part, so nothing has to be carried between them.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

import xxhash
from vllm.logger import init_logger

from nanokv.errors import HeapUnavailable
from nanokv.integrations.vllm.metadata import Asked

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name


class Answers(Protocol):
    """What a worker answers. It is called from a thread of its own."""

    def found(self, asked: Sequence[Asked]) -> list[bytes]:
        """Which blocks are there: an answer to each question, a byte for each block, 1 if it is; a shorter answer says
        that those after it are not."""
        ...

    def reset(self, number: int) -> bool:
        """Let nothing be found any more that was stored before, by whatever engine. False: somebody was not told.

        number: how many times the scheduler has asked for that.
        """
        ...


_here: dict[str, Answers] = {}  #: the workers of this process, by their places


def place_of(engine: str | None, world: str, part: int) -> str:
    """The socket of a worker.

    Raises:
        HeapUnavailable: the folder belongs to somebody else.
    """
    return str(private_folder() / f"{xxhash.xxh3_64_hexdigest(repr((engine, world)).encode())}-{part}")


def private_folder() -> Path:
    """The folder of this host where engines of this user meet.

    Raises:
        HeapUnavailable: it belongs to somebody else.
    """
    folder = Path(tempfile.gettempdir()) / f"nanokv-vllm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise HeapUnavailable(f"{folder} must be a folder of this user, which nobody else can enter")
    return folder


class LookupServer:
    """A worker's answers, until `close`."""

    def __init__(self, place: str, answers: Answers) -> None:
        self._place, self._answers = place, answers
        self._closed = False
        for left in Path(place).parent.iterdir():  # by workers that were killed
            if _is_deserted(left):
                left.unlink(missing_ok=True)
        self._listener = Listener(place, "AF_UNIX")
        _here[place] = answers
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
                asked = asker.recv()  # which blocks are there, or the number of a reset
                reset = isinstance(asked, int)
                asker.send(self._answers.reset(asked) if reset else self._answers.found(asked))

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
    if not place.is_socket():
        return False
    try:
        Client(str(place), "AF_UNIX").close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


class Workers:
    """All workers of an engine, as its scheduler asks them."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = list(places)
        self._workers: list[Connection] = []
        self._warned = False

    def found(self, asked: Sequence[Asked]) -> list[bytes]:
        """Which blocks every worker has its part of, as `Answers.found`. None if a worker does not answer."""
        here = self._all_here()
        if here is not None:
            return _of_all([worker.found(asked) for worker in here])
        try:
            return _of_all(self._ask(list(asked)))
        except (EOFError, OSError) as error:
            self.close()  # the next question is asked anew: answers to this one must not be taken for answers to it
            if not self._warned:
                logger.warning("NanoKV: nothing is loaded, because a worker does not answer: %s", error)
            self._warned = True
            return [b""] * len(asked)

    def reset(self, number: int) -> bool:
        """Have all workers forget what was stored. False: one does not answer, or could not tell everybody."""
        here = self._all_here()
        if here is not None:
            answers = [worker.reset(number) for worker in here]
            return all(answers)
        try:
            return all(self._ask(number))
        except (EOFError, OSError) as error:
            self.close()
            logger.error("NanoKV: the cache is not reset, because a worker does not answer: %s", error)
            return False

    def _all_here(self) -> list[Answers] | None:
        """The workers, if they are in this process."""
        return [_here[place] for place in self._places] if all(place in _here for place in self._places) else None

    def _ask(self, question: list[Asked] | int) -> list[Any]:
        if not self._workers:
            self._workers = [Client(place, "AF_UNIX") for place in self._places]
        for worker in self._workers:
            worker.send(question)
        return [worker.recv() for worker in self._workers]

    def close(self) -> None:
        """End the connections. Idempotent."""
        for worker in self._workers:
            worker.close()
        self._workers = []


def _of_all(answers: Sequence[Sequence[bytes]]) -> list[bytes]:
    """What all workers have, of each question."""
    return [bytes(min(some) for some in zip(*each, strict=False)) for each in zip(*answers, strict=True)]

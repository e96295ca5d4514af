"""What a user sees while the protocol compiles: a bar in a terminal, else a line of the log; nothing if it is quick."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from nanokv.device.memory.triton import VOCABULARY

_log = logging.getLogger("nanokv.compile")
WORTH_SAYING = 30  #: functions; 100 compile in 10 to 30 s


def functions_of(functions: list[Any]) -> int:
    """How many device functions these are, with all that they call; the vocabulary's are not compiled by themselves."""
    seen = set()

    def add(raw: Any) -> None:
        seen.add(raw)
        for name in set(raw.__code__.co_names) - set(VOCABULARY):
            called = getattr(raw.__globals__.get(name), "fn", None)
            if called is not None and called not in seen:
                add(called)

    for function in functions:
        add(function.fn)
    return len(seen)


@contextmanager
def compile_progress(functions: list[Any]) -> Iterator[None]:
    """Tell about the compilation of these device functions in the block.

    The logger "nanokv.compile" has the line, as a warning so that it is seen where logging is not set up; its level
    silences the bar too.
    """
    count = functions_of(functions)
    if count < WORTH_SAYING or not _log.isEnabledFor(logging.WARNING):
        yield
    elif sys.stderr.isatty():
        with _bar(count) as advance, _compilations(advance):
            yield
    else:
        _log.warning(
            "nanokv compiles its protocol for this CPU, %d to %d s, once per version and user; `nanokv warmup` does it "
            "ahead",
            count // 10 + 1,
            count // 3 + 1,
        )
        yield


class _Listener(event.Listener):  # type: ignore[misc]
    """Calls `advance` whenever numba has compiled a function."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def on_start(self, event: Any) -> None:
        pass

    def on_end(self, event: Any) -> None:
        self._advance()


@contextmanager
def _compilations(advance: Callable[[], None]) -> Iterator[None]:
    with event.install_listener("numba:compile", _Listener(advance)):
        yield


@contextmanager
def _bar(count: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("nanokv compiles its protocol, once", total=count)
        yield lambda: progress.advance(task)

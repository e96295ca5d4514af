"""Faults, by one fixture for each place where a test puts them: calls, limits and clocks. They end with the test."""

import threading
import time
from collections.abc import Callable, Container, Iterator
from functools import wraps
from itertools import count
from types import ModuleType
from typing import Any, TypeAlias

import pytest

Seen: TypeAlias = "list[tuple[Any, ...]]"
Error: TypeAlias = "BaseException | type[BaseException]"


class Calls:
    """Faults in calls of a function: of a module, of a class or of one object.

    Each method returns a list that grows by the arguments of each call, and takes which calls are meant, if not all:
    `when` tells by their arguments, and `at` has their numbers among these, from 1.
    """

    def __init__(self) -> None:
        self._patch, self._over = pytest.MonkeyPatch(), threading.Event()

    def noted(self, owner: Any, name: str) -> Seen:
        """Watch calls, without any fault."""
        return self.instead(owner, name, getattr(owner, name))

    def before(self, owner: Any, name: str, happen: Callable[..., object], **which: Any) -> Seen:
        """Let something happen before a call, of whose arguments it is told."""
        real = getattr(owner, name)

        def late(*args: Any, **options: Any) -> Any:
            happen(*args, **options)
            return real(*args, **options)

        return self.instead(owner, name, late, **which)

    def after(self, owner: Any, name: str, happen: Callable[..., object], **which: Any) -> Seen:
        """Let something happen when a call has done its work, and its caller does not know."""
        real = getattr(owner, name)

        def early(*args: Any, **options: Any) -> Any:
            found = real(*args, **options)
            happen(*args, **options)
            return found

        return self.instead(owner, name, early, **which)

    def fail(self, owner: Any, name: str, error: Error, **which: Any) -> Seen:
        """Raise an error in place of a call."""

        def fails(*_: Any, **__: Any) -> None:
            raise error

        return self.instead(owner, name, fails, **which)

    def answer(self, owner: Any, name: str, value: Any, **which: Any) -> Seen:
        """Give an answer in place of a call."""
        return self.instead(owner, name, lambda *_, **__: value, **which)

    def instead(
        self,
        owner: Any,
        name: str,
        act: Callable[..., Any],
        *,
        at: Container[int] | None = None,
        when: Callable[..., bool] | None = None,
    ) -> Seen:
        """Call another function in place of the own one."""
        real, number, seen = getattr(owner, name), count(1), list[tuple[Any, ...]]()
        over = self._over

        @wraps(real)
        def called(*args: Any, **options: Any) -> Any:
            seen.append(args)
            is_meant = (when is None or when(*args)) and (at is None or next(number) in at)
            return (act if is_meant and not over.is_set() else real)(*args, **options)

        self._patch.setattr(owner, name, called)
        return seen

    def go_on(self) -> None:
        """End all these faults, also for those who have kept the function that they were to call."""
        self._over.set()
        self._over = threading.Event()
        self._patch.undo()


class Clock:
    """The clocks of Python, as a test wants them."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self.now = 0.0  #: seconds, by the clock of waits

    def jumps(self, seconds: float) -> None:
        """Somebody sets the wall clock: it shows so much more, or less."""
        real = time.time_ns
        self._patch.setattr(time, "time_ns", lambda: real() + round(seconds * 1e9))

    def stands(self) -> None:
        """No time passes in waits, but for what `passes` says."""
        self.now = time.monotonic()
        self._patch.setattr(time, "monotonic", lambda: self.now)

    def passes(self, seconds: float) -> None:
        """So much time has passed, by the clock that stands."""
        self.now += seconds

    def is_right(self) -> None:
        """The clocks show again what they should."""
        self._patch.undo()


class Limits:
    """Limits that are constants of a module or a class: how many, how much, how long. A test makes them others."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, owner: ModuleType | type, **values: object) -> None:
        for name, value in values.items():
            self._patch.setattr(owner, name, value)


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Faults in calls."""
    made = Calls()
    yield made
    made.go_on()


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clocks of Python."""
    made = Clock()
    yield made
    made.is_right()


@pytest.fixture
def limits() -> Iterator[Limits]:
    """Constants of modules."""
    with pytest.MonkeyPatch.context() as patch:
        yield Limits(patch)

"""Repetitions in turns: A B A B, never A A B B, so that a disturbance of the machine meets all that is compared."""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def in_turns(
    ways: Mapping[Key, Callable[[], Value]],
    repeats: int,
    warm_up: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[Key, list[Value]]:
    """Call all ways one after the other, `warm_up + repeats` times.

    Args:
        ways: what is compared; one call is one repetition.
        repeats: the laps that count.
        warm_up: the laps before them, whose results are dropped.
        say: told before each call which way runs now, and in which lap.

    Returns:
        By way the results of the laps that count, in their order.
    """
    found: dict[Key, list[Value]] = {name: [] for name in ways}
    for lap in range(1 - warm_up, repeats + 1):
        for name, way in ways.items():
            say(f"{_shown(name)}, {f'{lap} of {repeats}' if lap > 0 else 'warming up'}")
            result = way()
            if lap > 0:
                found[name].append(result)
    return found


def _shown(name: Hashable) -> str:
    return ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)

"""A failing schedule, made small: fewer decisions that are not plain, fewer kills."""

from collections.abc import Callable, Iterator

from nanokv.device.sim.schedule import Schedule

Parts = list[tuple[int, int] | str]


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool], tries: int = 400) -> Schedule:
    """The smallest schedule found that still fails: delta debugging (Zeller 2002), at most `tries` executions."""
    parts: Parts = [*schedule.kills, *schedule.taken]
    left = tries
    size = max(len(parts) // 2, 1)
    while parts and left > 0:
        smaller = None
        for candidate in _without(parts, size):
            left -= 1
            if fails(_schedule(schedule, candidate)):
                smaller = candidate
                break
            if left <= 0:
                break
        if smaller is not None:
            parts = smaller
            size = min(size, max(len(parts) // 2, 1))
        elif size == 1:
            break
        else:
            size //= 2
    return _schedule(schedule, parts)


def _without(parts: Parts, size: int) -> Iterator[Parts]:
    """The list without each run of `size` of its parts, the last ones first."""
    for start in range((len(parts) - 1) // size * size, -1, -size):
        yield parts[:start] + parts[start + size :]


def _schedule(whole: Schedule, parts: Parts) -> Schedule:
    taken = tuple(part for part in parts if not isinstance(part, str))
    return Schedule(taken, {name: whole.kills[name] for name in parts if isinstance(name, str)})

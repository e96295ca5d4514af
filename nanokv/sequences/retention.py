"""Which tokens of a sequence stay when it is cut down to those that matter."""

import math
from collections.abc import Sequence
from numbers import Real

from nanokv.arguments import integer, number, whole_number
from nanokv.errors import InvalidArgument


def tokens_to_keep(keep: float, tokens: int) -> int:
    """`keep` as a number of tokens: an integer of at least 1, or a fraction of `tokens`, which is rounded up.

    Raises:
        InvalidArgument: it is neither. A fraction is a float above 0 and below 1.
    """
    count = whole_number(keep)
    if count is not None:
        return integer("keep", count, 1)
    if isinstance(keep, Real) and not isinstance(keep, bool) and 0 < keep < 1:
        return math.ceil(keep * tokens)
    raise InvalidArgument(f"keep must be a number of tokens, or a fraction between 0 and 1, not {keep!r}")


def places_to_keep(importance: Sequence[float], keep: int, protect_first: int, protect_last: int) -> list[int]:
    """The places of the tokens that stay, ascending.

    The first `protect_first` and the last `protect_last` stay, and of the others the most important ones; of two that
    are equally important the later one.

    Raises:
        InvalidArgument: more tokens are protected than are to be kept.
    """
    first, last = integer("protect_first", protect_first, 0), integer("protect_last", protect_last, 0)
    tokens = len(importance)
    if keep >= tokens:
        return list(range(tokens))
    if first + last > keep:
        raise InvalidArgument(f"{first} first and {last} last tokens are protected, but only {keep} are to be kept")
    middle = sorted(range(first, tokens - last), key=lambda place: (importance[place], place), reverse=True)
    chosen = sorted(middle[: keep - first - last])
    return [*range(first), *chosen, *range(tokens - last, tokens)]


def finite(name: str, value: object) -> float:
    """A finite number, as an importance has to be."""
    found = number(name, value)
    if math.isinf(found):
        raise InvalidArgument(f"{name} must be finite, not {value!r}")
    return found

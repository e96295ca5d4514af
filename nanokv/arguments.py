"""Checks of what callers pass. Each returns the value as the rest of NanoKV takes it, or raises InvalidArgument."""

import contextlib
import math
import operator
import re
import threading
from collections.abc import Iterable
from numbers import Real
from typing import TypeVar

from nanokv.errors import InvalidArgument
from nanokv.types import KeyDigest

T = TypeVar("T")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
FOREVER = threading.TIMEOUT_MAX  #: the longest wait of Python's locks, in seconds: centuries


def integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """An integer from `low` to `high`, of Python or numpy; no bool."""
    found = value if type(value) is int else whole_number(value)
    if found is None or found < low or (high is not None and found > high):
        allowed = f"an integer of at least {low}" if high is None else f"{low} to {high}"
        raise InvalidArgument(f"{name} must be {allowed}, not {value!r}")
    return found


def whole_number(value: object) -> int | None:
    """An int of Python or numpy as an int; None for anything else, and for a bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def size(name: str, value: object) -> int:
    """Bytes: a number, or a text such as 4GiB, 512 MB (of 1024 each), 65536."""
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value.strip())
        if matched is None:
            raise InvalidArgument(f"{name} must be a size such as 4GiB, not {value!r}")
        return int(matched[1]) * _UNITS[matched[2].lower()]
    return integer(name, value, 0)


def number(name: str, value: object) -> float:
    """A real number of Python or numpy; no bool, and not NaN."""
    if type(value) is float and not math.isnan(value):  # the usual one: to ask for a Real takes a microsecond
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            found = float(value)
            if not math.isnan(found):
                return found
    raise InvalidArgument(f"{name} must be a number, not {value!r}")


def seconds(name: str, value: object) -> float:
    """A number of seconds. At most FOREVER, which stands for infinity too: locks take no longer wait."""
    return min(number(name, value), FOREVER)


def listed(name: str, values: Iterable[T]) -> list[T]:
    """The items of a sequence or another iterable. A string, or a key, is not meant as a sequence."""
    if not isinstance(values, str | bytes | KeyDigest):
        try:
            items = iter(values)
        except TypeError:
            pass
        else:
            return list(items)
    raise InvalidArgument(f"{name} must be a sequence, not {values!r}")

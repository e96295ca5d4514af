"""Checks of what callers pass. Each returns the value as the rest of NanoKV takes it, or raises InvalidArgument.

Options are declared once, as fields of a dataclass with their checks, their defaults and what they mean to people.
"""

import contextlib
import math
import operator
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields
from numbers import Real
from typing import Any, TypeVar

from nanokv.errors import InvalidArgument
from nanokv.types import KeyDigest

T = TypeVar("T")
Check = Callable[[str, Any], Any]  #: of the name and the value

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


def size(name: str, value: object, low: int = 0) -> int:
    """Bytes, at least `low`: a number, or a text such as 4GiB, 512 MB (of 1024 each), 65536."""
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value.strip())
        if matched is None:
            raise InvalidArgument(f"{name} must be a size such as 4GiB, not {value!r}")
        value = int(matched[1]) * _UNITS[matched[2].lower()]
    return integer(name, value, low)


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


def positive_seconds(name: str, value: object) -> float:
    """More than 0 seconds."""
    found = seconds(name, value)
    if not found > 0:
        raise InvalidArgument(f"{name} must be positive seconds, not {found!r}")
    return found


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


# --- checks that are made of what they allow --------------------------------------------------
def is_a(kind: Any, words: str, allows: Callable[[Any], object] = lambda _: True, *, hides: bool = False) -> Check:
    """A value of a type, of which `allows` is true. `words`: what it must be; `hides`: messages leave the value out."""

    def check(name: str, value: object) -> object:
        if not isinstance(value, kind) or not allows(value):
            raise InvalidArgument(f"{name} must be {words}" + ("" if hides else f", not {value!r}"))
        return value

    return check


def one_of(allowed: Sequence[str | None]) -> Check:
    """One of these texts."""
    return is_a(str | None, f"one of {', '.join(map(str, allowed))}", allowed.__contains__)


def whole(low: int, high: int | None = None) -> Check:
    """An integer from `low` to `high`."""
    return lambda name, value: integer(name, value, low, high)


def or_none(check: Check) -> Check:
    """None, or what another check allows."""
    return lambda name, value: None if value is None else check(name, value)


TEXT = is_a(str, "a str")
WORDS = is_a(str, "a non-empty str", bool)
FLAG = is_a(bool, "True or False")
JSON_FLAG = is_a(bool, "true or false")  #: of settings that are written as JSON


# --- options ----------------------------------------------------------------------------------
def option(check: Check, default: T, text: str = "", *, shown: bool = True) -> T:
    """A field of a dataclass with its check. `text`: what it means; `shown`: in the dataclass' repr."""
    return field(default=default, repr=shown, metadata={"check": check, "text": text})


def check_options(options: Any, prefix: str = "") -> None:
    """Make each option what its check returns; to be called by `__post_init__`. `prefix`: of names in messages."""
    for each in fields(options):
        if "check" in each.metadata:
            value = each.metadata["check"](prefix + each.name, getattr(options, each.name))
            object.__setattr__(options, each.name, value)


def refuse_unknown(given: Iterable[str], known: Sequence[str], what: str, where: str = "") -> None:
    """Refuse names that are not known. `what`, `where`: what they name, as "option", and of what: " of a cluster"."""
    for name in given:
        if name not in known:
            raise InvalidArgument(f"there is no {what} {name!r}{where}; the {what}s are {', '.join(known)}")

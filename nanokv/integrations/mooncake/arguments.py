"""What Mooncake's calls are given: checked, and turned into what the store works with.

Values of another type than the real store takes raise TypeError, with the words of its language binding.
"""

import operator
import re
import warnings
from copy import copy
from typing import Any

from nanokv.integrations.mooncake.codes import ErrorCode
from nanokv.integrations.mooncake.config import ReplicateConfig, SoftPinAction
from nanokv.integrations.mooncake.memory import Part

PLAIN = ReplicateConfig()  #: the default of `config`; nobody changes it
_WRONG = "incompatible function arguments:"
_INT32 = range(-(1 << 31), 1 << 31)


# --- keys and lists ---
def key_bytes(key: object) -> bytes:
    """The bytes of a key, a str or bytes.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"{_WRONG} {error}") from None
    if isinstance(key, bytes):
        return key
    if isinstance(key, bytearray):
        return bytes(key)
    raise TypeError(f"{_WRONG} a key must be a str, not {key!r}")


def names(given: object) -> list[bytes]:
    """The bytes of each key of a list: all are checked before a call stores anything.

    Raises:
        TypeError: `given` is no list of keys.
    """
    return [key_bytes(key) for key in listed("keys", given)]


def listed(name: str, given: object) -> list[Any]:
    """A list, or another sequence except a text.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, list):
        return given
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, str | bytes | dict):
        return [given[number] for number in range(len(given))]
    raise TypeError(f"{_WRONG} {name} must be a list, not {given!r}")


def exact_list(name: str, given: object) -> list[object]:
    """A list; a tuple is none, as for the real store.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, list):
        return given
    raise TypeError(f"{_WRONG} {name} must be a list, not {given!r}")


# --- numbers and texts ---
def number(name: str, given: object) -> int:
    """A size, an offset or an address.

    Raises:
        TypeError: it is no integer, or negative.
    """
    if type(given) is int and given >= 0:
        return given
    if hasattr(given, "__index__") and operator.index(given) >= 0:
        return operator.index(given)
    raise TypeError(f"{_WRONG} {name} must be an int >= 0, not {given!r}")


def numbers(name: str, given: object) -> list[int]:
    """A list of sizes, offsets or addresses.

    Raises:
        TypeError: it is no such list.
    """
    return [number(f"an item of {name}", each) for each in listed(name, given)]


def int32(name: str, given: object) -> int:
    """A rank, a count or a dimension.

    Raises:
        TypeError: it is no integer of 32 bits.
    """
    try:
        value = operator.index(given)  # type: ignore[arg-type]  # it raises TypeError for all others
    except TypeError:
        value = None
    if value is None or value not in _INT32:
        raise TypeError(f"{_WRONG} {name} must be an int, not {given!r}")
    return int(value)


def text(given: object) -> str:
    """A text where the real store converts it late: anything else raises RuntimeError, not TypeError."""
    if isinstance(given, bytes):
        return given.decode(errors="replace")
    if isinstance(given, str):
        return given
    raise RuntimeError(f"Unable to cast Python instance of type {type(given)} to a string")


def pattern(given: object) -> re.Pattern[bytes] | None:
    """A regular expression over the bytes of keys, in Python's syntax and with POSIX' classes; None if it is none.

    Raises:
        TypeError: it is no str.
    """
    if not isinstance(given, str):
        raise TypeError(f"{_WRONG} a regular expression must be a str, not {given!r}")
    for name, characters in _CLASSES.items():
        given = given.replace(f"[:{name}:]", characters)
    try:
        with warnings.catch_warnings(action="error"):  # of what another syntax would read in another way
            return re.compile(given.encode("utf-8", "surrogatepass"))
    except (re.error, FutureWarning, RecursionError, OverflowError):
        return None


_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
    "punct": r"!-/:-@\[-`{-~",
}


# --- memory ---
def memory_of(buffer_ptrs: object, sizes: object) -> list[Part] | None:
    """One piece of memory for each key; None for lists of different lengths.

    Raises:
        TypeError: they are no lists of addresses and sizes.
    """
    starts, rooms = numbers("buffer_ptrs", buffer_ptrs), numbers("sizes", sizes)
    return list(map(Part, starts, rooms)) if len(starts) == len(rooms) else None


def pieces_of(all_ptrs: object, all_sizes: object) -> list[list[Part] | None] | None:
    """Several pieces of memory for each key; None for a key without any, or with lists of different lengths.

    None for all: there are not as many lists of addresses as of sizes.

    Raises:
        TypeError: an address or a size is none.
    """
    ptrs, sizes = listed("all_buffer_ptrs", all_ptrs), listed("all_sizes", all_sizes)
    return [memory_of(*each) or None for each in zip(ptrs, sizes, strict=True)] if len(ptrs) == len(sizes) else None


# --- configs ---
def checked(config: object) -> ReplicateConfig:
    """A config.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(config, ReplicateConfig):
        return config
    raise TypeError(f"{_WRONG} config must be a ReplicateConfig, not {config!r}")


def config_code(config: object, objects: int = 1) -> int:
    """Tell whether NanoKV can store so many objects in the way that a config says: 0 or a code.

    Raises:
        TypeError: it is no config.
    """
    if config is PLAIN:
        return ErrorCode.OK
    config = checked(config)
    if config.dfs_replica_num:
        return ErrorCode.DFS_SERVICE_UNAVAILABLE
    timed_without_pin = config.soft_pin_ttl_ms is not None and config.soft_pin_action != SoftPinAction.ENABLE
    grouped_wrongly = config.group_ids is not None and len(config.group_ids) != objects
    if not config.replica_num or config.nof_replica_num or timed_without_pin or grouped_wrongly:
        return ErrorCode.INVALID_PARAMS
    return ErrorCode.OK


def config_of_each(config: ReplicateConfig, objects: int) -> ReplicateConfig | None:
    """The config of each of some objects; None if it names groups, and not one for each.

    Groups are only checked: NanoKV has none of this interface.
    """
    if config.group_ids is None:
        return config
    if len(config.group_ids) != objects:
        return None
    single = copy(config)
    single.group_ids = None
    return single


def segments_fit(config: ReplicateConfig) -> bool:
    """Tell whether a config that names segments names one for each replica."""
    return not config.preferred_segments or len(config.preferred_segments) == config.replica_num

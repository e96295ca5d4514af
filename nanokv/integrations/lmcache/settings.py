"""What a connector or an adapter is told: settings of its store (`nanokv.integrations.joining`), and some of its own.

LMCache's `extra_config` is one flat mapping for all plug-ins, so the connector takes what begins with "nanokv." there,
and refuses what it does not know; the adapter has a mapping of its own, `adapter_params`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmcache.v1.exceptions import IrrecoverableException

from nanokv.arguments import JSON_FLAG, check_options, number, option, or_none, size, whole
from nanokv.device.segment.geometry import DEFAULT_CLASSES
from nanokv.errors import InvalidArgument
from nanokv.integrations import joining

PREFIX = "nanokv."  #: of the connector's settings
_OF_A_CONNECTOR = ("threads", "spread", "lease")
_OF_AN_ADAPTER = ("threads", "spread", "max_capacity_bytes")


class SettingsRefused(InvalidArgument, IrrecoverableException):
    """A setting is wrong. LMCache goes on without a backend whose connector raises this; others it would keep."""


@dataclass(frozen=True, slots=True)
class Own:
    """Settings beside those of the store.

    Attributes:
        threads: that copy at a time, in each direction.
        spread: store at a key's home, which may be the segment of any process and node, not in this process' own.
            Default: only in a cluster, where nodes that join later find what lies at its home.
        lease: seconds that an object which a look-up wants pinned is not evicted, unless it is read before. 0: none.
        max_capacity_bytes: bytes of objects that LMCache's own eviction counts as full; 0: it does not evict.
            Default: `size`.
    """

    threads: int = option(whole(1, 64), 2)
    spread: bool | None = option(or_none(JSON_FLAG), None)
    lease: float = 10.0
    max_capacity_bytes: int | None = option(or_none(size), None)

    def __post_init__(self) -> None:
        check_options(self)
        if number("lease", self.lease) < 0:
            raise InvalidArgument(f"lease must not be negative, as {self.lease!r} is")

    def segment(self, joined: joining.JoinedStore) -> int | None:
        """The rank in whose segment objects are stored; None: that of a key's home."""
        spread = joined.world is not joined.cache if self.spread is None else self.spread
        return None if spread else joined.world.rank


def of_connector(extra_config: Mapping[str, Any] | None) -> tuple[Own, joining.Settings]:
    """The settings in LMCache's `extra_config`.

    Raises:
        SettingsRefused: a setting that does not exist, or a value that is not allowed.
    """
    given = {
        name.removeprefix(PREFIX): value for name, value in (extra_config or {}).items() if name.startswith(PREFIX)
    }
    try:
        return _split(given, _OF_A_CONNECTOR)
    except InvalidArgument as error:
        raise SettingsRefused(str(error)) from None


def with_room_for(chunk: int, settings: joining.Settings) -> joining.Settings:
    """The settings with objects as large as a chunk of so many bytes, if they do not say how large objects are.

    Raises:
        SettingsRefused: they do, and it is less; or a segment does not hold one chunk.
    """
    for name in ("size", "max_object"):
        room = getattr(settings, name)
        if room and chunk > room:
            raise SettingsRefused(f"{name}={room} is less than a chunk has: {chunk} bytes")
    if settings.max_object or chunk <= DEFAULT_CLASSES[-1] * settings.page_bytes:
        return settings
    return replace(settings, max_object=chunk)


def of_adapter(adapter_params: Mapping[str, Any]) -> tuple[Own, joining.Settings]:
    """The settings in an adapter's `adapter_params`.

    Raises:
        InvalidArgument: a setting that does not exist, or a value that is not allowed.
    """
    return _split(adapter_params, _OF_AN_ADAPTER)


def _split(given: Mapping[str, Any], own: Sequence[str]) -> tuple[Own, joining.Settings]:
    mine, store = joining.split(given, own)
    return Own(**mine), store

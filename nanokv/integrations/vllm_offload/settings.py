"""What a tier or a spec may be told: the settings of its store (`nanokv.integrations.joining`), and some of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanokv.arguments import JSON_FLAG, TEXT, check_options, option, or_none, whole
from nanokv.device.segment.geometry import DEFAULT_CLASSES
from nanokv.errors import InvalidArgument
from nanokv.integrations import joining

OF_A_TIER = ("model", "revision", "threads", "spread", "enable_kv_events")
OF_A_SPEC = ("model", "revision", "threads")


@dataclass(frozen=True, slots=True)
class Own:
    """Settings beside those of the store.

    Attributes:
        model, revision: of the weights, for keys. vLLM tells offloading backends its model's name, and no revision.
        threads: that copy at a time, in each direction.
        spread: store in the segment of a key's home, which may be of any process and node, not in this process' own.
            Default: only in a cluster, where nodes that join later find what lies at its home.
        enable_kv_events: tell of what is stored and evicted, if vLLM's events are on.
    """

    model: str = option(TEXT, "")
    revision: str = option(TEXT, "")
    threads: int = option(whole(1, 64), 2)
    spread: bool | None = option(or_none(JSON_FLAG), None)
    enable_kv_events: bool = option(JSON_FLAG, False)

    def __post_init__(self) -> None:
        check_options(self)


def split(given: Mapping[str, Any], own: Sequence[str]) -> tuple[Own, joining.Settings]:
    """The settings in a configuration: those of `Own` that `own` names, and those of the store.

    Raises:
        InvalidArgument: a setting that does not exist, or a value that is not allowed.
    """
    mine, store = joining.split(given, own)
    return Own(**mine), store


def with_room_for(nbytes: int, settings: joining.Settings) -> joining.Settings:
    """The settings with objects of `nbytes`, if they do not say how large objects are.

    Raises:
        InvalidArgument: they do, and it is less; or a segment does not hold one object.
    """
    if nbytes > settings.size:
        raise InvalidArgument(f"size={settings.size} does not hold one block of {nbytes} bytes")
    if settings.max_object:
        if nbytes > settings.max_object:
            raise InvalidArgument(f"max_object={settings.max_object} is less than a block has: {nbytes} bytes")
        return settings
    return settings if nbytes <= DEFAULT_CLASSES[-1] * settings.page_bytes else replace(settings, max_object=nbytes)

"""What the backend is told: the settings of its store, in the object `nanokv` of SGLang's extra config.

The other keys of the extra config are SGLang's own, and pass, whatever they are: SGLang takes some out before a backend
sees them, and versions differ. One that is the name of a setting of the store is refused, because it stands in the
wrong place, and would be ignored.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nanokv.errors import InvalidArgument
from nanokv.integrations import joining

KEY = "nanokv"  #: of the extra config
_NAMES = frozenset(field.name for field in fields(joining.Settings))


def parse(extra_config: Mapping[str, Any] | None) -> joining.Settings:
    """The settings of the store.

    Raises:
        InvalidArgument: a setting that does not exist, or stands outside of `nanokv`; or a value that is not allowed.
    """
    extra_config = extra_config or {}
    if not isinstance(extra_config, Mapping):
        raise InvalidArgument(f"the extra config must be an object, not {extra_config!r}")
    for name in extra_config:
        if name in _NAMES:
            raise InvalidArgument(f'{name!r} is a setting of NanoKV: it belongs into "{KEY}": {{...}}')
    given = extra_config.get(KEY, {})
    if not isinstance(given, Mapping):
        raise InvalidArgument(f'"{KEY}" must be an object of settings, not {given!r}')
    return joining.parse(given)


def uses_zero_copy(extra_config: Mapping[str, Any] | None) -> bool:
    """Whether SGLang calls `batch_get_v1` and `batch_set_v1`."""
    return bool((extra_config or {}).get("interface_v1", 0))

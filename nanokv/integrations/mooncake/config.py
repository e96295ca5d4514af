"""`ReplicateConfig`: how an object is stored. Its fields, defaults and checks are those of the real one."""

from enum import IntEnum
from typing import Any

_SIZE_MAX = (1 << 64) - 1


class SoftPinAction(IntEnum):
    """What a put does about the soft pin of its object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(IntEnum):
    """What an object is; only told, never used."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


def _size(value: object) -> int:
    if isinstance(value, int) and 0 <= value <= _SIZE_MAX:
        return int(value)
    raise TypeError(f"incompatible function arguments: {value!r} is no size")


def _flag(value: object) -> bool:
    if isinstance(value, bool | int) and value in (0, 1):
        return bool(value)
    raise TypeError(f"incompatible function arguments: {value!r} is no bool")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"incompatible function arguments: {value!r} is no str")


def _texts(value: object) -> list[str]:
    if isinstance(value, list | tuple):
        return [_text(each) for each in value]
    raise TypeError(f"incompatible function arguments: {value!r} is no list[str]")


def _milliseconds(value: object) -> int | None:
    return None if value is None else _size(value)


def _groups(value: object) -> list[str] | None:
    return None if value is None else _texts(value)


def _action(value: object) -> SoftPinAction:
    if isinstance(value, SoftPinAction):
        return value
    raise TypeError(f"incompatible function arguments: {value!r} is no SoftPinAction")


def _data_type(value: object) -> ObjectDataType:
    if isinstance(value, ObjectDataType):
        return value
    raise TypeError(f"incompatible function arguments: {value!r} is no ObjectDataType")


#: per field its default, and what turns a value into one of the field's type, or raises TypeError
_FIELDS: dict[str, tuple[Any, Any]] = {
    "replica_num": (1, _size),
    "nof_replica_num": (0, _size),
    "dfs_replica_num": (0, _size),
    "soft_pin_action": (SoftPinAction.PRESERVE, _action),
    "soft_pin_ttl_ms": (None, _milliseconds),
    "with_hard_pin": (False, _flag),
    "preferred_segments": ([], _texts),
    "preferred_segment": ("", _text),
    "preferred_nof_segments": ([], _texts),
    "prefer_alloc_in_same_node": (False, _flag),
    "data_type": (ObjectDataType.UNKNOWN, _data_type),
    "group_ids": (None, _groups),
}


class ReplicateConfig:
    """How an object is stored: its copies, its pins, its place.

    Setting a field raises TypeError for a value of another type, and AttributeError if there is no such field.
    """

    __slots__ = tuple(_FIELDS)

    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_hard_pin: bool
    preferred_segments: list[str]
    preferred_segment: str
    preferred_nof_segments: list[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: list[str] | None

    def __init__(self) -> None:
        for name, (default, _) in _FIELDS.items():
            object.__setattr__(self, name, list(default) if isinstance(default, list) else default)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _FIELDS:
            raise AttributeError(f"'ReplicateConfig' object has no attribute {name!r}")
        object.__setattr__(self, name, _FIELDS[name][1](value))

    def __str__(self) -> str:
        ttl = "default" if self.soft_pin_ttl_ms is None else self.soft_pin_ttl_ms
        return (
            f"ReplicateConfig: {{ replica_num: {self.replica_num}, nof_replica_num: {self.nof_replica_num}, "
            f"dfs_replica_num: {self.dfs_replica_num}, soft_pin_action: {self.soft_pin_action.name}, "
            f"soft_pin_ttl_ms: {ttl}, with_hard_pin: {int(self.with_hard_pin)}, "
            f"preferred_segments: {_listed(self.preferred_segments)}, "
            f"preferred_nof_segments: {_listed(self.preferred_nof_segments)}, "
            f"prefer_alloc_in_same_node: {int(self.prefer_alloc_in_same_node)}, data_type: {self.data_type.name} }}"
        )


def _listed(names: list[str]) -> str:
    return f"[{', '.join(names)}]"

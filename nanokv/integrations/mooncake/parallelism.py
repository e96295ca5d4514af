"""What a program says about the layout of tensors: `ParallelAxis`, `TensorParallelism`, `ReadTarget`.

As in the real store, setting `axes` or `parallelism` keeps a copy of what was given; what is read is that copy.
"""

import copy

from nanokv.integrations.mooncake.parallelism_layout import text_given
from nanokv.integrations.mooncake.tensor_values import int32

_MODES = ("as_stored", "shard", "full")


def _text(name: str, given: object) -> str:
    try:
        return text_given(given)
    except RuntimeError:
        raise TypeError(f"incompatible function arguments: {name} must be a str, not {given!r}") from None


def _optional(name: str, given: object) -> int | None:
    return None if given is None else int32(name, given)


_CHECKS = {
    "kind": _text,
    "rank": int32,
    "size": int32,
    "split_dim": _optional,
    "expert_id": _optional,
    "stage_id": _optional,
}


class ParallelAxis:
    """One axis of a layout: `kind` is "dp", "tp", "ep" or "pp".

    "tp" needs `split_dim`, "ep" `expert_id` and "pp" `stage_id`. Setting a field raises TypeError for a value of
    another type, and AttributeError if there is no such field.
    """

    __slots__ = tuple(_CHECKS)

    kind: str
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None

    def __init__(self) -> None:
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim = self.expert_id = self.stage_id = None

    def __setattr__(self, name: str, value: object) -> None:
        check = _CHECKS.get(name)
        object.__setattr__(self, name, value if check is None else check(name, value))


class TensorParallelism:
    """A layout: its axes, of different kinds, at most four."""

    __slots__ = ("_axes",)

    def __init__(self) -> None:
        self._axes: list[ParallelAxis] = []

    @property
    def axes(self) -> list[ParallelAxis]:
        """A list of the axes. Appending to it changes nothing here: set `axes`."""
        return list(self._axes)

    @axes.setter
    def axes(self, given: list[ParallelAxis]) -> None:
        if not isinstance(given, list | tuple) or not all(isinstance(axis, ParallelAxis) for axis in given):
            raise TypeError(f"incompatible function arguments: axes must be a list of ParallelAxis, not {given!r}")
        self._axes = [copy.copy(axis) for axis in given]


class ReadTarget:
    """What to read: "as_stored" the object of the key, "shard" one shard, "full" the whole of all shards."""

    __slots__ = ("_mode", "_parallelism")

    def __init__(self) -> None:
        self._mode = _MODES[0]
        self._parallelism: TensorParallelism | None = None

    @property
    def mode(self) -> str:
        """One of the three, in lower case. Raises RuntimeError for another one."""
        return self._mode

    @mode.setter
    def mode(self, given: str) -> None:
        mode = _text("mode", given).lower()
        if mode not in _MODES:
            raise RuntimeError("Unsupported ReadTarget mode")
        self._mode = mode

    @property
    def parallelism(self) -> TensorParallelism | None:
        """The layout to read in."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, given: TensorParallelism | None) -> None:
        if given is not None and not isinstance(given, TensorParallelism):
            raise TypeError(f"incompatible function arguments: parallelism must be a TensorParallelism, not {given!r}")
        self._parallelism = copy.deepcopy(given)

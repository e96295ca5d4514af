"""What programs say about layouts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanokv.integrations.mooncake.parallelism import ParallelAxis, ReadTarget, TensorParallelism
from nanokv.integrations.mooncake.tensor_bytes import HEADER_BYTES, Header, parsed
from tests.integrations.mooncake.test_tensor_store import (
    NAME,
    Store,
    surface,
)

WHOLE = torch.arange(48, dtype=torch.float32).reshape(8, 6)


def axis(kind: str, rank: int, size: int, split_dim: int | None = None, **ids: int) -> ParallelAxis:
    made = ParallelAxis()
    made.kind, made.rank, made.size, made.split_dim = kind, rank, size, split_dim
    for name, value in ids.items():
        setattr(made, name, value)
    return made


def layout(*axes: ParallelAxis) -> TensorParallelism:
    made = TensorParallelism()
    made.axes = list(axes)
    return made


def tp(rank: int, size: int, split_dim: int = 0) -> TensorParallelism:
    return layout(axis("tp", rank, size, split_dim))


def target(mode: str, parallelism: TensorParallelism | None = None) -> ReadTarget:
    made = ReadTarget()
    made.mode, made.parallelism = mode, parallelism
    return made


def part(rank: Any, size: Any, split_dim: Any) -> SimpleNamespace:
    return SimpleNamespace(rank=rank, size=size, split_dim=split_dim)


def header_of(store: Store, key: str) -> Header:
    found = parsed(store.get(key)[:HEADER_BYTES], store.get_size(key))
    assert found is not None, key
    return found


def keys(store: Store) -> list[str]:
    objects = store.client.objects
    assert objects is not None
    return sorted(map(bytes.decode, objects.keys()))


# --- what programs say ---
@surface(NAME, "ParallelAxis")
def test_an_axis_has_fields_of_fixed_types() -> None:
    made = ParallelAxis()
    assert (made.kind, made.rank, made.size, made.split_dim, made.expert_id, made.stage_id) == ("", 0, 1) + (None,) * 3
    wrong: list[tuple[str, object]] = [
        ("kind", 3),
        ("rank", 1.5),
        ("rank", None),
        ("size", 1 << 40),
        ("split_dim", "0"),
    ]
    for name, value in wrong:
        with pytest.raises(TypeError):
            setattr(made, name, value)
    with pytest.raises(AttributeError):
        made.other = 1
    made.kind, made.rank, made.split_dim, made.split_dim = "TP", True, 1, None
    assert (made.kind, made.rank, made.split_dim) == ("TP", 1, None) and type(made.rank) is int


@surface(NAME, "TensorParallelism")
def test_a_layout_keeps_copies_of_its_axes() -> None:
    own, made = axis("tp", 0, 2, 0), TensorParallelism()
    made.axes.append(own)
    assert made.axes == []
    made.axes = [own]
    own.rank = 1
    assert made.axes[0].rank == 0
    made.axes[0].rank = 1  # an axis of it can be changed
    assert made.axes[0].rank == 1
    for wrong in ([1], None, own):
        with pytest.raises(TypeError):
            made.axes = wrong  # type: ignore[assignment]


@surface(NAME, "ReadTarget")
def test_a_target_has_a_mode_and_a_layout() -> None:
    made = ReadTarget()
    assert (made.mode, made.parallelism) == ("as_stored", None)
    made.mode, made.parallelism = "SHARD", tp(0, 2)
    assert made.mode == "shard" and made.parallelism is made.parallelism
    with pytest.raises(RuntimeError, match="Unsupported"):
        made.mode = "half"
    with pytest.raises(TypeError):
        made.mode = 3  # type: ignore[assignment]
    with pytest.raises(TypeError):
        made.parallelism = [axis("tp", 0, 2, 0)]  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        made.other = 1  # type: ignore[attr-defined]

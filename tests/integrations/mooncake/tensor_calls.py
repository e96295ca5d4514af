"""Random calls of `mooncake.store` about tensors, and the answer of each: see `program`.

The calls leave out what differs on purpose: docs/mooncake.md has that.
"""

import ctypes
import hashlib
import random
from types import SimpleNamespace
from typing import Any

import mooncake.store
import torch

from tests.integrations.mooncake.program import run

SLOT = 8192
#: each key has tensors of one shape and dtype: of shards of several dtypes the real store joins garbage
KEYS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "vector": ((12,), torch.int16),
    "matrix": ((8, 6), torch.float32),
    "cube": ((4, 6, 8), torch.bfloat16),
    "bytes": ((12, 12), torch.float8_e5m2),
    "nothing": ((4, 0, 6), torch.float64),
}
Call = tuple[str, list[Any]]


class Calls:
    """Makes calls from a generator of random numbers, and does them."""

    def __init__(self, seed: int, store: Any) -> None:
        self._random, self._store = random.Random(seed), store
        self._memory = (ctypes.c_ubyte * (SLOT * (len(KEYS) + 2)))()
        self._base = ctypes.addressof(self._memory)
        assert store.register_buffer(self._base, len(self._memory)) == 0
        for slot, key in enumerate(KEYS):  # each key's tensor lies in memory, for the calls that take it from there
            header, data, nbytes, owner = mooncake.store._serialize_tensor(self._tensor(key))
            ctypes.memmove(self._base + slot * SLOT, header, len(header))
            ctypes.memmove(self._base + slot * SLOT + len(header), data, nbytes)
            del owner
        self._next: list[Call] = []
        writes = [self._put, self._tp, self._laid_out, self._all_ranks, self._all_ranks, self._from]
        self._kinds = [*writes, *[self._get] * 4, *[self._into] * 2]

    def step(self) -> dict[str, Any]:
        """Do one call: its name, its arguments in short, its answer, and what lies then where answers go."""
        if self._random.random() < 0.04:
            return self._removal()
        name, arguments = self._next.pop() if self._next else self._random.choice(self._kinds)()
        answer = getattr(self._store, name)(*arguments)
        shown = f"{name}({', '.join(map(self._shown, arguments))})"
        memory = ctypes.string_at(self._base + len(KEYS) * SLOT, 2 * SLOT) if answer is not None else b""
        line = {"call": shown, "answer": _short(answer), "memory": hashlib.sha256(memory).hexdigest()[:12]}
        if name == "get_tensor_with_parallelism" and answer is not None:
            line["mislabelled"] = self._mislabelled(*arguments)
        return line

    def _mislabelled(self, key: str, target: Any = None) -> bool:
        axes = target.parallelism.axes if target is not None and target.parallelism is not None else []
        if target is None or target.mode != "shard" or [axis.kind for axis in axes] != ["tp"]:
            return False
        stored, axis = self._store.get(f"{key}_tp_{axes[0].rank}"), axes[0]
        label = [int.from_bytes(stored[at : at + 4], "little") for at in (16, 184, 188, 192)]
        return bool(stored) and label != [1, axis.rank, axis.size, axis.split_dim]

    def _removal(self) -> dict[str, Any]:
        key = self._random.choice(list(KEYS))
        return {"call": f"remove {key}", "answer": self._store.remove_by_regex(f"^{key}", True) >= 0}

    # --- parts of calls ---
    def _key(self) -> str:
        return self._random.choice(list(KEYS))

    def _some(self) -> list[str]:
        return self._random.sample(list(KEYS), self._random.randint(0, 3))

    def _tensor(self, key: str) -> torch.Tensor:
        shape, dtype = KEYS[key]
        raw = self._random.randbytes(torch.Size(shape).numel() * dtype.itemsize)
        return (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).view(shape)
            if raw
            else torch.empty(shape, dtype=dtype)
        )

    def _split(self) -> tuple[int, int]:
        """A number of ranks and a dimension. Not one rank: its shard lies under two names for the real store."""
        return self._random.choice((2, 2, 2, 3, 4)), self._random.choice((0, 0, 0, 1, 2))

    def _axes(self, size: int, dim: int) -> list[tuple[Any, ...]]:
        tensor_axis = ("tp", self._random.randrange(size), size, dim, None, None)
        beside = [("dp", 0, 2, None, None, None), ("ep", 1, 2, None, 3, None), ("pp", 0, 2, None, None, 7)]
        match self._random.randint(0, 5):
            case 0:
                return [self._random.choice(beside)]
            case 1:
                return self._random.sample([tensor_axis, *self._random.sample(beside, 2)], 3)
            case 2:
                return self._random.sample([tensor_axis, beside[0]], 2)
        return [tensor_axis]

    def _layout(self, axes: list[tuple[Any, ...]]) -> Any:
        made = mooncake.store.TensorParallelism()
        made.axes = [self._axis(*axis) for axis in axes]
        return made

    def _axis(self, *values: Any) -> Any:
        made = mooncake.store.ParallelAxis()
        for name, value in zip(("kind", "rank", "size", "split_dim", "expert_id", "stage_id"), values, strict=True):
            setattr(made, name, value)
        return made

    def _target(self) -> Any:
        made = mooncake.store.ReadTarget()
        made.mode = self._random.choice(("as_stored", "shard", "shard", "shard", "full", "full"))
        if self._random.random() < 0.85:
            made.parallelism = self._layout(self._axes(*self._split()))
        return made

    def _request(self) -> tuple[Any, Any]:
        """A layout and a writer's part, at most one of which is there."""
        size, dim = self._split()
        if self._random.random() < 0.3:
            return None, SimpleNamespace(rank=self._random.randrange(size), size=size, split_dim=dim)
        return self._layout(self._axes(size, dim)), None

    def _own(self, key: str, layout: Any) -> torch.Tensor:
        """What a rank stores in a layout: its shard if there is only a tensor axis; now and then the whole, wrongly."""
        tensor, axes = self._tensor(key), layout.axes if layout is not None else []
        if [axis.kind for axis in axes] == ["tp"] and self._random.random() < 0.9:
            shards = tensor.chunk(axes[0].size, min(axes[0].split_dim, tensor.ndim - 1))
            return shards[min(axes[0].rank, len(shards) - 1)]
        return tensor

    # --- calls ---
    def _put(self) -> Call:
        if self._random.random() < 0.5:
            name = self._random.choice(("put_tensor", "upsert_tensor", "pub_tensor", "upsert_pub_tensor"))
            return name, [(key := self._key()), self._random.choice((self._tensor(key), self._tensor(key), None))]
        name = self._random.choice(("batch_put_tensor", "batch_upsert_tensor", "batch_pub_tensor"))
        keys = self._some()
        return name, [keys, [self._tensor(key) for key in keys]]

    def _tp(self) -> Call:
        size, dim = self._split()
        if self._random.random() < 0.5:
            return "put_tensor_with_tp", [(key := self._key()), self._tensor(key), 0, size, dim]
        keys = self._some()
        return "batch_put_tensor_with_tp", [keys, [self._tensor(key) for key in keys], 0, size, dim]

    def _laid_out(self) -> Call:
        name = self._random.choice(("put_tensor_with_parallelism", "upsert_tensor_with_parallelism"))
        layout, part = self._request()
        config = mooncake.store.ReplicateConfig()
        if self._random.random() < 0.7:
            return name, [(key := self._key()), self._own(key, layout), layout, config, part]
        layouts = None if layout is None else [layout, None]
        keys = self._random.sample(list(KEYS), 2)
        tensors = [self._own(key, each) for key, each in zip(keys, layouts or [None] * 2, strict=True)]
        return f"batch_{name}", [keys, tensors, layouts, config, None if part is None else [part, None]]

    def _all_ranks(self) -> Call:
        """The shards of all ranks, one call after another."""
        key, (size, dim) = self._key(), self._split()
        axes = self._axes(size, dim)
        shards = self._tensor(key).chunk(size, min(dim, len(KEYS[key][0]) - 1))
        for rank, shard in enumerate(shards):
            own = [(*axis[:1], rank, *axis[2:]) if axis[0] == "tp" else axis for axis in axes]
            tensor = shard if len(own) == 1 else self._tensor(key)
            arguments = [key, tensor, self._layout(own), mooncake.store.ReplicateConfig(), None]
            self._next.append(("upsert_tensor_with_parallelism", arguments))
        return self._next.pop()

    def _from(self) -> Call:
        slot, key = self._random.choice(list(enumerate(KEYS)))
        shape, dtype = KEYS[key]
        nbytes = 304 + torch.Size(shape).numel() * dtype.itemsize
        memory = [key, self._base + slot * SLOT, nbytes + (self._random.random() < 0.1)]
        layout, part = self._request()
        name = self._random.choice(("put_tensor", "upsert_tensor"))
        match self._random.randint(0, 3):
            case 0:
                return f"{name}_from", memory
            case 1:
                size, dim = self._split()
                return "put_tensor_with_tp_from", [*memory, 0, size, dim]
            case 2:
                return f"batch_{name}_from", [[each] for each in memory]
        return f"{name}_with_parallelism_from", [*memory, layout, mooncake.store.ReplicateConfig(), part]

    def _get(self) -> Call:
        size, _ = self._split()
        match self._random.randint(0, 7):
            case 0:
                return "get_tensor", [self._key()]
            case 1:
                return "batch_get_tensor", [self._some()]
            case 2:
                return "get_tensor_with_tp", [self._key(), self._random.randrange(size), size]
            case 3:
                return "batch_get_tensor_with_tp", [self._some(), 0, size]
        return "get_tensor_with_parallelism", [self._key(), self._target()]

    def _into(self) -> Call:
        room = self._random.choice((304, 350, SLOT, SLOT))
        place, size = self._base + len(KEYS) * SLOT, self._split()[0]
        match self._random.randint(0, 5):
            case 0:
                return "get_tensor_into", [self._key(), place, room]
            case 1:
                return "get_tensor_with_tp_into", [self._key(), place, room, 0, size]
            case 2:
                keys = self._random.sample(list(KEYS), 2)
                return "batch_get_tensor_with_parallelism_into", [
                    keys,
                    [place, place + SLOT],
                    [room, SLOT],
                    [self._target(), None],
                ]
        return "get_tensor_with_parallelism_into", [self._key(), place, room, self._target()]

    def _shown(self, value: Any) -> str:
        """An argument as it is the same in every process."""
        if isinstance(value, list):
            return f"[{', '.join(map(self._shown, value))}]"
        if isinstance(value, int) and value >= self._base:
            return f"+{value - self._base}"
        if hasattr(value, "parallelism"):
            return f"{value.mode} {self._shown(value.parallelism)}"
        if hasattr(value, "axes"):
            return "; ".join(f"{axis.kind} {axis.rank}/{axis.size} {axis.split_dim}" for axis in value.axes)
        return str(_short(value)) if not isinstance(value, mooncake.store.ReplicateConfig) else "config"


def _short(value: Any) -> Any:
    """An answer as JSON has it: a tensor as its form and a digest of its bytes."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, torch.Tensor):
        data = bytes(value.contiguous().flatten().view(torch.uint8).tolist())
        return f"{value.dtype} {list(value.shape)} {hashlib.sha256(data).hexdigest()[:12]}"
    return value if isinstance(value, int | str | None) else repr(value)


if __name__ == "__main__":
    run(Calls, 256 << 20, 64 << 20)

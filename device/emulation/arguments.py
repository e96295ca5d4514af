"""The arguments of a launch: what the parameters of a compiled kernel hold."""

import struct
from collections.abc import Iterator
from typing import Any

Grid = tuple[int, int, int]

_FLOATS = {"fp16": 2, "fp32": 4, "f32": 4, "fp64": 8}  #: bytes of Triton's kinds


def packed(value: float, size: int) -> bytes:
    """An integer modulo its width, or a float, in so many bytes."""
    if isinstance(value, float):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")


def flattened(name: str, kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """The parameters that an argument of a Triton kernel becomes: (name, tensor or bits)."""
    if isinstance(kind, tuple):
        for n, (one, part) in enumerate(zip(kind, value, strict=True)):
            yield from flattened(f"{name}[{n}]", one, part)
    elif kind == "constexpr":
        return
    elif kind == "bf16":
        yield name, int.from_bytes(packed(float(value), 4), "little") >> 16
    elif kind in _FLOATS:
        yield name, int.from_bytes(packed(float(value), _FLOATS[kind]), "little")
    else:
        yield name, 0 if value is None else value

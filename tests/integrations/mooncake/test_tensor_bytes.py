"""What a tensor is stored as: the same bytes as the real package's, and nothing else is read as a tensor."""

import ctypes
import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanokv.integrations.mooncake.parallelism import Manifest, parsed_manifest
from nanokv.integrations.mooncake.tensor_bytes import (
    DTYPES,
    HEADER_BYTES,
    Header,
    StoredAxis,
    _deserialize_tensor,
    _serialize_tensor,
    _tensor_metadata_size,
    parsed,
)
from tests.integrations.mooncake.test_tensor_store import NAME, NUMBERS, same, surface
from tests.support.needed import leave_out

SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 0, 3), (3, 4), (1, 2, 1, 2, 1, 2, 1, 2)]

#: reads dtypes and shapes, answers with what the real package stores, and with what it reads from ours
REAL = """
import ctypes, json, sys
import mooncake.store, torch
from mooncake.store import _deserialize_tensor, _serialize_tensor, _tensor_metadata_size
from tests.integrations.mooncake.test_tensor_bytes import made

assert mooncake.store.__file__.endswith(".so"), "this is not the real package"
for line in sys.stdin:
    dtype, shape, ours = json.loads(line)
    tensor = made(getattr(torch, dtype), shape)
    header, pointer, nbytes, owner = _serialize_tensor(tensor)
    read = _deserialize_tensor(bytes.fromhex(ours))
    told = [str(read.dtype), list(read.shape), bytes(read.flatten().view(torch.uint8).tolist()).hex()]
    print(json.dumps([_tensor_metadata_size(), (header + ctypes.string_at(pointer, nbytes)).hex(), told]))
"""


def made(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """A tensor whose bytes tell where they belong; for bool 0 and 1."""
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.arange(size, dtype=torch.int64).remainder(2 if dtype == torch.bool else 251).to(torch.uint8)
    return raw.view(dtype).view(shape)


def stored(tensor: torch.Tensor) -> bytes:
    header, address, nbytes, owner = _serialize_tensor(tensor)
    assert owner.data_ptr() == address
    return header + ctypes.string_at(address, nbytes)


@surface(NAME, "_serialize_tensor")
@surface(NAME, "_deserialize_tensor")
@surface(NAME, "_tensor_metadata_size")
def test_both_packages_store_the_same_bytes_and_read_each_others() -> None:
    if importlib.util.find_spec("mooncake") is None:
        leave_out("mooncake", "mooncake-transfer-engine-non-cuda is not installed")
    cases = [(dtype, shape) for dtype in DTYPES for shape in SHAPES]
    lines = [[str(dtype).split(".")[1], shape, stored(made(dtype, list(shape))).hex()] for dtype, shape in cases]
    run = subprocess.run(
        [sys.executable, "-c", REAL],
        input="\n".join(map(json.dumps, lines)),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    if "cannot open shared object file" in run.stderr:
        leave_out("mooncake", run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(cases)
    for (dtype, shape), (size, theirs, told) in zip(cases, answers, strict=True):
        tensor = made(dtype, list(shape))
        assert size == _tensor_metadata_size() == HEADER_BYTES
        assert theirs == stored(tensor).hex()
        read = _deserialize_tensor(bytes.fromhex(theirs))
        ours = [str(read.dtype), list(read.shape), bytes(read.flatten().view(torch.uint8).tolist()).hex()]
        assert told == ours and same(read, tensor.reshape(shape or (1,)))


@surface(NAME, "_serialize_tensor")
@surface(NAME, "_deserialize_tensor")
def test_a_tensor_with_gaps_is_stored_whole() -> None:
    assert same(_deserialize_tensor(stored(NUMBERS.t())), NUMBERS.t())


@surface(NAME, "_serialize_tensor")
def test_what_cannot_be_stored_is_a_value_error() -> None:
    for given in (None, [1], torch.zeros(2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="unsupported tensor"):
            _serialize_tensor(given)


@surface(NAME, "_deserialize_tensor")
def test_what_is_no_tensor_is_a_value_error() -> None:
    good = stored(NUMBERS)
    for value in (b"", b"abc", good[:-1], good + b"x", b"x" * len(good)):
        with pytest.raises(ValueError, match="invalid serialized"):
            _deserialize_tensor(value)
    with pytest.raises(TypeError):
        _deserialize_tensor(bytearray(good))  # type: ignore[arg-type]


# --- what a header may be ---
AXIS = StoredAxis(1, 1, 2, 0, 0, 4)
SHARD = Header(torch.float32, (4, 6), (8, 6), (AXIS, StoredAxis(0, 0, 2, -1, 0, 0)), is_shard=True)


def test_a_header_is_read_as_it_was_packed() -> None:
    for header in (SHARD, Header(torch.bool, (), ()), Header(torch.int8, (0,) * 8, (0,) * 8)):
        packed = header.packed()
        assert len(packed) == HEADER_BYTES
        assert parsed(packed + b"whatever", HEADER_BYTES + header.data_bytes) == header


#: where in a header a field is, its format, and values that cannot be
WRONG: list[tuple[int, str, list[int]]] = [
    (0, "I", [0, 0x4E4F4F4D]),  # magic
    (4, "H", [0, 2]),  # version
    (6, "H", [303, 305]),  # size of the header
    (8, "i", [-1, 15, 4, 1]),  # dtype: none, none, of another size, of another size
    (12, "i", [-1, 1, 3, 9]),  # dimensions
    (16, "I", [2]),  # layout
    (24, "Q", [0, 303, 305, 1 << 63]),  # where the data begins
    (32, "Q", [0, 95, 97]),  # bytes of the data
    (40, "q", [-1]),  # shape of the whole
    (56, "q", [0, 1]),  # behind its last dimension
    (104, "q", [-1, 3, 5, 1 << 62]),  # shape of what is stored
    (120, "q", [0]),  # behind its last dimension
    (168, "I", [5]),  # axes
    (176, "i", [-1, 5]),  # kind
    (184, "i", [-1, 2]),  # rank
    (188, "i", [0, 1, -1]),  # size
    (192, "i", [-2, 2]),  # dimension
]


@pytest.mark.parametrize(("at", "kind", "values"), WRONG)
def test_a_header_with_a_wrong_field_is_none(at: int, kind: str, values: list[int]) -> None:
    for value in values:
        packed = bytearray(SHARD.packed())
        struct.pack_into(f"<{kind}", packed, at, value)
        assert parsed(bytes(packed), HEADER_BYTES + SHARD.data_bytes) is None
    assert parsed(SHARD.packed()[:-1], HEADER_BYTES + SHARD.data_bytes) is None


def test_data_may_begin_later() -> None:
    packed = bytearray(Header(torch.int16, (2,), (2,)).packed())
    struct.pack_into("<Q", packed, 24, 307)
    assert same(_deserialize_tensor(bytes(packed) + b"gap" + b"\1\0\2\0"), torch.tensor([1, 2], dtype=torch.int16))


# --- manifests ---
MANIFEST = Manifest(torch.bfloat16, (8, 6), 1, 3)


def test_a_manifest_is_read_as_it_was_packed() -> None:
    assert parsed_manifest(MANIFEST.packed() + b"more") == MANIFEST


@pytest.mark.parametrize(
    ("at", "kind", "values"),
    [
        (0, "I", [0]),
        (4, "H", [0, 2]),
        (6, "H", [95]),
        (8, "i", [-1, 15]),
        (12, "i", [-1, 1, 3, 9]),
        (16, "i", [-1, 2]),
        (20, "i", [0, -1]),
        (32, "q", [-1]),
        (48, "q", [0]),
    ],
)
def test_a_manifest_with_a_wrong_field_is_none(at: int, kind: str, values: list[int]) -> None:
    for value in values:
        packed = bytearray(MANIFEST.packed())
        struct.pack_into(f"<{kind}", packed, at, value)
        assert parsed_manifest(bytes(packed)) is None
    assert parsed_manifest(MANIFEST.packed()[:-1]) is None

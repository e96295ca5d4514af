"""Names, signatures and fields that users rely on. A change here is a change of the API."""

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nanokv
from nanokv import errors
from nanokv.transfer.object_calls import NO_DEFAULT

PUBLIC = [
    "Digests",
    "Event",
    "EventKind",
    "Hold",
    "Identity",
    "KVLayout",
    "Key",
    "KeyDigest",
    "NanoKVCache",
    "NanoKVCluster",
    "NanoKVError",
    "ObjMeta",
    "WritePlan",
    "join_local_world",
    "local_world",
]
MODULES = ["config", "device", "errors", "statistics", "types"]

EMPTY = inspect.Parameter.empty

# the methods of the specification: positional parameters, keyword-only parameters, each with its default
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "put": (
        {"key": EMPTY, "tensor": EMPTY},
        {"preferred_segment": None, "exist_ok": False, "hold": None, "timeout": 0.0, "replicas": 0},
    ),
    "get": ({"key": EMPTY, "default": NO_DEFAULT}, {"dst": None, "reinterpret": False}),
    "get_part": ({"key": EMPTY, "offset": EMPTY, "nbytes": EMPTY}, {"dst": None}),
    "remove": ({"key": EMPTY}, {}),
    "open_for_write": ({"key": EMPTY, "bytes_total": EMPTY}, {"preferred_segment": None, "hold": None, "timeout": 0.0}),
    "commit": ({"key": EMPTY}, {}),
    "get_location": ({"key": EMPTY}, {"timeout": 0.0}),
    "stats": ({}, {}),
    "evict_until_below": ({"usage_ratio": EMPTY}, {}),
    "device_ptr": ({"rank": EMPTY, "offset": EMPTY}, {}),
    # methods beyond the specification
    "symmetric_ptr": ({"rank": EMPTY, "offset": EMPTY}, {}),
    "remote_ptr": ({"rank": EMPTY, "offset": EMPTY}, {}),
    "exists": ({"key": EMPTY}, {}),
    "abort": ({"key": EMPTY}, {}),
    "pin": ({"key": EMPTY}, {"timeout": 0.0}),
    "put_many": (
        {"keys": EMPTY, "tensors": EMPTY},
        {"preferred_segment": None, "hold": None, "timeout": 0.0, "replicas": 0},
    ),
    "replicate": ({"key": EMPTY, "rank": None}, {}),
    "copies": ({"key": EMPTY}, {}),
    "get_many": ({"keys": EMPTY}, {"dsts": None, "reinterpret": False}),
    "exists_many": ({"keys": EMPTY}, {}),
    "hold": ({"keys": EMPTY, "hold": EMPTY}, {}),
    "generation": ({}, {}),
    "advance_generation": ({}, {}),
    "make_room": ({"rank": EMPTY, "nbytes": EMPTY}, {}),
    "drop_group": ({"group": EMPTY}, {}),
    "paged_kv": ({"layers": EMPTY}, {"kv_dim": EMPTY}),
    "cache_writer": ({"layers": EMPTY}, {"kv_cache_dtype": "auto", "capacity": 1024}),
    "prefix_length": ({"keys": EMPTY}, {}),
    "remove_many": ({"keys": EMPTY}, {}),
    "put_async": (
        {"key": EMPTY, "tensor": EMPTY},
        {"preferred_segment": None, "exist_ok": False, "hold": None, "timeout": 0.0, "replicas": 0},
    ),
    "get_async": ({"key": EMPTY}, {"dst": None, "reinterpret": False}),
    "wait": ({"keys": EMPTY}, {"timeout": EMPTY}),
    "flush": ({}, {"timeout": 10.0}),
    "digest": ({"key": EMPTY}, {}),
    "digests": ({"keys": EMPTY}, {}),
    "layouts": ({"rank": None}, {}),
    "segment_keys": ({}, {}),
    "segment_count": ({}, {}),
    "alive": ({"rank": EMPTY}, {}),
    "members": ({}, {}),
    "leave": ({"keys": "move"}, {"timeout": 60.0}),
    "adopt": ({"rank": EMPTY, "keys": "move"}, {"timeout": 60.0}),
    "subscribe": ({"listener": EMPTY}, {}),
    "clear": ({}, {}),
    "save": ({"path": EMPTY}, {}),
    "load": ({"path": EMPTY}, {"preferred_segment": None}),
    "close": ({}, {}),
}

PROPERTIES = ["rank", "world_size", "alloc", "device", "heap_bases_tensor", "world_table", "closed"]
SPECIAL = ["__enter__", "__exit__", "__contains__", "__bool__", "__repr__", "__reduce__"]

META = [
    "key_hash",
    "owner_rank",
    "header_off",
    "payload_off",
    "bytes_total",
    "page_bytes",
    "n_pages",
    "epoch",
    "key_check",
]
PLAN = [
    "key_hash",
    "dst_rank",
    "header_off",
    "payload_base",
    "page_bytes",
    "n_pages",
    "bytes_total",
    "epoch",
    "key_check",
]

ERRORS = {
    "InvalidArgument": ValueError,
    "ReuseViolation": errors.NanoKVError,
    "KeyNotFound": KeyError,
    "DuplicateKey": errors.NanoKVError,
    "NotReady": errors.NanoKVError,
    "WaitTimeout": TimeoutError,
    "ObjectPinned": errors.NanoKVError,
    "OutOfMemory": MemoryError,
    "Cancelled": errors.NanoKVError,
    "WriteLost": errors.NanoKVError,
    "SegmentCorrupt": errors.NanoKVError,
    "CacheClosed": errors.NanoKVError,
    "Forked": errors.NanoKVError,
    "RankTaken": errors.HeapUnavailable,
    "ClusterUnavailable": ConnectionError,
    "LinkUnavailable": errors.NanoKVError,
    "FileUnusable": OSError,
    "HeapUnavailable": errors.NanoKVError,
    "PeerLost": ConnectionError,
}


def parameters(function: Any, kind: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.kind is kind and p.name != "self"}


def test_the_names_of_the_package() -> None:
    assert nanokv.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(nanokv, name) is not None
    with pytest.raises(AttributeError, match="'nothing'"):
        nanokv.nothing  # noqa: B018
    assert nanokv.__version__.count(".") == 2
    assert [name for name in dir(nanokv) if not name.startswith("_")] == sorted(PUBLIC + MODULES)
    assert {"__version__", "__doc__"} <= set(dir(nanokv))


def run(*command: str) -> str:
    """The output of a Python of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(nanokv.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_modules_of_the_package_need_no_import_of_their_own() -> None:
    for name in MODULES:
        assert run("-c", f"import nanokv; print(nanokv.{name}.__name__)") == f"nanokv.{name}\n"
    assert run("-c", "import sys, nanokv; nanokv.errors, nanokv.types; print('torch' in sys.modules)") == "False\n"


def test_the_package_is_the_command() -> None:
    assert "doctor" in run("-m", "nanokv", "--help")


@pytest.mark.parametrize("name", METHODS)
def test_signatures(name: str) -> None:
    method = getattr(nanokv.NanoKVCache, name)
    positional, keyword = METHODS[name]
    assert parameters(method, inspect.Parameter.POSITIONAL_OR_KEYWORD) == positional
    assert parameters(method, inspect.Parameter.KEYWORD_ONLY) == keyword


def test_the_constructor() -> None:
    make = nanokv.NanoKVCache.__init__
    positional = parameters(make, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert positional == {"heap_bytes": EMPTY, "master_rank": 0, "page_bytes": 256 * 1024}
    assert list(positional) == ["heap_bytes", "master_rank", "page_bytes"]
    assert parameters(make, inspect.Parameter.KEYWORD_ONLY) == {"name": None, "rank": None, "world_size": None}
    assert list(parameters(make, inspect.Parameter.VAR_KEYWORD)) == ["options"]


#: for the project itself: caches on heaps that are there, and the end in a child of a fork
INNER = {"on_heap", "disown"}


def test_nothing_else_is_public() -> None:
    public = {name for name in dir(nanokv.NanoKVCache) if not name.startswith("_")}
    assert public == {*METHODS, *PROPERTIES, *INNER}
    for name in PROPERTIES:
        assert isinstance(inspect.getattr_static(nanokv.NanoKVCache, name), property)
    assert set(SPECIAL) <= set(dir(nanokv.NanoKVCache))


def test_every_public_method_says_what_it_does() -> None:
    for name in [*METHODS, *PROPERTIES]:
        assert inspect.getdoc(getattr(nanokv.NanoKVCache, name)), name


@pytest.mark.parametrize("kind, names", [(nanokv.ObjMeta, META), (nanokv.WritePlan, PLAN)])
def test_the_records_are_the_specifications(kind: Any, names: list[str]) -> None:
    assert [field.name for field in dataclasses.fields(kind)] == names
    assert {field.type for field in dataclasses.fields(kind)} == {int}
    record = kind(*range(len(names)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.epoch = 9


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.NanoKVError) and issubclass(error, ERRORS[name])
    assert str(error("what went wrong")) == "what went wrong"
    assert name in (errors.__doc__ or "")


def test_all_errors_are_listed() -> None:
    found = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert found == {*ERRORS, "NanoKVError"}
    assert nanokv.NanoKVError is errors.NanoKVError

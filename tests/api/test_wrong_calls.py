"""Every error is a NanoKVError: each argument of each public call, with values of every kind."""

import copy
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nanokv
from nanokv.config import LocalOptions, Options
from nanokv.errors import InvalidArgument, NanoKVError, WaitTimeout
from nanokv.transfer.pinned import Pinned
from tests.api.test_public_api import METHODS
from tests.support.worlds import MakeWorld

PAGE = 4096
#: no good value for most arguments; those that are good for one are tried there as well
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    0.85,
    math.nan,
    math.inf,
    10**400,
    "0",
    "",
    b"k",
    [],
    [1],
    [None],
    (0, 1),
    {},
    {1: 2},
    object(),
    len,
    np.int64(1),
    np.float32(0.5),
    np.zeros(2),
    np.array([1, 2]),
    torch.ones(2),
    torch.tensor(1),
    torch.ones(2, device="meta"),
    [torch.ones(3)],
    nanokv.KeyDigest(1, 2),
)

TENSOR = torch.ones(3)
GOOD: dict[str, Any] = {
    "key": "k",
    "keys": ["k"],
    "tensor": TENSOR,
    "tensors": [TENSOR],
    "dst": TENSOR,
    "dsts": [TENSOR],
    "reinterpret": False,
    "preferred_segment": 0,
    "exist_ok": False,
    "hold": 1.0,
    "group": "g",
    "kv_cache_dtype": "auto",
    "capacity": 8,
    "default": None,
    "bytes_total": 8,
    "nbytes": 12,
    "timeout": 0.0,
    "replicas": 0,
    "usage_ratio": 1.0,
    "rank": 0,
    "offset": 0,
    "listener": len,
    "layers": [torch.zeros(4, 2, 8, 2, 16)],
    "kv_dim": 1,
    "path": "saved",
}
CONSTRUCTOR = {"master_rank": 0, "page_bytes": PAGE, "name": None, "rank": 0, "world_size": 1}
DEFAULTS = {name: getattr(Options(), name) for name in Options.__dataclass_fields__}


def only_nanokv_errors(call: Callable[[], Any]) -> Any:
    """The result of a call that may be refused, or None."""
    with suppress(NanoKVError):
        return call()
    return None


@pytest.fixture
def cache(new_world: MakeWorld) -> Iterator[nanokv.NanoKVCache]:
    yield new_world(heap="local", alloc="device", n=1, heap_bytes=64 * PAGE, page_bytes=PAGE)[0]


@pytest.mark.parametrize("name", sorted({*METHODS} - {"close", "put_async", "get_async", "abort", "commit"}))
def test_each_argument_of_each_method(
    cache: nanokv.NanoKVCache, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some values are good names of files
    positional, keyword = METHODS[name]
    names = [*positional, *keyword]
    for wrong, value in product(names, VALUES):
        if not cache.exists("k"):
            cache.put("k", TENSOR)
        given = {each: GOOD[each] for each in names} | {wrong: value}
        result = only_nanokv_errors(lambda given=given: getattr(cache, name)(**given))  # type: ignore[misc]
        if isinstance(result, Pinned):
            result.release()
        for key in [each for each in (*VALUES, "k") if isinstance(each, str | bytes | nanokv.KeyDigest)]:
            with suppress(NanoKVError):
                cache.abort(key)
        cache.clear()


@pytest.mark.parametrize("name", ["put", "get"])
def test_each_argument_about_blocks(cache: nanokv.NanoKVCache, name: str) -> None:
    paged = cache.paged_kv(GOOD["layers"], kv_dim=1)
    good = {"keys": ["k"], "blocks": [1], "layers": None} | (
        {"preferred_segment": 0, "hold": 1.0} if name == "put" else {"held": None, "source": None}
    )
    for wrong, value in product(good, VALUES):
        given = good | {wrong: value}
        only_nanokv_errors(lambda given=given: getattr(paged, name)(**given))  # type: ignore[misc]
        cache.clear()


@pytest.mark.parametrize("wrong", ["heap_bytes", *CONSTRUCTOR, *DEFAULTS])
def test_each_argument_of_the_constructor(wrong: str, shm_name: str) -> None:
    good = {"heap_bytes": 64 * PAGE, **CONSTRUCTOR, **DEFAULTS, "attach_timeout": 0.01}
    for value in VALUES:
        given = good | {wrong: value}
        made = only_nanokv_errors(lambda given=given: nanokv.NanoKVCache(**given))  # type: ignore[misc]
        if made is not None:
            made.close()


@pytest.mark.parametrize(
    "wrong", ["n", "heap_bytes", "master_rank", "page_bytes", "device", "ranks", *LocalOptions.__annotations__]
)
def test_each_argument_of_local_world(wrong: str) -> None:
    good = {"n": 2, "heap_bytes": 64 * PAGE, "page_bytes": PAGE}
    for value in VALUES:
        given = good | {wrong: value}
        for cache in only_nanokv_errors(lambda given=given: nanokv.local_world(**given)) or ():  # type: ignore[misc]
            cache.close()


WRONG_OPTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"rank": "0"}, "rank must be 0 to 0, not '0'"),
    ({"rank": True}, "rank must be 0 to 0, not True"),
    ({"world_size": 0}, "world_size must be an integer of at least 1, not 0"),
    ({"name": ""}, "name must be a non-empty str"),
    ({"size_classes": 3}, "size_classes must be a sequence, not 3"),
    ({"size_classes": [1, "2"]}, "a size class must be .* not '2'"),
    ({"water": 0.85}, "water must be"),
    ({"water": (0.85, 0.95)}, "water must be .* integers"),
    ({"heap_options": "cpu"}, "heap_options must be a dict"),
    ({"heap_options": {"bogus": 1}}, "heap_options of heap='local': .*bogus"),
    ({"evict": "no"}, "evict must be True or False, not 'no'"),
    ({"checksum": 1}, "checksum must be True or False, not 1"),
    ({"elastic": 1}, "elastic must be True or False, not 1"),
    ({"elastic": True, "alloc": "host"}, "elastic=True needs alloc='device'"),
    ({"namespace": 3}, "namespace must be a str"),
    ({"max_objects": "many"}, "max_objects must be an integer of at least 1, not 'many'"),
    ({"write_timeout": "5"}, "write_timeout must be a number, not '5'"),
    ({"rpc_timeout": math.nan}, "rpc_timeout must be a number, not nan"),
    ({"attach_timeout": 0}, "attach_timeout must be positive seconds"),
    ({"alloc": ["host"]}, "alloc must be one of"),
    ({"evcit": False}, "no option 'evcit'; the options are alloc, .*evict"),
)


@pytest.mark.parametrize("options, why", WRONG_OPTIONS, ids=lambda value: str(value)[:40])
def test_wrong_options(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        nanokv.NanoKVCache(64 * PAGE, page_bytes=PAGE, **options)


def test_a_local_world_has_no_options_about_other_heaps() -> None:
    wrong: dict[str, Any] = dict.fromkeys(("heap", "heap_options", "on_stale", "attach_timeout", "name"))
    for name, value in wrong.items():
        with pytest.raises(InvalidArgument, match=f"local_world has no option '{name}'"):
            nanokv.local_world(1, 64 * PAGE, page_bytes=PAGE, **{name: value})


def test_wrong_arguments_are_named(cache: nanokv.NanoKVCache) -> None:
    calls: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: cache.wait(5, timeout=1), "keys must be a sequence, not 5"),  # type: ignore[arg-type]
        (lambda: cache.wait("k", timeout="1"), "timeout must be a number, not '1'"),  # type: ignore[arg-type]
        (lambda: cache.exists_many("abc"), "keys must be a sequence, not 'abc'"),
        (lambda: cache.remove_many("abc"), "keys must be a sequence"),
        (lambda: cache.flush(timeout=math.nan), "timeout must be a number, not nan"),
        (lambda: cache.put("k", TENSOR, timeout=math.nan), "timeout must be a number, not nan"),
        (lambda: cache.paged_kv([1], kv_dim=1), "layers must be tensors, not int"),  # type: ignore[list-item]
        (lambda: cache.paged_kv(GOOD["layers"], kv_dim="1"), "kv_dim must be"),  # type: ignore[arg-type]
        (lambda: cache.cache_writer(GOOD["layers"]), "a layer must be a pair"),
        (lambda: cache.cache_writer([(TENSOR, TENSOR)]), "caches must have the shapes"),
        (lambda: cache.subscribe(3), "listener must be a function"),  # type: ignore[arg-type]
        (lambda: cache.evict_until_below("0.5"), "usage_ratio must be a number"),  # type: ignore[arg-type]
        (lambda: cache.remote_ptr("0", 0), "rank must be 0 to 0, not '0'"),  # type: ignore[arg-type]
        (lambda: cache.symmetric_ptr(0, 1.0), "offset must be 0 to .* not 1.0"),  # type: ignore[arg-type]
        (lambda: cache.put("k", TENSOR, preferred_segment=False), "preferred_segment must be 0 to 0, not False"),
    )
    for call, why in calls:
        with pytest.raises(InvalidArgument, match=why):
            call()


@pytest.mark.parametrize(
    "words", [(1 << 63, 0), (0, 1 << 63), (-(1 << 63) - 1, 0), (True, 0), (0.0, 0), ("0", 0), (None, 0)]
)
def test_a_digest_is_of_two_signed_words(cache: nanokv.NanoKVCache, words: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidArgument, match="two signed 64-bit integers"):
        cache.exists(nanokv.KeyDigest(*words))


def test_integers_of_numpy_are_integers(new_world: MakeWorld) -> None:
    one = np.int64(1)
    world = nanokv.local_world(np.int32(2), np.int64(64 * PAGE), page_bytes=np.uint32(PAGE), max_objects=np.int16(9))  # type: ignore[arg-type]
    world[0].put("k", TENSOR, preferred_segment=one)  # type: ignore[arg-type]
    assert world[0].get_location("k").owner_rank == 1
    assert world[0].remote_ptr(one, one) == world[0].remote_ptr(1, 1)  # type: ignore[arg-type]
    assert torch.equal(world[1].get(nanokv.KeyDigest(*map(np.int64, world[0].digest("k")))), TENSOR)  # type: ignore[arg-type]
    assert world[0].open_for_write("plan", one).bytes_total == 1  # type: ignore[arg-type]
    world[0].abort("plan")
    layers = [torch.zeros(4, 2, 8, 2, 16)]
    assert world[0].paged_kv(layers, kv_dim=one).put(["block"], torch.tensor([3])) == [None]  # type: ignore[arg-type]
    world[0].wait("k", timeout=np.float32(0.5))  # type: ignore[arg-type]
    for cache in world:
        cache.close()
    alone = nanokv.NanoKVCache(64 * PAGE, page_bytes=PAGE, rank=np.int64(0), world_size=one)  # type: ignore[arg-type]
    assert type(alone.rank) is int
    alone.close()


def test_waits_without_limit(cache: nanokv.NanoKVCache) -> None:
    handle = cache.put_async("k", TENSOR)
    for limit in (None, math.inf, 1e300):
        cache.wait("k", timeout=limit)
    cache.flush(timeout=math.inf)
    handle.wait(10)
    with pytest.raises(WaitTimeout):
        cache.wait("none", timeout=-1)


def test_a_wrong_namespace_leaves_no_world(shm_name: str) -> None:
    """It is refused before the cache attaches: another one may have the name."""
    with pytest.raises(InvalidArgument):
        nanokv.NanoKVCache(64 * PAGE, page_bytes=PAGE, name=shm_name, namespace="a\0b")
    nanokv.NanoKVCache(32 * PAGE, page_bytes=PAGE, name=shm_name).close()


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_cache_cannot_be_copied(cache: nanokv.NanoKVCache, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidArgument, match="attach as a rank of its own"):
        copied(cache)


def test_code_that_cannot_be_stored(tmp_path: Path) -> None:
    """In a process of its own: this one has the code already."""
    (tmp_path / "file").touch()
    program = """
import nanokv, nanokv.errors
try:
    nanokv.local_world(1, 1 << 20)
except nanokv.errors.InvalidArgument as error:
    assert "NANOKV_CACHE_DIR" in str(error), error
    print("refused")
"""
    paths = {"NANOKV_CACHE_DIR": str(tmp_path / "file"), "PYTHONPATH": str(Path(nanokv.__file__).parents[1])}
    environment = os.environ | paths
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout == "refused\n", ran.stderr

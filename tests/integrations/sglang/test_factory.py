"""How SGLang makes the backend: its factory, what configuration it takes, and what is refused."""

import argparse
import json
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageFailureInjector
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.server_args import ServerArgs

from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.integrations import joining
from nanokv.integrations.sglang import NanoKVStorage, settings
from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE

Start = Callable[..., Any]


@pytest.mark.surface(INTERFACE, "__init__")
def test_the_factory_makes_it_from_a_command_line(start: Start) -> None:
    backend = start()
    assert isinstance(backend, NanoKVStorage) and isinstance(backend, HiCacheStorage)
    text = json.dumps(parts.extra(prefetch_threshold=64, hicache_storage_pass_prefix_keys=True, file_storage_path="x"))
    parsed, threshold, *_ = HybridCacheController.parse_storage_backend_extra_config(text)
    assert threshold == 64
    other = StorageBackendFactory.create_backend("dynamic", parts.config(parsed), None)
    assert other.set("a", torch.arange(3))
    found = backend.get("a")
    assert found is not None and torch.equal(found, torch.arange(3))
    other.close()


@pytest.mark.surface(INTERFACE, "__init__")
@pytest.mark.parametrize("suffix", ["json", "toml", "yaml"])
def test_settings_may_stand_in_a_file(start: Start, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"config.{suffix}"
    head = {name: value for name, value in parts.extra().items() if name != "nanokv"}
    lines = {"toml": "{} = {}\n", "yaml": "{}: {}\n"}
    if suffix == "json":
        file.write_text(json.dumps(parts.extra()), encoding="utf-8")
    else:
        top = "".join(lines[suffix].format(name, json.dumps(value)) for name, value in head.items())
        inner = parts.extra()["nanokv"].items()
        if suffix == "toml":
            nested = "[nanokv]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in inner)
        else:
            nested = "nanokv:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in inner)
        file.write_text(top + nested, encoding="utf-8")
    parsed, *_ = HybridCacheController.parse_storage_backend_extra_config(f"@{file}")
    assert parsed == parts.extra()
    backend = StorageBackendFactory.create_backend("dynamic", parts.config(parsed), None)
    assert backend.set("a", torch.arange(3))
    backend.close()


@pytest.mark.surface(INTERFACE, "__init__, wrong settings", refused="InvalidArgument")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nanokv": {"sizes": "1GiB"}}, "there is no setting 'sizes'"),
        ({"size": "1GiB"}, "'size' is a setting of NanoKV: it belongs into"),
        ({"nanokv": "1GiB"}, "must be an object of settings"),
        ({"nanokv": {"size": "much"}}, "size must be a size such as 4GiB"),
        ({"nanokv": {"node": "here"}}, "node is about a cluster"),
    ],
)
def test_wrong_settings_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        StorageBackendFactory.create_backend("dynamic", parts.config(parts.extra() | more), None)


@pytest.mark.surface(INTERFACE, "__init__, a model without a name", refused="InvalidArgument")
@pytest.mark.parametrize("name", [None, ""])
def test_a_model_without_a_name_is_refused(name: str | None) -> None:
    with pytest.raises(InvalidArgument, match="gives no name of the model"):
        parts.made(model_name=name)


@pytest.mark.surface(INTERFACE, "__init__, tp_lcm_size without interface_v1", refused="InvalidArgument")
def test_cut_heads_need_the_calls_that_cut_them() -> None:
    with pytest.raises(InvalidArgument, match="needs interface_v1"):
        parts.made(more={"interface_v1": 0}, tp_lcm_size=2, should_split_heads=True)


@pytest.mark.surface(INTERFACE, "__init__, all ranks taken", refused="HeapUnavailable")
def test_more_processes_than_ranks_are_refused(start: Start) -> None:
    for _ in range(2):
        start(settings={"ranks": 2})
    with pytest.raises(HeapUnavailable, match="all 2 ranks"):
        start(settings={"ranks": 2})


@pytest.mark.surface(INTERFACE, "register_mem_pool_host, a pool that hands out no pages", refused="InvalidArgument")
def test_a_pool_without_pages_for_storage_is_refused(start: Start) -> None:
    gone = parts.mha()
    gone.destroy()
    for pool in (parts.unified(), gone):
        with pytest.raises(InvalidArgument, match="hands out no pages"):
            start(pool)


def test_the_failure_injector_wraps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "1.0")
    backend = parts.made()
    assert isinstance(backend, HiCacheStorageFailureInjector)
    assert not backend.set("a", torch.arange(3)) and not backend.exists("a")
    backend.close()


def test_sglang_takes_the_command_line_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text(encoding="utf-8")
    command = page.split("python -m sglang.launch_server")[1].split("```")[0].replace("\\\n", " ")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    given = parser.parse_args(shlex.split(command))
    extra_config, *_ = HybridCacheController.parse_storage_backend_extra_config(
        given.hicache_storage_backend_extra_config
    )
    assert given.hicache_storage_backend == "dynamic" and given.hicache_mem_layout == "page_first"
    assert settings.parse(extra_config).size == 64 << 30 and settings.uses_zero_copy(extra_config)


def test_the_documentation_names_all_settings() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text(encoding="utf-8")
    assert all(f"`{field.name}`" in page for field in fields(joining.Settings))

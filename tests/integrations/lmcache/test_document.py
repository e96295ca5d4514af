"""The configurations of docs/lmcache.md, as they stand."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

from tests.integrations.lmcache.calls import PATIENCE, load, look_up, store
from tests.integrations.lmcache.parts import content, fill, key, memory, object_key

PAGE = Path(__file__).parents[3] / "docs" / "lmcache.md"


def block(language: str) -> str:
    """The block of a language; there is one."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_yaml_of_the_connector(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_text(block("yaml"), encoding="utf-8")
    config = LMCacheEngineConfig.from_file(str(path))
    metadata = LMCacheMetadata("m", 1, 1, 0, 0, torch.bfloat16, (4, 2, 256, 2, 64))
    backends: Any = CreateStorageBackends(config, metadata, loop, "cpu")
    try:
        remote, cpu = backends["RemoteBackend-nanokv"], backends["LocalCPUBackend"]
        assert "'kv'" in repr(remote.connection)
        chunk = cpu.allocate(metadata.get_shapes(), metadata.get_dtypes(), MemoryFormat.KV_2LTD)
        fill(chunk, 1)
        remote.submit_put_task(key(1), chunk).result(PATIENCE)
        assert content(remote.get_blocking(key(1))) == content(chunk)
    finally:
        for each in backends.values():
            each.close()


def test_the_json_of_the_adapter(adapters: Callable[..., Any]) -> None:
    adapter = adapters(json.loads(block("json")))
    assert adapter.cache.options is not None and "'kv'" in adapter.report_status()["store"]
    assert store(adapter, [object_key(1)], [memory(1)]).is_successful()
    target = memory()
    assert look_up(adapter, [object_key(1)]) == [True] and load(adapter, [object_key(1)], [target]) == [True]
    assert content(target) == content(memory(1))
    adapter.submit_unlock([object_key(1)])

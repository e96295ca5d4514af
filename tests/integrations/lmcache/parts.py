"""What LMCache brings to a connector and an adapter: its configuration, its loaders, its memory objects."""

import asyncio
import os
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

CONNECTOR = "LMCache RemoteConnector"
ADAPTER = "LMCache L2 adapter"
CHUNK = 16  #: tokens
SETTINGS = {"size": "8MiB", "page_bytes": 4096, "ranks": 5}


def name() -> str:
    """Of the world of this test process."""
    return f"nanokv-lmcache-{os.getpid()}"


class Backends:
    """LMCache's storage backends, with a connector of NanoKV among them.

    Args:
        settings: of NanoKV, beside SETTINGS.
        config: more options of LMCache.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        mine = {f"nanokv.{key}": value for key, value in (SETTINGS | {"name": name()} | (settings or {})).items()}
        plugin = {
            "remote_storage_plugin.nanokv.module_path": "nanokv.integrations.lmcache",
            "remote_storage_plugin.nanokv.class_name": "NanoKVConnector",
        }
        usual: dict[str, Any] = {
            "chunk_size": CHUNK,
            "local_cpu": False,
            "max_local_cpu_size": 0.01,
            "remote_storage_plugins": ["nanokv"],
            "remote_serde": "naive",
            "extra_config": plugin | mine | (extra or {}),
        }
        self.config = LMCacheEngineConfig.from_defaults(**(usual | config))
        given: dict[str, Any] = {
            "model_name": "org/a-model",
            "world_size": 1,
            "local_world_size": 1,
            "worker_id": 0,
            "local_worker_id": 0,
            "kv_dtype": torch.bfloat16,
            "kv_shape": (4, 2, CHUNK, 2, 64),
            "chunk_size": CHUNK,
        }
        self.metadata = LMCacheMetadata(**(given | (metadata or {})))
        self.loop = loop
        self.all = CreateStorageBackends(self.config, self.metadata, loop, "cpu")
        self.remote: Any = self.all.get("RemoteBackend-nanokv")
        self.cpu: Any = self.all["LocalCPUBackend"]

    @property
    def connector(self) -> Any:
        """The NanoKVConnector."""
        return self.remote.connection.getWrappedConnector()

    def run(self, awaitable: Any, timeout: float = 60.0) -> Any:
        """The result of a coroutine of the connector."""
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop).result(timeout)

    def close(self) -> None:
        """Close all backends."""
        for each in self.all.values():
            each.close()

    def chunk(self, seed: int = 0, *, tokens: int = CHUNK, fmt: MemoryFormat | None = None) -> Any:
        """A memory object of LMCache's allocator, with random bytes."""
        shapes = self.metadata.get_shapes(tokens)
        return self.filled(shapes, self.metadata.get_dtypes(), fmt or MemoryFormat.KV_2LTD, seed)

    def filled(self, shapes: Any, dtypes: Any, fmt: MemoryFormat, seed: int = 0) -> Any:
        """A memory object of any form, with random bytes."""
        made = self.cpu.allocate(shapes, dtypes, fmt)
        assert made is not None
        fill(made, seed)
        return made

    def used(self) -> int:
        """Bytes that LMCache's allocator has given out."""
        return int(self.cpu.memory_allocator.pin_allocator.total_allocated_size)


def fill(memory_obj: Any, seed: int) -> None:
    """Random bytes."""
    flat = memory_obj.raw_tensor[: memory_obj.get_size()]
    generator = torch.Generator().manual_seed(seed)
    flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=generator))


def content(memory_obj: Any) -> bytes:
    """The bytes of a memory object."""
    return bytes(memory_obj.byte_array)


def key(number: int, **given: Any) -> CacheEngineKey:
    """The key of a chunk."""
    usual: dict[str, Any] = {"model_name": "org/a-model", "world_size": 1, "worker_id": 0, "dtype": torch.bfloat16}
    return CacheEngineKey(chunk_hash=number, **(usual | given))


# --- adapters ---
def spec(**params: Any) -> dict[str, Any]:
    """The JSON that names the adapter."""
    return {
        "type": "plugin",
        "module_path": "nanokv.integrations.lmcache",
        "class_name": "NanoKVL2Adapter",
        "adapter_params": SETTINGS | {"name": name()} | params,
    }


def adapter(given: dict[str, Any]) -> Any:
    """An adapter, by LMCache's factory."""
    return create_l2_adapter(get_l2_adapter_config_class(given["type"]).from_dict(given), None)


def object_key(number: int, **given: Any) -> ObjectKey:
    """The key of an object."""
    usual: dict[str, Any] = {"chunk_hash": number.to_bytes(8, "big"), "model_name": "org/a-model", "kv_rank": 1 << 24}
    return ObjectKey(**(usual | given))


def memory(
    seed: int | None = None, shape: tuple[int, ...] = (2, 4, CHUNK, 128), dtype: torch.dtype = torch.bfloat16
) -> Any:
    """A memory object of no allocator; zeros, or random bytes."""
    size, nbytes = torch.Size(shape), torch.Size(shape).numel() * dtype.itemsize
    metadata = MemoryObjMetadata(size, dtype, 0, nbytes, 1, fmt=MemoryFormat.KV_2LTD, shapes=[size], dtypes=[dtype])
    made = TensorMemoryObj(torch.zeros(nbytes, dtype=torch.uint8), metadata, None)
    if seed is not None:
        fill(made, seed)
    return made

"""What SGLang brings to a backend: its factory, and its host pools, made of its own device pools on CPUs."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory

INTERFACE = "SGLang HiCacheStorage"
PAGE = 16  #: tokens
LAYERS = 3
SETTINGS = {"size": "16MiB", "page_bytes": 4096, "ranks": 5}
MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")


def extra(settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The extra config that names the backend."""
    named = {"backend_name": "nanokv", "module_path": "nanokv.integrations.sglang", "class_name": "NanoKVStorage"}
    mine = SETTINGS | {"name": f"nanokv-sglang-{os.getpid()}"} | (settings or {})
    return named | {"interface_v1": 1, "nanokv": mine} | more


def config(extra_config: dict[str, Any] | None = None, **given: Any) -> HiCacheStorageConfig:
    """What SGLang's controller makes."""
    usual: dict[str, Any] = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "org/a-model",
        "extra_config": extra() if extra_config is None else extra_config,
    }
    return HiCacheStorageConfig(**(usual | given))


def made(settings: dict[str, Any] | None = None, more: dict[str, Any] | None = None, **given: Any) -> Any:
    """A backend, by SGLang's factory."""
    return StorageBackendFactory.create_backend("dynamic", config(extra(settings, **(more or {})), **given), None)


# --- host pools ---
def unified() -> Any:
    """A host pool whose pages are only for SGLang's other kind of keys."""
    return host_of(mha_device(), "page_unified", MHATokenToKVPoolHost)


def mha(layout: str = "page_first", *, pages: int = 8, heads: int = 2, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A host pool of K and V, with random bytes."""
    device = mha_device(pages, heads=heads, dtype=dtype)
    return filled(host_of(device, layout, MHATokenToKVPoolHost))


def mha_device(pages: int = 8, *, heads: int = 2, v_dim: int = 32, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The pool of a device, here of a CPU."""
    return MHATokenToKVPool(
        size=pages * PAGE,
        page_size=PAGE,
        dtype=dtype,
        head_num=heads,
        head_dim=32,
        v_head_dim=v_dim,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )


def host_of(device: Any, layout: str, kind: Any) -> Any:
    """The host pool of a device's pool of K and V."""
    return kind(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=device.size,
        start_layer=device.start_layer,
        end_layer=device.end_layer,
    )


def asymmetric(layout: str = "page_first") -> Any:
    """A host pool whose V has fewer elements than its K."""
    return filled(host_of(mha_device(v_dim=16), layout, AsymmetricMHATokenToKVPoolHost))


def mla_device(pages: int = 8) -> Any:
    """A device's pool of latents."""
    return MLATokenToKVPool(
        size=pages * PAGE,
        page_size=PAGE,
        dtype=torch.bfloat16,
        kv_lora_rank=48,
        qk_rope_head_dim=16,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )


def mla(layout: str = "page_first", *, pages: int = 8) -> Any:
    """A host pool of latents, with random bytes."""
    device = mla_device(pages)
    return filled(
        MLATokenToKVPoolHost(
            device.get_device_pool_infos()[0].buffer_info,
            1.0,
            0,
            PAGE,
            layout,
            pin_memory=False,
            device="cpu",
            device_capacity_tokens=device.size,
            start_layer=0,
            end_layer=LAYERS,
            target_layer_num=LAYERS,
        )
    )


def mamba(layout: str = "page_first", *, side: bool = False) -> Any:
    """A host pool of states: a page is one state, in buffers of different sizes and dtypes.

    `side`: with a buffer that has no layers. Then SGLang cannot name a state's memory, and copies it.
    """
    info = MambaStateBufferInfo(
        temporal=torch.zeros(2, 8, 3, 5),
        conv=(torch.zeros(2, 8, 7, dtype=torch.bfloat16), torch.zeros(2, 8, 9, dtype=torch.bfloat16)),
        extra_checkpoint_buffers=(torch.zeros(8, 11),) if side else (),
    )
    return filled(MambaPoolHost(info, 1.0, 0, device_capacity=8, pin_memory=False, layout=layout))


def buffers(pool: Any) -> list[torch.Tensor]:
    """The memory of a pool."""
    if isinstance(pool, MambaPoolHost):
        return [pool.temporal_buffer, *pool.conv_buffer, *pool.slot_state_buffers]
    if isinstance(pool.kv_buffer, torch.Tensor):
        return [pool.kv_buffer]
    return list(pool.kv_buffer)


def filled(pool: Any, seed: int = 0) -> Any:
    """The pool, with random bytes."""
    generator = torch.Generator().manual_seed(seed)
    for each in buffers(pool):
        flat = each.view(-1).view(torch.uint8)
        flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=generator))
    return pool


def emptied(pool: Any) -> list[torch.Tensor]:
    """Set a pool's memory to zero; a copy of what it had."""
    copies = [each.clone() for each in buffers(pool)]
    for each in buffers(pool):
        each.zero_()
    return copies


def same(pool: Any, copies: Sequence[torch.Tensor]) -> bool:
    """Whether each byte is as it was."""
    return all(
        torch.equal(mine.view(-1).view(torch.uint8), theirs.view(-1).view(torch.uint8))
        for mine, theirs in zip(buffers(pool), copies, strict=True)
    )


def is_empty(pool: Any) -> bool:
    """Whether all bytes are zero."""
    return not any(each.view(-1).view(torch.uint8).any() for each in buffers(pool))


def all_of(pool: Any) -> tuple[list[str], torch.Tensor]:
    """A key for each page of a pool, and the indices of all of its tokens."""
    pages = pool.size // pool.page_size
    return keys_of(pages), torch.arange(pages * pool.page_size)


def keys_of(count: int, name: str = "") -> list[str]:
    """Keys of SGLang's kind: chained hashes of tokens."""
    from sglang.srt.mem_cache.utils import get_hash_str

    keys: list[str] = []
    for page in range(count):
        keys.append(get_hash_str([page, len(name), *name.encode()], keys[-1] if keys else None))
    return keys

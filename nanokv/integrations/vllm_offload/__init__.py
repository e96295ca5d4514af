"""vLLM's offloading over NanoKV: a secondary tier, and a spec with manager and worker (docs/vllm_offload.md).

settings, identity     what is configured, and what becomes part of every key
tier                   NanoKVTier, a `SecondaryTierManager`: rows of vLLM's primary tier
spec                   NanoKVOffloadingSpec, of `OffloadingConnector`
manager                its scheduler's side: which blocks are there, and held for a load
worker, chunks         its workers' side: copies between the engine's cache and NanoKV's pages
announcing, counts     events and metrics of both
"""

from nanokv.integrations.vllm_offload.manager import NanoKVOffloadingManager
from nanokv.integrations.vllm_offload.spec import NanoKVOffloadingSpec
from nanokv.integrations.vllm_offload.tier import NanoKVTier
from nanokv.integrations.vllm_offload.worker import NanoKVOffloadingWorker

__all__ = ["NanoKVOffloadingManager", "NanoKVOffloadingSpec", "NanoKVOffloadingWorker", "NanoKVTier"]

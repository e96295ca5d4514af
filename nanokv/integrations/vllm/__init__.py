"""vLLM's KV connector: `NanoKVConnector`, loaded out of tree by `kv_connector_module_path="nanokv.integrations.vllm"`.

connector       the class that vLLM makes, once in its scheduler and once in each worker
settings        the flags in `kv_connector_extra_config`
identity        what the engine's configuration says about the KV: model, tokenizer, tenant, layout
facts           what engines say that their KV means, so that users are told which setting differs when two engines
                share nothing
groups          which blocks of each group of layers a hit needs
hashes          the hash of a prefix, also where it ends no block
scheduler       the scheduler's side: which blocks are loaded, and which are stored
lookup          how the scheduler asks the workers which blocks are there
metadata        what the scheduler tells the workers in each step
layers          the engine's cache as objects, group by group
worker          a worker's side: attaches to the world, and loads
saving          a worker's stores
engine_write    stores by the kernel that writes the engine's cache, on a GPU
cluster         a worker as a member of a cluster
stats           what vLLM logs
flags           command lines to copy: `nanokv vllm-flags`

Tested with vLLM 0.32. The interface is vLLM's `KVConnectorBase_V1`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanokv.integrations.vllm.connector import NanoKVConnector

__all__ = ["NanoKVConnector"]


def __getattr__(name: str) -> Any:
    if name == "NanoKVConnector":  # imported late: the flags need no vLLM
        from nanokv.integrations.vllm.connector import NanoKVConnector

        return NanoKVConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""vLLM's KV connector: `NanoKVConnector`, loaded out of tree by `kv_connector_module_path="nanokv.integrations.vllm"`.

| file | what is in it |
|---|---|
| `connector.py` | the class that vLLM makes, once in its scheduler and once in each worker |
| `settings.py`, `cluster_flags.py` | the flags in `kv_connector_extra_config`, and those of them about a cluster |
| `layers.py` | the engine's cache as `PagedKV` takes it, and the layout of the objects |
| `identity.py` | what the engine's configuration says about the KV: model, tokenizer, tenant, layout |
| `scheduler.py` | the scheduler's side: which blocks are loaded, and which are stored |
| `tails.py` | the last, partly filled block of a prompt |
| `worker.py` | a worker's side: attaches to the world, loads and stores |
| `saving.py`, `loading.py` | the two halves of that |
| `reading.py` | which blocks a worker can read, also of other tensor-parallel degrees |
| `cluster.py` | a worker as a member of a cluster |
| `engine_write.py` | stores by the kernel that writes the engine's cache, on a GPU |
| `lookup.py` | how the scheduler asks the workers which blocks are there |
| `metadata.py` | what the scheduler tells the workers in each step |
| `stats.py` | what vLLM logs |
| `flags.py` | command lines to copy: `nanokv vllm-flags` |

Tested with vLLM 0.32. The interface is vLLM's `KVConnectorBase_V1`.

facts  what engines say that their KV means, so that users are told which setting differs when two engines share
       nothing
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

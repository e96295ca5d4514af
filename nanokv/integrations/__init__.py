"""NanoKV under the interfaces that users already have: a folder for each, which imports that product, or stands for it.

| module | interface |
|---|---|
| `mooncake/` | Mooncake Store: `import mooncake.store` (docs/mooncake.md) |
| `sglang/` | SGLang's HiCache storage backend (docs/sglang.md) |
| `lmcache/` | LMCache's remote connector and L2 adapter (docs/lmcache.md) |
| `vllm_offload/` | vLLM's secondary tiers and offloading managers (docs/vllm_offload.md) |

`joining.py` opens the world, or the cluster, that their settings name; `refusals.py` counts what they refuse or drop.
KVBM's block manager is `nanokv.blocks`, and CortexStream's sequences are `nanokv.sequences`: they are interfaces of our
own.
"""

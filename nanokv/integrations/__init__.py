"""NanoKV in other products, and under their interfaces: a folder each, which imports that product, or stands for it.

| module | product |
|---|---|
| `vllm/` | vLLM's KV connector (docs/vllm.md) |
| `vllm_offload/` | vLLM's secondary tiers and offloading managers (docs/vllm_offload.md) |
| `transformers/` | prefixes that `generate()` shares between processes (docs/transformers.md) |
| `sglang/` | SGLang's HiCache storage backend (docs/sglang.md) |
| `lmcache/` | LMCache's remote connector and L2 adapter (docs/lmcache.md) |
| `mooncake/` | Mooncake Store: `import mooncake.store` (docs/mooncake.md) |

`joining.py` opens the world, or the cluster, that their settings name; `refusals.py` counts what they refuse or drop.
KVBM's block manager is `nanokv.blocks`, and CortexStream's sequences are `nanokv.sequences`: they are interfaces of our
own. Nothing else imports a product.
"""

"""NanoKV inside inference engines: a folder or a file per engine, which imports that engine. Nothing else here does.

| module | engine |
|---|---|
| `vllm/` | vLLM's KV connector (docs/vllm.md) |
| `transformers/` | prefixes that `generate()` shares between processes (docs/transformers.md) |
"""

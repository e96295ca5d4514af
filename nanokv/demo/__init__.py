"""The demo: one process prefills, another decodes, and the KV travels through the cache. `run.run_demo` starts it."""

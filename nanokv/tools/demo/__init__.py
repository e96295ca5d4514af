"""The demo: one process prefills, another decodes, and the KV travels through the cache. `run.run_demo` starts it.

run        the parent: starts the workers, gives them jobs, compares, prints
children   the worker processes as the parent sees them
job        what a job is, and the messages between parent and workers
worker     a worker process: does jobs in its role
prefill    rank 0's part: computes blocks and puts them into the segment of rank 1
decode     rank 1's part: waits for blocks, reads them, generates tokens
model      a small Llama, its prefixes in a cache, and blocks of its KV
prompts    the prompts, and how many blocks they fill
"""

"""The machines that run the protocol for a host: compiled for a CPU, or launched as kernels.

    base          the contract of a machine, and all host calls
    records       the arguments and answers of host calls: places, requests, hints
    entries       the table of protocol functions that a host calls
    native_code   protocol functions for a CPU: from the
    code_cache    on disk, loaded by
    native_library, or compiled by the
    native_compiler, which adds the
    python_calls  and shows its
    compile_progress
    native        the CPU machine
    native_entries  what it compiles: the table above, and `native`
    ring_rounds   the rounds of its poller
    outbox        what they tell the thread that tells other nodes
    lane          one frame of words, its stream, and the launches in between
    launch        the machine that launches kernels: on a GPU, or in Triton's interpreter
    batch         a table of requests in device memory, and the one launch that does all of them
    own_memory    tensors whose memory holds their values, and the refusal of all others
    engine_cache  an engine's paged KV cache, as the kernels see it
    slices        boxes of objects, and where in such a cache they go
    full_blocks   the blocks of that cache which a step fills, and their objects
    reshape_and_cache  vLLM's functions of this name, which also publish full blocks
    gpu_threads        NanoKV's own threads beside a process that uses a GPU

The simulated machine is in `sim.world`.
"""

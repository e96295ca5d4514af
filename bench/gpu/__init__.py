"""Benchmarks of the kernels on one GPU: `python -m bench.gpu [NAME...]`, and the last part of `make test-gpu`.

    settings      how much is measured: everything on a GPU, a little in Triton's interpreter
    plan          the order and the time limits of a session on a borrowed GPU, and what to do with the minutes left
    one_segment   a segment and its machine
    objects       payloads, tables of requests, and checks of both
    timer         events on a GPU, the host's clock elsewhere; graphs
    clock         clocks that a kernel reads
    kernels       kernels that are measured beside NanoKV's own, and kernels that make room again
    budget        what each operation costs in compiled code, counted on the PTX machine, without a GPU
    children      runs items (bodies, tests, benchmarks) in child processes, so that one that hangs or faults costs
                  itself and no more
    engine_write  what an engine's write into its paged cache costs
    lookups       find_many and remove_many of small objects: keys a second, and the time of one launch
    model         a model of the time that one operation takes on a GPU: `python -m bench.gpu.model`
    probe         what the design assumes about CUDA, measured by itself, without a segment
    report        figures of a GPU for the documents
    two_processes  two processes on one GPU

One file per benchmark: many (and paged), single, produce (and steps), versions, announce, sweep, symmetric.
docs/benchmarks.md explains them.
"""

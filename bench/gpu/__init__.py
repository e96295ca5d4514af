"""Benchmarks of the kernels on one GPU: `python -m bench.gpu [NAME...]`, and the last part of `make test-gpu`.

    settings   how much is measured: all of it on a GPU, a little in Triton's interpreter
    runner     a child process for each benchmark, with a time limit; `__main__` is its command line
    stage      a segment and its machine; objects: payloads, tables of requests, and what checks them
    timer      events on a GPU, the host's clock elsewhere; graphs
    clock      clocks that a kernel reads
    kernels    what is measured beside NanoKV's own kernels, and what makes room again

One file a benchmark: many (and paged), single, produce, versions, announce, sweep, symmetric.
What they mean: docs/benchmarks.md.
"""

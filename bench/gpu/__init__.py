"""Benchmarks of the kernels on one GPU: `python -m bench.gpu [NAME...]`, and the last part of `make test-gpu`.

    settings      how much is measured: everything on a GPU, a little in Triton's interpreter
    plan          the order and the time limits of a session on a borrowed GPU, and what to do with the minutes left
    runner        one child process per benchmark, with a time limit; `__main__` is its command line
    about         the GPU of a run
    targets       the targets, and whether a run reached them
    one_segment   a segment and its machine
    objects       payloads, tables of requests, and checks of both
    timer         events on a GPU, the host's clock elsewhere; graphs
    clock         clocks that a kernel reads
    kernels       kernels that are measured beside NanoKV's own, and kernels that make room again

One file per benchmark: many (and paged), single, produce (and steps), versions, announce, sweep, symmetric.
docs/benchmarks.md explains them.
"""

"""Benchmarks of the kernels on one GPU: `python -m bench.gpu [NAME...]`, and the last part of `make test-gpu`.

    settings     how much is measured: all of it on a GPU, a little in Triton's interpreter
    runner       one child process per benchmark, with a time limit; `__main__` is its command line
    one_segment  a segment and its machine
    objects      payloads, tables of requests, and the checks of both
    timer        events on a GPU, the host's clock elsewhere; graphs
    clock        clocks that a kernel reads
    kernels      kernels that are measured beside NanoKV's own, and kernels that make room again
    targets      the figures that are wanted
    about        the machine that was measured

One file per benchmark: many (and paged), single, produce (and steps), versions, announce, sweep, symmetric.
docs/benchmarks.md says what they mean.
"""

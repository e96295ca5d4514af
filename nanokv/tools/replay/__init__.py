"""Traces of requests, replayed through a real cache and through simulated ones: how much of a workload a cache keeps.

A trace is a list of requests, each a list of prefix blocks. A block of a request is hit if it and all before it are
there when the request comes; afterwards all blocks of the request have been used, or put.

    trace       reads a trace
    policies    FIFO, CLOCK, LRU, SIEVE and S3-FIFO, simulated
    limits      LRU's hit rate at every capacity, and the best that any policy can do
    run         one capacity: the real cache, and those that it is compared with
    chart       hit rate over capacity, drawn
"""

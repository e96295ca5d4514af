"""The calls of a cache, a file per kind; `nanokv.cache.NanoKVCache` has them all.

base     who a rank is, what all calls check first, and how a cache ends
world    the other ranks: waiting, who lives, leaving
objects  put, get, remove; in the background too
many     the same for many keys
held     terms of objects that exist, copies, places, pins
kernels  plans, room for the puts of kernels, an engine's paged cache
owner    this rank's segment: index, eviction, files, counters
"""

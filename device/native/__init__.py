"""Functions that only a host in native code runs: the protocol beside the system's clocks.

ahead           what a call will need soon, prefetched
clock           the clocks and the sleep of the C library
futex           sleeping on a word
calls           put and get in few words, for a Python caller
ingest          from hints to rows of the index
many            calls about many keys
objects         put and get of a key and a tensor, as Python has them
prefetch        asking the processor for a cache line before it is needed
python_objects  C functions of Python
rounds          the loop of a poller's rounds
tensors         what a tensor of torch is
waits           waiting for an object
"""

"""Functions that only a host in native code runs: the protocol beside the system's clocks.

ahead           what a call will need soon, prefetched
clock           the clocks and the sleep of the C library
futex           sleeping on a word
c_calls         calls of C functions by their address
calls           put and get in few words, for a Python caller
keys            the digest of a key as Python has it
many            calls about many keys
objects         put, get, exists, remove and take as one call each, as Python's caller wrote it
peers           which rank gets an object
prefetch        asking the processor for a cache line before it is needed
python_objects  C functions of Python
rounds          the loop of a poller's rounds
sockets         calls of sockets and of epoll
telling         what becomes of objects, on its way to the thread that tells other nodes
tensors         what a tensor of torch is
unsigned        words as unsigned numbers
waits           waiting for an object
watch           waiting for the ring of a segment on a GPU
xxh3            XXH3-128 of short inputs
"""

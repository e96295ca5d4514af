"""The Triton kernels, thin wrappers of protocol functions.

    frame    arguments in, answers out; the kernel that calls any protocol function
    shares   how the CTAs of one launch share objects of different sizes
    many     many objects in one launch: put, get, look up, find, remove
    copies   copies of many objects in other segments
    paged    blocks of an engine's paged cache: the addresses of their bytes
    slices   boxes of objects to blocks of an engine's cache of another layout
    engine_tokens  K and V of a token, between the engine's tensors, its paged cache, and an object
    reshape_and_cache  an engine's step: tokens into its paged cache, and full blocks into objects
    payload  one object by many CTAs: read, verify, seal, store
    ring     copies the headers that drained hints are about

`nanokv.device.machines` launches them.
"""

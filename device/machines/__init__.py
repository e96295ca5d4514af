"""What runs the protocol: compiled for a CPU, or launched as kernels.

base          what a machine is
native_code   compiles protocol functions for a CPU, and keeps the code on disk
native        the CPU machine
launch        the machine that launches kernels: on a GPU, or in Triton's interpreter
launch_ring   drains a ring whose segment lies in a GPU's memory
lane          one frame of words, the stream it is used on, and the launches in between
batch         a table of requests in device memory, and the one launch that does all of them
engine_cache  an engine's paged KV cache, as the kernels see it
"""

"""Benchmarks: `python -m bench [NAME...]`, or `nanokv bench`. How to read them: docs/benchmarks.md.

suite       what all benchmarks share: figures, worlds, timing
questions   one file per benchmark
gpu         on a GPU, or counted on a machine for PTX
vllm        an engine, with and without NanoKV
generate    `python -m bench.generate`
nodes       two nodes of a cluster on this machine, each a process, over the transport that is asked for
peers       NanoKV beside its peers: `python -m bench peers`
simulate    A simulation of worlds of 8 to 1,024 ranks
"""

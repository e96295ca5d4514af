"""Benchmarks: `python -m bench [NAME...]`, or `nanokv bench`. How to read them: docs/benchmarks.md.

suite       what all benchmarks share: figures, worlds, timing
questions   one file per benchmark
gpu         on a GPU, or counted on a machine for PTX
vllm        an engine, with and without NanoKV
"""

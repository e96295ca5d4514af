"""Benchmarks: `python -m bench [objects freelist imports announce]`. How to read them: docs/benchmarks.md."""

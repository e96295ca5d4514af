"""Benchmarks: `python -m bench [objects freelist imports announce]`. How to read what they print: docs/benchmarks.md."""

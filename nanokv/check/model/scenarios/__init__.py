"""The scenarios: a few operations on a small world, and what must be true when they have ended."""

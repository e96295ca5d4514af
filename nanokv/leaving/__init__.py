"""A rank leaves a running world, and its memory goes back to the system (docs/elastic.md).

Joining is the heap's business (`heap/shm.py`, `heap/local.py`).

leave         the whole of it: the order of its steps, and what is undone if a rank cannot leave
empty         objects out of a segment, until no page is in use
"""

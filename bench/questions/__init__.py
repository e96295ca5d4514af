"""One file per question. Each has a `QUESTION`, which `python -m bench NAME` runs."""

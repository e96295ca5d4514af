"""Wrong words in a segment, and the results that they must not have.

run    many cases, in child processes that may crash or hang
case   one case: a small world, wrong words, every operation
words  the words that are corrupted, and their new values
"""

"""Wrong words in a segment, and what must not come of them.

run    many cases, in child processes that may crash or hang
case   one case: a small world, wrong words, every operation
words  which words, and what is written there
"""

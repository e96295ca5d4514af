"""A soak: four rank processes at work for a long time, some of them killed, and four verdicts over all of it.

run      the rounds, and the verdicts as rows of the table of `nanokv check`
work     what a rank does: the busy time of a round
probes   puts at quiet moments, and whether they evicted what they need not
objects  objects whose every byte follows from key and version
memory   samples of what a process holds, and whether they stay flat
"""

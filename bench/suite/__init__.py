"""What all questions share.

figure         one measured quantity: its case, its repetitions, its distribution
question       what a benchmark asks, and how the suite runs it
settings       sizes and counts
environment    the machine, the versions, the commit
timing         durations of calls
distribution   percentiles and buckets of durations
turns          repetitions: A B A B
worlds         the worlds that are measured
owner          the rank whose segment gets the objects
other_process  the same, in a process of its own
"""

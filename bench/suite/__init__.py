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
crew           several processes at once, each a rank
twin           memory of the owner's segment for plain copies
checked        bytes that were moved are compared
parallel       threads that really run at the same time
"""

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
arguments      the command line of `python -m bench`, and the settings that it asks for
busy           calls beside a thread of the same process that computes in Python, and so wants the interpreter's lock
               all the time
catalogue      all questions by name: the modules in `bench/questions`
cells          figures as text
command        what `python -m bench` does once its arguments are known
compare        `python -m bench compare A.json B.json`
plots          plots of figures as SVG, chosen by the axes of their cases; needs matplotlib
record         A run as a file: the figures, and all that is known about where they come from
report         the report
ring           A heap that is in use
tables         figures as tables for a terminal; what does not fit beside each other goes into several tables, or is
               left out
targets        the targets, and whether the figures of a run reach them; ratios are those of one run, repetition by
               repetition
"""

"""A simulation of worlds of 8 to 1,024 ranks: where v1's master and a hot owner of v2 saturate, and what helps.

It is a model, not a measurement (docs/scale.md). `python -m bench.simulate` prints its assumptions, then the answers.

    assumptions    what it is built on, each with its source
    queues         servers that take turns, in the order of time
    cases          a world with a load; one run of it
    questions      the questions: which cases, and the loads at which they saturate
    tables, plots  what is printed and drawn
    master         measures what a request costs v1's master, on this machine
    cluster        the same for clusters of several nodes: `python -m bench.simulate.cluster`
"""

"""A simulation of clusters of 8 to 1,024 nodes (`NanoKVCluster`): look-ups, joins, events, and a hot key.

It is a model, not a measurement (docs/scale.md). `python -m bench.simulate.cluster` prints its assumptions, then the
answers.

    assumptions  what it is built on, each with its source: the one place for what was measured on this machine
    networks     what a round, a row and a byte cost over TCP and RDMA
    calls        the steps of get, get_many, put and put_many: who waits for what
    lookups      many calls of all nodes at once
    homes        the homes of keys before and after joins, by the code that a cluster runs
    traffic      events, beats and cards at N nodes: computed, not simulated
    hot          one key that all nodes read, and copies of it
    questions    the questions, and their rows
    costs        measures what events and cards cost a process, on this machine
"""

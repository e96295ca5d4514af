"""Nodes of a cluster that are killed, stopped and cut off, while others work: what they saw, and whether it may be so.

run       the rows of `nanokv check nodes`
faults    what is done to a node, and whom it cuts off
crew      the processes of the nodes, as the check sees them
node      a node, as a process
caller    threads that call the cluster, and note every call
calls     the notes, which outlive a process that is killed
keys      numbers of keys, and of versions
judge     what the calls of a round prove
times     how long a fault was seen
mutants   deliberate bugs, to show that the check can fail
"""

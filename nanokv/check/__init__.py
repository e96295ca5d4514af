"""What checks NanoKV: its protocol under simulated machines, and a running world on the user's own machine.

command        `nanokv check`
run            its parts, and how much of each is tried
supervised     the parts in processes that Ctrl-C ends all at once
command_process  processes that do commands: ranks, nodes, members
report         rows of the table that every check fills
protocol       the protocol under the simulated machine, mutants of it, and its compiled code: it proves a source
machine        a running world on this machine: threads, histories, kills, corruption, litmus, soak
wire           frames of chance for what serves other nodes
nodes          nodes of a cluster that are killed, stopped and cut off, while others work
lab            several hosts on this machine
litmus_shapes  device functions of litmus tests, for machines that are simulated and real
"""

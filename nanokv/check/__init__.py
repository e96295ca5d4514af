"""What checks NanoKV: its protocol under simulated machines, and a running world on the user's own machine.

command        `nanokv check`
run            its parts, and how much of each is tried
report         rows of the table that every check fills
concurrency    random work of threads
histories/     calls and answers of threads and processes: linearizable for every key
kills/         rounds in which ranks die at random moments, and nothing is lost
corruption/    wrong words in a segment: every operation ends, and gives no wrong bytes
litmus         litmus tests on this machine's memory
litmus_shapes  their device functions
model/         the protocol under the simulated machine, and mutants of it
work           random work on a cache, and payloads that hold their key and version
hammer         random work as compiled code, without a pause
slow           device functions that linger after each load
ranks          ranks in processes of their own, which can be killed
preload        the modules that the fork server of `ranks` loads
"""

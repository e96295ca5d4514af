"""What checks NanoKV: its protocol under simulated machines, and a running world on the user's own machine.

command        `nanokv check`
run            its parts, and how much of each is tried
supervised     the parts in processes that Ctrl-C ends all at once
report         rows of the table that every check fills
concurrency    random work of threads
histories/     calls and answers of threads and processes: linearizable for every key
kills/         rounds in which ranks die at random moments, and nothing is lost
nodes/         nodes of a cluster that are killed, stopped and cut off, while others work
corruption/    wrong words in a segment: every operation ends, and gives no wrong bytes
litmus         litmus tests on this machine's memory
litmus_shapes  their device functions
model/         the protocol under the simulated machine, and mutants of it
compiled/      compiled code, as the GPU would run it, under the simulated memory
random_calls   random calls on a cache
payloads       keys and payloads: every word of a payload holds its key and version
hammer         random work as compiled code, without a pause
slow           device functions that linger after each load
rank_process   a rank in a process of its own, which can be killed
ranks          such ranks with a cache on a world of shared memory
preload        the modules that their fork server imports
soak           load and kills for as long as one likes: memory stays flat, nothing is lost
lab            several hosts on this machine
"""

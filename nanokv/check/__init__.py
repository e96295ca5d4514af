"""What checks NanoKV: its protocol under simulated machines, and a running world on the user's own machine.

command      `nanokv check`
run          its parts, and how much of each is tried
concurrency  random work of threads
histories/   what threads and processes called and were answered: linearizable for every key
kills/       kill rounds: ranks die at random moments, and nothing is lost for it
corruption/  wrong words in a segment: every operation ends, and gives no wrong bytes
litmus       small shapes on this machine's memory
model/       the protocol under the simulated machine, and mutants of it
report       rows of the table that every check fills
work         random work on a cache, and payloads that tell whose they are
hammer       the same as compiled code, without a pause
slow         the same again, lingering after each load
ranks        ranks in processes of their own, which can be killed
preload      what their fork server loads
"""
